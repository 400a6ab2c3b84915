"""Steps of all multipliers together along the projected gradient, where samples have little to do with each other.

At a large gamma a kernel matrix is nearly the identity: nearly all samples are support vectors, with nearly equal
multipliers. Moving pairs takes a few iterations for each sample then, at each C. One step along the gradient, with each
multiplier kept between its bounds and their sum 0, is almost the solution (Y.-H. Dai, R. Fletcher, "New algorithms for
singly linearly constrained quadratic programs subject to lower and upper bounds", Mathematical Programming 106, 2006,
with the step lengths of J. Barzilai and J. M. Borwein).
"""

# mypy: allow-untyped-defs
# Compiled functions have no annotations: numba infers their types.

from __future__ import annotations

import numpy as np

from jit import LANES
from jit.simd import add, both, choose, fma, less, load, part, splat, store, total_of
from kernel_svm.smo import add_rows, aligned_doubles, set_masks

LESS = 0.5  # a step must leave at most this part of the violation: so much half an iteration for each sample does, too
KEPT = 0.1  # and all steps together this part, or they are taken back: they may have moved samples of no importance
NEAR = 1e-12  # of the distance of its bounds: a multiplier that is so near to one has reached it
SEARCH = 100  # looks at the sum of the multipliers at most
SEEN = 4  # rows of the matrix that the length of the first step is estimated from


@part
def _sum(wish, bottom, top, shift):
    """The sum of the wishes plus ``shift``, each kept between its bounds; and how many lie between them."""
    total, free, one, none, move = splat(0.0), splat(0.0), splat(1.0), splat(0.0), splat(shift)
    for at in range(0, wish.size, LANES):
        value, least, most = add(load(wish, at), move), load(bottom, at), load(top, at)
        free = add(free, choose(both(less(least, value), less(value, most)), one, none))
        value = choose(less(value, least), least, value)
        total = add(total, choose(less(most, value), most, value))
    return total_of(total), total_of(free)


@part
def project(wish, bottom, top, target):
    """Write the multipliers nearest to ``wish`` whose sum is 0, between bounds, to ``target``; False if not found.

    All are float64 (lanes,). A lane whose bounds are equal keeps that value.
    """
    lower, upper = np.inf, -np.inf
    for t in range(wish.size):
        if bottom[t] < top[t]:
            lower, upper = min(lower, bottom[t] - wish[t]), max(upper, top[t] - wish[t])
    if not lower < upper:
        return False
    shift = min(max(0.0, lower), upper)
    for step in range(SEARCH):  # Newton's method for a piecewise linear function, with bisection
        total, free = _sum(wish, bottom, top, shift)
        if total == 0.0:
            break
        if total > 0.0:
            upper = shift
        else:
            lower = shift
        following = shift - total / max(free, 1.0)
        if step % 3 == 2 or free == 0.0 or not lower < following < upper:
            following = (lower + upper) / 2
        if following == shift:
            break
        shift = following
    rest, size, widest, room = 0.0, 0.0, 0, 0.0
    for t in range(wish.size):
        value, near = wish[t] + shift, NEAR * (top[t] - bottom[t])
        if value <= bottom[t] + near:  # on the bound itself: what lies between its bounds decides the threshold
            value = bottom[t]
        elif value >= top[t] - near:
            value = top[t]
        target[t] = value
        rest += value
        size += abs(value)
        own = min(value - bottom[t], top[t] - value)
        if own > room:
            widest, room = t, own
    if abs(rest) > 1e-9 * size:
        return False
    if abs(rest) <= 1e-14 * size:
        return True
    target[widest] -= rest
    return abs(rest) < room


@part
def violation_of(f, up, low):
    """By how much the optimality conditions are violated."""
    least, most = np.inf, -np.inf
    for t in range(f.size):
        if up[t]:
            least = min(least, f[t])
        if low[t]:
            most = max(most, f[t])
    return most - least


@part
def _typical(own):
    """The mean curvature of moving a pair of samples by half each: 1 of an identity."""
    sign, columns = own.sign, own.columns
    total, count = 0.0, 0
    for i in range(0, sign.size, max(1, sign.size // SEEN)):
        if sign[i] != 0:
            row = own.slot[columns[i]]
            for t in range(sign.size):
                if sign[t] != 0 and t != i:
                    total -= np.float64(own.rows[row, columns[t]])
                    count += 1
    return total / max(count, 1)


@part
def descend(own, tolerance, limit):
    """Make steps while they pay, at most ``limit``; every row of the problem must be there.

    Returns (steps, whether they paid). Where they do not, f, beta and masks are left as they were.
    """
    sign, f, beta, up, low, bounds = own.sign, own.f, own.beta, own.up, own.low, own.bounds
    n = f.size
    bottom, top, wish, target = aligned_doubles(n), aligned_doubles(n), aligned_doubles(n), aligned_doubles(n)
    change, old_f, old_beta = aligned_doubles(n), f.copy(), beta.copy()
    for t in range(n):
        top[t] = bounds[t] if sign[t] > 0 else 0.0
        bottom[t] = -bounds[t] if sign[t] < 0 else 0.0
    first = violation = violation_of(f, up, low)
    if not violation >= tolerance:
        return 0, True
    curvature, size, steps = _typical(own), 1.0, 0
    while violation >= tolerance and steps < limit and curvature > 0.0:
        rate = splat(-size / curvature)
        for at in range(0, n, LANES):
            store(wish, at, fma(rate, load(f, at), load(beta, at)))
        if not project(wish, bottom, top, target):
            break
        slope = size = curvature = 0.0
        for t in range(n):
            wish[t], change[t] = target[t] - beta[t], 0.0  # the step
            slope += wish[t] * f[t]
            size += wish[t] * wish[t]
        add_rows(own.rows, own.slot, own.columns, wish, change)
        for t in range(n):
            curvature += wish[t] * change[t]
        if not slope < 0.0:
            break
        length = 1.0 if curvature <= -slope else -slope / curvature
        for t in range(n):
            beta[t] = target[t] if length == 1.0 else min(max(beta[t] + length * wish[t], bottom[t]), top[t])
            f[t] += length * change[t]
        set_masks(sign, beta, bounds, up, low)
        steps += 1
        before, violation = violation, violation_of(f, up, low)
        if violation > LESS * before:
            break
    if violation <= max(KEPT * first, tolerance):
        return steps, True
    for t in range(n):
        f[t], beta[t] = old_f[t], old_beta[t]
    set_masks(sign, beta, bounds, up, low)
    return 0, False
