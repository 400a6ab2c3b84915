"""Steps of all multipliers together along the projected gradient, where samples have little to do with each other.

At a large gamma a kernel matrix is nearly the identity: nearly all samples are support vectors, with nearly equal
multipliers. Moving pairs takes a few iterations for each sample then, at each C. One step along the gradient, with each
multiplier kept between its bounds and their sum 0, is almost the solution (Y.-H. Dai, R. Fletcher, "New algorithms for
singly linearly constrained quadratic programs subject to lower and upper bounds", Mathematical Programming 106, 2006,
with the step lengths of J. Barzilai and J. M. Borwein).
"""

from __future__ import annotations

import numpy as np

from mpitune._jit import LANES
from mpitune._jit.simd import (
    add,
    both,
    choose,
    compiled,
    fma,
    least_lane,
    less,
    load,
    most_lane,
    mul,
    part,
    splat,
    store,
    sub,
    total_of,
)
from mpitune.svm.solver.binary import one_of
from mpitune.svm.solver.products import add_products
from mpitune.svm.solver.smo import add_rows, aligned_doubles, set_masks, violation_of
from mpitune.svm.solver.walk import DONE, PAIRS, PAYS, STAGE

LESS = 0.5  # a step must leave at most this part of the violation: so much half an iteration for each sample does, too
KEPT = 0.1  # and all steps together this part, or they are taken back: they may have moved samples of no importance
NEAR = 1e-12  # of the distance of its bounds: a multiplier that is so near to one has reached it
SEARCH = 100  # looks at the sum of the multipliers at most
EXACT = 1e-14  # of the sum of their sizes: a sum that is so near to 0 is 0 but for rounding
SEEN = 4  # rows of the matrix that the length of the first step is estimated from


@part
def _sum(wish, bottom, top, shift):
    """Of wishes plus ``shift``, kept between their bounds: the sum, that of the sizes, and how many lie between."""
    total, size, free, one, none, move = splat(0.0), splat(0.0), splat(0.0), splat(1.0), splat(0.0), splat(shift)
    for at in range(0, wish.size, LANES):
        value, least, most = add(load(wish, at), move), load(bottom, at), load(top, at)
        free = add(free, choose(both(less(least, value), less(value, most)), one, none))
        value = choose(less(value, least), least, value)
        value = choose(less(most, value), most, value)
        total, size = add(total, value), add(size, choose(less(value, none), sub(none, value), value))
    return total_of(total), total_of(size), total_of(free)


@part
def project(wish, bottom, top, target):
    """Write the multipliers nearest to ``wish`` whose sum is 0, between bounds, to ``target``; False if not found.

    All are float64 (lanes,). A lane whose bounds are equal keeps that value.
    """
    fall, rise = splat(np.inf), splat(-np.inf)
    for at in range(0, wish.size, LANES):
        value, least, most = load(wish, at), load(bottom, at), load(top, at)
        movable, down, up = less(least, most), sub(least, value), sub(most, value)
        fall = choose(both(movable, less(down, fall)), down, fall)
        rise = choose(both(movable, less(rise, up)), up, rise)
    lower, upper = least_lane(fall), most_lane(rise)
    if not lower < upper:
        return False
    shift = min(max(0.0, lower), upper)
    for step in range(SEARCH):  # Newton's method for a piecewise linear function, with bisection
        total, size, free = _sum(wish, bottom, top, shift)
        if abs(total) <= EXACT * size:
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
    rest, size, widest = _kept_between(wish, bottom, top, shift, target)
    if abs(rest) > 1e-9 * size:
        return False
    if abs(rest) <= EXACT * size:
        return True
    for t in range(wish.size):  # the multiplier that has most room takes the rest
        if min(target[t] - bottom[t], top[t] - target[t]) == widest:
            target[t] -= rest
            break
    return abs(rest) < widest


@part
def _kept_between(wish, bottom, top, shift, target):
    """Write the wishes plus ``shift``, kept between their bounds, to ``target``.

    Returns their sum, the sum of their sizes, and the most by which one is away from both of its bounds.
    """
    move, nearness, none = splat(shift), splat(NEAR), splat(0.0)
    rest, size, widest = none, none, none
    for at in range(0, wish.size, LANES):
        value, least, most = add(load(wish, at), move), load(bottom, at), load(top, at)
        near = mul(nearness, sub(most, least))
        # On the bound itself: what lies between its bounds decides the threshold.
        value = choose(less(add(least, near), value), value, least)
        value = choose(less(value, sub(most, near)), value, most)
        store(target, at, value)
        rest, size = add(rest, value), add(size, choose(less(value, none), sub(none, value), value))
        down, up = sub(value, least), sub(most, value)
        room = choose(less(down, up), down, up)
        widest = choose(less(widest, room), room, widest)
    return total_of(rest), total_of(size), most_lane(widest)


@part
def _typical(own):
    """The mean curvature of moving a pair of samples by half each: 1 of an identity."""
    sign, columns = own.sign, own.columns
    total, count = 0.0, 0
    for i in range(0, sign.size, max(1, sign.size // SEEN)):
        if sign[i] != 0:
            for t in range(sign.size):
                if sign[t] != 0 and t != i:
                    total -= np.float64(own.rows[columns[i], columns[t]])
                    count += 1
    return total / max(count, 1)


# Of problems that make steps together, float64 (8, n + 1, width), a row for each. By lane: bounds of the
# multipliers, where they go, how far that is, where f and they began. By column: the steps, and what they add to f.
BOTTOM, TOP, TARGET, STEP, OLD_F, OLD_BETA, STEPS, CHANGES = range(8)
# And in float64 (4, n): by how much the optimality conditions were violated at first, and are now; of the last step its
# square over the matrix, and over the identity.
FIRST, VIOLATION, CURVATURE, SIZE = range(4)


@compiled
def descend(problems, group, tolerance, limit, state):
    """Make steps of some problems, by their numbers, while they pay, at most ``limit`` of each.

    They read the matrix together, and each one's bits are the same in any company.
    ``state``, that of `walk`, gets the number of steps and whether they paid. Where they did not, none is made: f, beta
    and masks are left as they were.
    """
    n, width = group.size, problems.sign.shape[1]
    room = aligned_doubles(8 * (n + 1) * width).reshape(8, n + 1, width)
    facts, going = np.ones((4, n)), np.empty(n, np.bool_)
    for k in range(n):
        state[group[k], DONE], state[group[k], STAGE] = 0, PAIRS
        going[k] = _begin(room, facts, k, one_of(problems, group[k]), tolerance)
    while True:
        moving = False
        for k in range(n):
            if going[k]:
                problem = one_of(problems, group[k])
                going[k] = state[group[k], DONE] < limit and _propose(room, facts, k, problem, tolerance)
                moving = moving or going[k]
        if not moving:
            break
        _read(room, problems, group, going)  # once for all that move
        for k in range(n):
            if going[k]:
                moved, going[k] = _take(room, facts, k, one_of(problems, group[k]))
                state[group[k], DONE] += moved
    for k in range(n):  # a problem whose violation has hardly sunk goes back to where it began
        state[group[k], PAYS] = facts[VIOLATION, k] <= max(KEPT * facts[FIRST, k], tolerance)
        if not state[group[k], PAYS]:
            state[group[k], DONE] = 0
            _take_back(room, k, one_of(problems, group[k]))


@part
def _begin(room, facts, k, problem, tolerance):
    """Note where a problem begins; whether it may make a step."""
    sign, f, beta, bounds = problem.sign, problem.f, problem.beta, problem.bounds
    for t in range(f.size):
        room[TOP, k, t] = bounds[t] if sign[t] > 0 else 0.0
        room[BOTTOM, k, t] = -bounds[t] if sign[t] < 0 else 0.0
        room[OLD_F, k, t], room[OLD_BETA, k, t] = f[t], beta[t]
    violation = violation_of(f, problem.up, problem.low)
    facts[FIRST, k] = facts[VIOLATION, k] = violation
    if not violation >= tolerance:
        return False
    facts[CURVATURE, k] = _typical(problem)
    return True


@part
def _propose(room, facts, k, problem, tolerance):
    """Choose a step; False if there is none to make."""
    f, beta, columns = problem.f, problem.beta, problem.columns
    step, target = room[STEP, k, : f.size], room[TARGET, k, : f.size]
    if not (facts[VIOLATION, k] >= tolerance and facts[CURVATURE, k] > 0.0):
        return False
    rate = splat(-facts[SIZE, k] / facts[CURVATURE, k])
    for at in range(0, f.size, LANES):
        store(step, at, fma(rate, load(f, at), load(beta, at)))
    if not project(step, room[BOTTOM, k, : f.size], room[TOP, k, : f.size], target):
        return False
    steps = room[STEPS, k]
    for at in range(0, f.size, LANES):
        move = sub(load(target, at), load(beta, at))
        store(step, at, move)
        store(steps, columns[at], move)
    return True


@part
def _read(room, problems, group, going):
    """Write what the steps add to f."""
    changes = room[CHANGES]
    changes[:] = 0.0
    if group.size > 1:
        add_products(problems, group, going, room[STEPS], changes)
        return
    problem = one_of(problems, group[0])  # alone it reads no columns but its own
    change = aligned_doubles(problem.f.size)
    add_rows(problem.rows, problem.columns, room[STEP, 0, : change.size], change)
    for t in range(change.size):
        changes[0, problem.columns[t]] = change[t]


@part
def _take(room, facts, k, problem):
    """Go as far as is best. Returns whether that was a step, and whether another one may pay."""
    sign, f, beta, columns = problem.sign, problem.f, problem.beta, problem.columns
    step, changes, target = room[STEP, k], room[CHANGES, k], room[TARGET, k]
    slopes, sizes, curvatures = splat(0.0), splat(0.0), splat(0.0)
    for at in range(0, f.size, LANES):
        move = load(step, at)
        slopes, sizes = fma(move, load(f, at), slopes), fma(move, move, sizes)
        curvatures = fma(move, load(changes, columns[at]), curvatures)
    slope, size, curvature = total_of(slopes), total_of(sizes), total_of(curvatures)
    facts[SIZE, k], facts[CURVATURE, k] = size, curvature
    if not slope < 0.0:
        return False, False
    length = 1.0 if curvature <= -slope else -slope / curvature
    bottom, top, part_of = room[BOTTOM, k], room[TOP, k], splat(length)
    for at in range(0, f.size, LANES):
        least, most = load(bottom, at), load(top, at)
        moved = fma(part_of, load(step, at), load(beta, at))
        moved = choose(less(moved, least), least, moved)
        moved = choose(less(most, moved), most, moved)
        store(beta, at, load(target, at) if length == 1.0 else moved)
        store(f, at, fma(part_of, load(changes, columns[at]), load(f, at)))
    set_masks(sign, beta, problem.bounds, problem.up, problem.low)
    before, facts[VIOLATION, k] = facts[VIOLATION, k], violation_of(f, problem.up, problem.low)
    return True, facts[VIOLATION, k] <= LESS * before


@part
def _take_back(room, k, problem):
    for t in range(problem.f.size):
        problem.f[t], problem.beta[t] = room[OLD_F, k, t], room[OLD_BETA, k, t]
    set_masks(problem.sign, problem.beta, problem.bounds, problem.up, problem.low)
