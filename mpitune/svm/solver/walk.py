"""The compiled walk of binary problems along C, see `path`.

The solutions for neighbouring C have most in common, so each starts from the one before, scaled by an exact
line search. Two cases need something else. If no multiplier of a solution touches its bound C, the same
solution is optimal for every larger C. If most do and the scaled start is far from optimal, starting from zero
takes fewer iterations.

Where most multipliers are at their bound and C grows little, a C begins with all of them scaled as C is: those at their
bound stay there. A step of Newton's method then moves the free ones, and those that leave their bounds (`newton`).

Each C begins with steps of all multipliers at once where samples have little to do with each other (`projected`),
unless it starts from zero although a smaller C was solved. Then pairs are moved; the lanes that still move are gathered
now and then and solved alone, see `gathered`.

The stages of a problem at one C, which `walk` takes it through:

    UNKNOWN --_prepare--> WAITS --_begin--> BEGUN or PAIRS --_finish--> WAITS, for the next C
                            |                 |
                            |                 pause at BEGUN: `projected.descend` moves all multipliers, then PAIRS
                            the solution of the C before is this one's too: WAITS, for the next C

The walk pauses by returning which problems want steps of all multipliers, as these are compiled apart, by another
process at the same time. It goes on when it is called again: all it knows is in ``state``.

The arrays are listed in `smo`.
"""

from __future__ import annotations

import numpy as np

from mpitune._jit import LANES
from mpitune._jit.simd import compiled, part
from mpitune.svm.solver.binary import Path, one_of
from mpitune.svm.solver.gathered import CHECK, GATHER, MAX_ACTIVE, WORKING, active, most_violating, solve_gathered
from mpitune.svm.solver.newton import MOST, newton_step
from mpitune.svm.solver.smo import CONVERGED, iterate, set_masks, violation_of

LEFT_OVER = 0.2  # of their violation: what WORKING lanes are left with that are gathered where too many are active
FREE = 2  # start from the scaled solution if one in so many of its support vectors is below the bound,
GAP = 0.5  # or if it violates the optimality conditions by no more than this (zero does so by 2)
# A C begins with a Newton step of the free multipliers if it is no more than NEAR times the one before, if a problem
# has LARGE lanes (iterations on fewer take no longer than the step), and if at least FEWEST are free, but no more than
# one in BOUNDED support vectors and one in SHARE lanes: then most are where the scaled start puts them.
NEAR, LARGE, FEWEST, BOUNDED, SHARE = 16.0, 512, 16, 3, 5
TINY = 1e-300  # the least gap
EDGE = 1e-9  # of the largest multiplier: what rounding may leave between a multiplier and its bound

# The progress of a problem, a row of an int64 array.
STATE = range(6)
(
    AT,  # the number of its C
    STAGE,  # of that C, as drawn above
    DONE,  # iterations at that C
    PAYS,  # whether steps of all multipliers pay
    ALL,  # whether steps of all multipliers may be made
    NEWTON,  # whether this C begins with a Newton step
) = STATE
UNKNOWN, WAITS, BEGUN, PAIRS = range(4)  # stages


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
def _solve(own, ending, done):
    """One C from where ``own`` stands after ``done`` iterations. Returns (status, iterations)."""
    extremes = np.empty(2)
    size, spent = own.sign.size, 0  # since the last gathering
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
def _start(own, weights, bound, previous, converged, determined, state):
    """Set ``f`` and ``beta`` to where the search for C = ``bound`` begins; True if that is the solution already."""
    sign, f, beta = own.sign, own.f, own.beta
    linear = quadratic = 0.0
    support = free = 0
    for t in range(sign.size):
        if sign[t] != 0 and beta[t] != 0.0:
            alpha = abs(beta[t])
            linear += alpha
            quadratic += beta[t] * (f[t] + sign[t])
            support += 1
            free += alpha < previous * weights[t]
    if determined and 0 < support == free:
        return True
    least, most = np.inf, -np.inf
    some = FEWEST <= free <= min(MOST, sign.size // SHARE, support // BOUNDED)
    newton = state[ALL] and converged and some and bound <= NEAR * previous and sign.size >= LARGE
    state[NEWTON] = newton
    if previous > 0.0:
        ratio = bound / previous
        scale = ratio if newton or quadratic <= 0.0 else max(1.0, min(linear / quadratic, ratio))
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
    if previous == 0.0 or (not newton and FREE * free < support and most - least > GAP):
        if previous > 0.0:  # few samples are in the solution then, so steps of all multipliers do not pay
            state[PAYS] = False
        for t in range(sign.size):
            beta[t] = 0.0
            f[t] = -sign[t]
    return False


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
def _leave_out(solved, first, lanes):
    """No solutions from C number ``first`` on."""
    for c in range(first, solved.rhos.size):
        for t in range(lanes):
            solved.betas[c, t] = 0.0
        solved.rhos[c], solved.iterations[c], solved.converged[c], solved.gaps[c] = 0.0, 0, False, 0.0


@part
def _row(paths, p):
    """Solutions of problem number ``p``, whose lanes need not be known yet."""
    return Path(paths.columns[p], paths.betas[p], paths.rhos[p], paths.iterations[p], paths.converged[p], paths.gaps[p])


@part
def _prepare(problems, p, signs, weights, count, pair, solved, state):
    """Find the lanes of problem number ``p``, and leave out all but the first ``count`` penalties."""
    lanes = _cover(signs, weights, problems.blocks[p], problems.columns[p], problems.sign[p], problems.weights[p])
    problems.lanes[p] = lanes
    _leave_out(solved, count, lanes)
    state[STAGE] = WAITS
    state[PAYS] = state[ALL] = pair or lanes <= MAX_ACTIVE


@part
def _begin(problem, weights, penalties, solved, state):
    """Set a problem to where the search for its C begins; where that is the solution, C is done."""
    c = state[AT]
    for t in range(weights.size):
        problem.bounds[t] = penalties[c] * weights[t]
    previous = penalties[c - 1] if c else 0.0
    # A multiplier that rounding alone has left free does not make a solution that of larger C.
    converged = c > 0 and solved.converged[c - 1]
    determined = converged and solved.gaps[c - 1] == 0.0
    same = _start(problem, weights, penalties[c], previous, converged, determined, state)
    set_masks(problem.sign, problem.beta, problem.bounds, problem.up, problem.low)
    state[STAGE], state[DONE] = BEGUN, 0
    if same:
        for t in range(weights.size):
            solved.betas[c, t] = solved.betas[c - 1, t]
        solved.rhos[c], solved.converged[c], solved.iterations[c] = solved.rhos[c - 1], True, 0
        solved.gaps[c] = 0.0
        state[AT], state[STAGE] = c + 1, WAITS


@part
def _finish(problem, ending, solved, state):
    """Move pairs of a problem until its C is done, after a Newton step of the free multipliers if that pays."""
    if state[STAGE] == BEGUN and state[NEWTON]:
        newton_step(problem, ending.tolerance)
        set_masks(problem.sign, problem.beta, problem.bounds, problem.up, problem.low)
        state[DONE] = 1
    status, done = _solve(problem, ending, state[DONE])
    c, lanes = state[AT], problem.f.size
    for t in range(lanes):
        solved.betas[c, t] = problem.beta[t]
    solved.rhos[c], solved.gaps[c] = _intercept(problem)
    solved.converged[c], solved.iterations[c] = status == CONVERGED, done
    state[AT], state[STAGE] = c + 1, WAITS
    if ending.give_up and not solved.converged[c]:
        _leave_out(solved, c + 1, lanes)
        state[AT] = solved.rhos.size


@compiled
def walk(problems, given, penalties, ending, paths, state, group):
    """Go along the penalties to the end, or until steps of all multipliers are needed.

    All problems go to the next C together, as such steps read the matrix for all of them at once.

    Returns how many problems need steps, whose numbers are in ``group``; 0 at the end.

    Args:
        problems: `Binaries`, of which the matrix is there.
        given: signs int8 and weights float64, both (n, width), and counts int64 (n,): the number of penalties that are
            solved. What is solved of the others is 0.
        penalties: float64 (n_penalties,).
        ending: `Ending`, as `path.solve_paths` is told.
        paths: `Paths`, written.
        state: int64 (n, 6), 0 at first.
        group: int64 (n,).
    """
    signs, weights, counts = given
    n = signs.shape[0]
    for p in range(n):
        if state[p, STAGE] == UNKNOWN:
            _prepare(problems, p, signs[p], weights[p], counts[p], ending.pair, _row(paths, p), state[p])
    for c in range(penalties.size):
        count = 0
        for p in range(n):
            if state[p, AT] == c < counts[p] and state[p, STAGE] == WAITS:
                own_weights = problems.weights[p, : problems.lanes[p]]
                _begin(one_of(problems, p), own_weights, penalties, _row(paths, p), state[p])
            if state[p, AT] == c and state[p, STAGE] == BEGUN and state[p, PAYS] and not state[p, NEWTON]:
                problem = one_of(problems, p)
                if violation_of(problem.f, problem.up, problem.low) >= ending.tolerance:
                    group[count] = p
                    count += 1
                else:  # the solution of the C before is good enough
                    state[p, STAGE] = PAIRS
        if count:
            return count
        for p in range(n):
            if state[p, AT] == c < counts[p]:
                _finish(one_of(problems, p), ending, _row(paths, p), state[p])
    return 0
