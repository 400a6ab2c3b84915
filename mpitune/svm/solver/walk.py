"""The compiled walk of binary problems along C, see `path`.

The solutions for neighbouring C have most in common, so each starts from the one before, scaled by an exact
line search. Two cases need something else. If no multiplier of a solution touches its bound C, the same
solution is optimal for every larger C. If most do and the scaled start is far from optimal, starting from zero
takes fewer iterations, unless most of these are far from their side, as in noise, and so stay at a larger bound.

Then pairs are moved; the lanes that still move are gathered now and then and solved alone, see `gathered`.

The arrays are listed in `smo`.
"""

from __future__ import annotations

import numpy as np

from mpitune._jit import LANES
from mpitune._jit.simd import (
    add,
    choose,
    compiled,
    fma,
    less,
    load,
    mul,
    part,
    prefetch,
    splat,
    sub,
    total_of,
    widen,
)
from mpitune.svm.solver.binary import Path, one_of
from mpitune.svm.solver.gathered import CHECK, GATHER, MAX_ACTIVE, WORKING, active, most_violating, solve_gathered
from mpitune.svm.solver.smo import CONVERGED, FAR, aligned_doubles, iterate, set_masks

LEFT_OVER = 0.2  # of their violation: what WORKING lanes are left with that are gathered where too many are active
FREE = 2  # start from the scaled solution if one in so many of its support vectors is below the bound,
GAP = 0.5  # or if it violates the optimality conditions by no more than this (zero does so by 2),
NOISE = 0.5  # or, scaled as C is, if more than half of the others have a margin below this, far from the right 1
GROWN = 1e7  # by how much rounding of f, which is about 1e-13, may grow with C before all begin at zero again
TINY = 1e-300  # the least gap
EDGE = 1e-9  # of the largest multiplier: what rounding may leave between a multiplier and its bound
PROVED = 1.99  # of 2, see `_spread`: what is left is more than any tolerance and what float32 loses
ULPS = 8.0  # halves of the last place of float32 that may be lost of a value of K - 1
SAMPLED = 16  # blocks of a row, from which its mean is estimated


@part
def _cover(sign, weights, blocks, columns, lane_sign, lane_weights):
    """Find the lanes of a problem, from sign and weights by column, and write their arrays; return how many."""
    width = 0
    for b in range(sign.size // LANES):
        there = False
        for t in range(b * LANES, (b + 1) * LANES):
            there = there or sign[t] != 0
        if there:
            blocks[width // LANES] = b
            for t in range(b * LANES, (b + 1) * LANES):
                columns[width], lane_sign[width], lane_weights[width] = t, sign[t], weights[t]
                width += 1
    return width


@part
def _solve(own, ending):
    """One C from where ``own`` stands. Returns (status, iterations)."""
    extremes = np.empty(2)
    size, done, spent = own.sign.size, 0, 0  # spent: since the last gathering
    lanes = np.empty(size, np.int64)
    while True:
        status, k = iterate(
            own.rows, own.blocks, own.sign, own.f, own.beta, own.up, own.low, own.bounds, ending.tolerance,
            min(CHECK, ending.limit - done), extremes,
        )  # fmt: skip
        done += k
        spent += k
        if status == CONVERGED or done >= ending.limit:
            return status, done
        count = active(own, extremes, lanes)
        partial = count > MAX_ACTIVE
        taken, spared = (WORKING, size) if partial else (count, size - count)
        cost = GATHER * taken * taken
        if partial:  # f of all lanes is brought up to date each time, by a row for each lane that is gathered
            cost += taken * size
        if taken <= 0.8 * size and spent * spared >= cost:
            gathered, goal = lanes[:count], ending.tolerance
            if partial:
                gathered = most_violating(own, gathered)
                goal = max(ending.tolerance, LEFT_OVER * (extremes[1] - extremes[0]))
            done += solve_gathered(own, gathered, goal, ending.limit - done, extremes)
            spent = 0


@part
def _start(own, weights, bound, previous, determined, rho, grown):
    """Set ``f`` and ``beta`` to where the search for C = ``bound`` begins.

    ``previous`` is the C of what they are, 0 for zeros, ``rho`` its threshold; ``grown`` is by how much the rounding of
    f has grown since it was exact. Returns by how much then; 0 where they are the solution already.
    """
    sign, f, beta = own.sign, own.f, own.beta
    linear = quadratic = 0.0
    support = free = wrong = 0
    for t in range(sign.size):
        if sign[t] != 0 and beta[t] != 0.0:
            alpha = abs(beta[t])
            linear += alpha
            quadratic += beta[t] * (f[t] + sign[t])
            support += 1
            below = alpha < previous * weights[t]
            free += below
            wrong += not below and 1.0 + sign[t] * (f[t] - rho) < NOISE
    if determined and 0 < support == free:
        return 0.0
    least, most, noisy = np.inf, -np.inf, 2 * wrong > support - free
    if previous > 0.0:
        ratio = bound / previous
        scale = ratio if noisy or quadratic <= 0.0 else max(1.0, min(linear / quadratic, ratio))
        grown *= scale
        for t in range(sign.size):
            if sign[t] != 0:
                alpha, top = abs(beta[t]), bound * weights[t]
                alpha = top if alpha == previous * weights[t] and scale == ratio else min(alpha * scale, top)
                beta[t] = alpha * sign[t]
                f[t] = scale * (f[t] + sign[t]) - sign[t]
                if alpha < top if sign[t] > 0 else alpha > 0.0:
                    least = min(least, f[t])
                if alpha > 0.0 if sign[t] > 0 else alpha < top:
                    most = max(most, f[t])
    if (FREE * free < support and not noisy and most - least > GAP) or previous == 0.0 or grown > GROWN:
        grown = 1.0
        for t in range(sign.size):
            beta[t] = 0.0
            f[t] = -sign[t]
    return grown


@part
def _intercept(own):
    """LIBSVM's rho: the mean of f over the free lanes, else the middle of what the bounded ones allow; and how much.

    A lane is free if it is between its bounds by more than rounding. The second number is 0 if one is, else above 0.
    """
    sign, f, beta, bounds = own.sign, own.f, own.beta, own.bounds
    edge = 0.0
    for t in range(f.size):
        if sign[t] != 0:
            edge = max(edge, abs(beta[t]))
    edge *= EDGE
    total, free, least, most = 0.0, 0, np.inf, -np.inf
    for t in range(f.size):
        if sign[t] == 0:
            continue
        alpha = abs(beta[t])
        above, below = alpha > edge, alpha < bounds[t] - edge
        if above and below:
            total += f[t]
            free += 1
        elif below == (sign[t] > 0):
            least = min(least, f[t])
        else:
            most = max(most, f[t])
    return (total / free, 0.0) if free else ((least + most) / 2, max(least - most, TINY))


@part
def _is_full(own):
    """Whether all multipliers are at one bound, and so as many samples are of each class."""
    bound = own.bounds.max()
    for t in range(own.sign.size):
        if own.sign[t] != 0 and (own.bounds[t] != bound or abs(own.beta[t]) < bound - EDGE * bound):
            return False
    return True


@part
def _spread(own):
    """What sums of y * K of a full problem (see `_is_full`) may be, for each unit of C.

    Returns how far they are apart at most, wherever the multipliers are; and up to which size their terms add up.

    As sum(y alpha) = 0, a number c in a row of K changes no f_i = sum_j y_j alpha_j (K_ij - c) - y_i. So with
    0 <= alpha <= C, y_i f_i <= C W_i - 1, where W_i = sum_j max(y_i y_j (K_ij - c), 0). Wherever a multiplier of one
    class is below C, one of the other is, too, and these two violate the conditions by 2 - C (W_i + W_j) at least. If
    that is more than the tolerance, all multipliers are C wherever any solver ends. c is about the row's mean.
    """
    rows, sign, columns = own.rows, own.sign, own.columns
    labels, step = aligned_doubles(2 * sign.size), LANES * max(1, sign.size // (SAMPLED * LANES))
    for t in range(sign.size):
        labels[t], labels[sign.size + t] = sign[t], -sign[t]
    zero, positive, negative, largest = splat(0.0), 0.0, 0.0, 0.0
    for t in range(sign.size):
        if sign[t] == 0:
            continue
        start, total, count, apart, size = columns[t] * rows.shape[1], zero, zero, zero, zero
        for at in range(0, sign.size, step):
            there = mul(load(labels, at), load(labels, at))
            total, count = fma(there, widen(load(rows, start + columns[at])), total), add(count, there)
        mean, own_labels = splat(total_of(total) / max(total_of(count), 1.0)), 0 if sign[t] > 0 else sign.size
        for at in range(0, sign.size, LANES):
            prefetch(rows, start + columns[at] + FAR * LANES)
            value = widen(load(rows, start + columns[at]))
            size = sub(size, value)  # none is above 0, and those of other samples do no harm
            value = mul(load(labels, own_labels + at), sub(value, mean))
            apart = add(apart, choose(less(zero, value), value, zero))
        largest = max(largest, total_of(size))
        if sign[t] > 0:
            positive = max(positive, total_of(apart))
        else:
            negative = max(negative, total_of(apart))
    return positive + negative, largest


@part
def _leave_out(solved, first, lanes):
    """No solutions from C number ``first`` on."""
    for c in range(first, solved.rhos.size):
        for t in range(lanes):
            solved.betas[c, t] = 0.0
        solved.rhos[c], solved.iterations[c], solved.converged[c], solved.gaps[c] = 0.0, 0, False, 0.0


@part
def _solve_all(problem, weights, penalties, count, ending, solved):
    """Solve a problem for its first ``count`` penalties, from the smallest on."""
    lanes, spread, size, grown = problem.f.size, -1.0, 0.0, 1.0
    for c in range(count):
        for t in range(lanes):
            problem.bounds[t] = penalties[c] * weights[t]
        previous = penalties[c - 1] if c else 0.0
        # A multiplier that rounding alone has left free does not make a solution that of larger C.
        determined = c > 0 and solved.converged[c - 1] and solved.gaps[c - 1] == 0.0
        now = _start(problem, weights, penalties[c], previous, determined, solved.rhos[c - 1], grown)
        set_masks(problem.sign, problem.beta, problem.bounds, problem.up, problem.low)
        if now == 0.0:
            for t in range(lanes):
                solved.betas[c, t] = solved.betas[c - 1, t]
            solved.rhos[c], solved.converged[c], solved.iterations[c] = solved.rhos[c - 1], True, 0
            solved.gaps[c] = 0.0
            continue
        grown = now
        status, done = _solve(problem, ending)
        for t in range(lanes):
            solved.betas[c, t] = problem.beta[t]
        solved.rhos[c], solved.gaps[c] = _intercept(problem)
        solved.converged[c], solved.iterations[c] = status == CONVERGED, done
        if solved.gaps[c] > ending.tolerance and _is_full(problem):
            if spread < 0.0:
                spread, size = _spread(problem)
            bound = problem.bounds.max()
            if bound * spread < PROVED:
                solved.gaps[c] = -bound * (ULPS * size + lanes)
        if ending.give_up and not solved.converged[c]:
            _leave_out(solved, c + 1, lanes)
            break


@compiled
def walk(problems, given, penalties, ending, paths):
    """Solve each problem along the penalties.

    Args:
        problems: `Binaries`, of which the matrix is there.
        given: signs int8 and weights float64, both (n, width), and counts int64 (n,): the number of penalties that are
            solved. What is solved of the others is 0.
        penalties: float64 (n_penalties,).
        ending: `Ending`, as `path.solve_paths` is told.
        paths: `Paths`, written.
    """
    signs, weights, counts = given
    for p in range(signs.shape[0]):
        lanes = _cover(
            signs[p], weights[p], problems.blocks[p], problems.columns[p], problems.sign[p], problems.weights[p]
        )
        problems.lanes[p] = lanes
        solved = Path(
            paths.columns[p], paths.betas[p], paths.rhos[p], paths.iterations[p], paths.converged[p], paths.gaps[p]
        )  # fmt: skip
        _leave_out(solved, counts[p], lanes)
        _solve_all(one_of(problems, p), problems.weights[p, :lanes], penalties, counts[p], ending, solved)
