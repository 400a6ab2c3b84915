"""LIBSVM's own iterations over kernel values that are given, to the last bit, in vectors.

What LIBSVM finds where a problem has many solutions depends on its order, its float32 kernel and how each sum is
rounded. Here is its `Solver` once more (C.-C. Chang and C.-J. Lin, "LIBSVM: a library for support vector machines",
2011), with the same operations in the same order on each sample. It is written with y times the gradient, which changes
signs alone. No product is fused with a sum, as in LIBSVM; `libsvm.is_faithful` compares both in each process.

Samples stay where they are. LIBSVM moves those that it leaves out for a while ("shrinking") to the end, and of equal
candidates it takes the last: ``place`` has where a sample is by its count, ``lane_at`` which sample is there.
"""

from __future__ import annotations

from typing import NamedTuple

import llvmlite.binding
import numpy as np
from numba import types
from numba.extending import get_cython_function_address

from mpitune._jit import LANES
from mpitune._jit.simd import (
    add,
    aligned_zeros,
    choose,
    compiled,
    div,
    inlined,
    least_lane,
    less,
    load,
    marked,
    memory,
    most_lane,
    mul,
    part,
    splat,
    store,
    sub,
    widen,
)
from mpitune.svm.solver.smo import TAU, YES, aligned_doubles

# What scikit-learn's LIBSVM takes scalar products with; integers and addresses are given as integers.
llvmlite.binding.add_symbol("mpitune_ddot", get_cython_function_address("scipy.linalg.cython_blas", "ddot"))
_ddot = types.ExternalFunction("mpitune_ddot", types.float64(*[types.intp] * 5))

SOON = 1000  # iterations between two looks at what may be left out


@compiled
def products_of(x):
    """Scalar products of all pairs of samples, float64 (n, n), from float64 (n, n_features)."""
    n, size, one = x.shape[0], np.array([x.shape[1]]), np.array([1])
    out = np.empty((n, n))
    for i in range(n):
        for j in range(i + 1):
            a, b = x[i].ctypes.data, x[j].ctypes.data
            out[i, j] = out[j, i] = _ddot(size.ctypes.data, a, one.ctypes.data, b, one.ctypes.data)
    return out


class State(NamedTuple):
    """A problem and where its solution stands, by lane: float64, the marks uint8.

    Attributes:
        rows, diagonal: kernel values, float32 (lanes, lanes) and float64; of a lane of no sample anything finite.
        sign, bounds: +1, -1, or 0 for no sample; the largest multiplier.
        f, alpha: y * gradient, and the multipliers.
        full: y * LIBSVM's ``G_bar``, what multipliers at their bound add to f, but for what is in ``open_``.
        up, low: YES where y * alpha may rise, or fall, and the sample is not left out; else 0.
        place: see the module.
        lane_at: int64 (samples,), see the module.
        open_: int64, lanes + 1 that came to their bound, or negative, that left it; the first element counts them.
        lane_of: int64, by lane, where it is in the whole problem, of which `_gathered` takes a part.
    """

    rows: np.ndarray
    diagonal: np.ndarray
    sign: np.ndarray
    bounds: np.ndarray
    f: np.ndarray
    alpha: np.ndarray
    full: np.ndarray
    up: np.ndarray
    low: np.ndarray
    place: np.ndarray
    lane_at: np.ndarray
    open_: np.ndarray
    lane_of: np.ndarray


def begun(rows: np.ndarray, diagonal: np.ndarray, sign: np.ndarray, bounds: np.ndarray, lane_at: np.ndarray) -> State:
    """A problem before its first iteration, samples in the order of ``lane_at``; lanes are whole vectors."""
    lanes = len(rows)
    f, alpha, full, place = aligned_zeros((4, lanes), np.float64)
    place[lane_at] = np.arange(len(lane_at))
    up, low = np.zeros((2, lanes), np.uint8)
    open_ = np.zeros(4 * min(len(lane_at), SOON) + 8, np.int64)
    each = np.arange(lanes)
    return State(rows, diagonal, sign, bounds, f, alpha, full, up, low, place, lane_at.copy(), open_, each)


@inlined
def _mark(own, t):
    at_bound, rises = own.alpha[t] >= own.bounds[t], own.sign[t] > 0
    none = not at_bound and own.alpha[t] <= 0.0
    own.up[t] = 0 if (at_bound if rises else none) else YES
    own.low[t] = 0 if (none if rises else at_bound) else YES


@inlined
def _later(best, at, value, place):
    """Where the best value is, in each lane: at the new ``place`` if ``value`` is less, or equal with a later place."""
    later = choose(less(at, place), place, at)
    return choose(less(value, best), place, choose(less(best, value), at, later))


@inlined
def _last_place(best, at, least):
    """The last place in the lanes whose best value is the ``least`` of all."""
    return np.int64(most_lane(choose(less(splat(least), best), splat(-1.0), at)))


@inlined
def _step_and_first(own, i, change_i, j, change_j):
    """Bring f up to date after y * alpha of a pair has changed; return which lane most wants to rise, -1 for none."""
    rows, f_, up, places, lanes = memory(own.rows), memory(own.f), memory(own.up), memory(own.place), own.f.size
    first, second, nothing = splat(change_i), splat(change_j), splat(np.inf)
    least, at = nothing, splat(-1.0)
    for t in range(0, lanes, LANES):
        change = add(
            mul(widen(load(rows, i * lanes + t)), first), mul(widen(load(rows, j * lanes + t)), second)
        )  # fmt: skip
        value = add(load(f_, t), change)
        store(f_, t, value)
        value = choose(marked(load(up, t)), value, nothing)
        at = _later(least, at, value, load(places, t))
        least = choose(less(value, least), value, least)
    wanted = least_lane(least)
    return own.lane_at[_last_place(least, at, wanted)] if wanted < np.inf else np.int64(-1)


@inlined
def _second(own, i, tolerance):
    """The lane that wins most together with i; -1 if no pair violates the conditions by the tolerance."""
    rows, f_, low, places, lanes = memory(own.rows), memory(own.f), memory(own.low), memory(own.place), own.f.size
    diagonals, least, mine = memory(own.diagonal), splat(own.f[i]), splat(own.diagonal[i])
    nothing, zero, two, tau = splat(-np.inf), splat(0.0), splat(2.0), splat(TAU)
    most, best, at = nothing, splat(1.0), splat(-1.0)
    for t in range(0, lanes, LANES):
        value = choose(marked(load(low, t)), load(f_, t), nothing)
        most = choose(less(most, value), value, most)
        difference = sub(value, least)
        curvature = sub(add(mine, load(diagonals, t)), mul(two, widen(load(rows, i * lanes + t))))
        curvature = choose(less(zero, curvature), curvature, tau)
        loss = sub(zero, div(mul(difference, difference), curvature))
        loss = choose(less(zero, difference), loss, splat(1.0))
        at = _later(best, at, loss, load(places, t))
        best = choose(less(loss, best), loss, best)
    wanted = least_lane(best)
    if most_lane(most) - own.f[i] < tolerance or wanted > 0.0:
        return np.int64(-1)
    return own.lane_at[_last_place(best, at, wanted)]


@inlined
def _move(own, i, j):
    """Move the multipliers of a pair as far as their bounds let them."""
    alpha, f, y_i, y_j = own.alpha, own.f, own.sign[i], own.sign[j]
    most_i, most_j, a, b = own.bounds[i], own.bounds[j], alpha[i], alpha[j]
    curvature = own.diagonal[i] + own.diagonal[j] - 2.0 * np.float64(own.rows[i, j])
    curvature = curvature if curvature > 0.0 else TAU
    if y_i != y_j:
        delta = (-(y_i * f[i]) - y_j * f[j]) / curvature
        rest = a - b
        a, b = a + delta, b + delta
        if rest > 0.0:
            if b < 0.0:
                a, b = rest, 0.0
        elif a < 0.0:
            a, b = 0.0, -rest
        if rest > most_i - most_j:
            if a > most_i:
                a, b = most_i, most_i - rest
        elif b > most_j:
            a, b = most_j + rest, most_j
    else:
        delta = (y_i * f[i] - y_j * f[j]) / curvature
        rest = a + b
        a, b = a - delta, b + delta
        if rest > most_i:
            if a > most_i:
                a, b = most_i, rest - most_i
        elif b < 0.0:
            a, b = rest, 0.0
        if rest > most_j:
            if b > most_j:
                a, b = rest - most_j, most_j
        elif a < 0.0:
            a, b = 0.0, rest
    alpha[i], alpha[j] = a, b


@inlined
def _note(own, t, was_at_bound):
    """Note that a multiplier has come to its bound, or left it."""
    if was_at_bound != (own.alpha[t] >= own.bounds[t]):
        own.open_[0] += 1
        lane = own.lane_of[t]
        own.open_[own.open_[0]] = -lane - 1 if was_at_bound else lane + 1


@part
def _write_down(own):
    """Bring ``full`` up to date with what was noted, in its order."""
    full = own.full
    for noted in own.open_[1 : own.open_[0] + 1]:
        t = abs(noted) - 1
        row, size = own.rows[t], own.sign[t] * own.bounds[t]
        size = size if noted > 0 else -size
        for s in range(full.size):
            full[s] += size * np.float64(row[s])
    own.open_[0] = 0


@part
def _all_again(own, active):
    """Take all samples in again, with the f that they have by now."""
    count, f, alpha, rows = own.lane_at.size, own.f, own.alpha, own.rows
    if active == count:
        return
    _write_down(own)
    new = own.full - own.sign
    for place in range(active):
        t = own.lane_at[place]
        if 0.0 < alpha[t] < own.bounds[t]:
            size, row = own.sign[t] * alpha[t], rows[t]
            for s in range(new.size):
                new[s] += size * np.float64(row[s])
    for place in range(active, count):
        t = own.lane_at[place]
        f[t] = new[t]
        _mark(own, t)


@part
def _rests(own, t, least, most):
    """Whether a sample may be left out: it is at a bound and wants no other."""
    up, low = own.up[t] != 0, own.low[t] != 0
    return own.f[t] > most if up and not low else own.f[t] < least if low and not up else False


@part
def _extremes(own, active):
    """Least f of what may rise, and most of what may fall."""
    least, most = np.inf, -np.inf
    for place in range(active):
        t = own.lane_at[place]
        least, most = min(least, own.f[t] if own.up[t] else np.inf), max(most, own.f[t] if own.low[t] else -np.inf)
    return least, most


@part
def _left_out(own, active, least, most):
    """Leave out what rests; return how many are left."""
    lane_at, place = own.lane_at, 0
    while place < active:
        if _rests(own, lane_at[place], least, most):
            active -= 1
            while active > place and _rests(own, lane_at[active], least, most):
                active -= 1
            if active > place:
                lane_at[place], lane_at[active] = lane_at[active], lane_at[place]
                own.place[lane_at[place]], own.place[lane_at[active]] = place, active
        place += 1
    for place in range(active, lane_at.size):
        own.up[lane_at[place]] = own.low[lane_at[place]] = 0
    return active


@part
def _gathered(own, active):
    """The ``active`` samples that are not left out as a problem of their own, which stays in the processor's cache."""
    width = -(-active // LANES) * LANES
    values, marks = aligned_doubles(6 * width).reshape(6, width), np.zeros((2, width), np.uint8)
    raw, lane_of = aligned_doubles(active * width // 2), np.zeros(width, np.int64)
    rows = raw.view(np.float32).reshape(active, width)
    new = State(
        rows, values[0], values[1], values[2], values[3], values[4], own.full, marks[0], marks[1], values[5],
        np.arange(active), own.open_, lane_of,
    )  # fmt: skip
    for p in range(active):
        t = own.lane_at[p]
        row, into = own.rows[t], rows[p]
        for q in range(active):
            into[q] = row[own.lane_at[q]]
        new.diagonal[p], new.sign[p], new.bounds[p] = own.diagonal[t], own.sign[t], own.bounds[t]
        new.f[p], new.alpha[p], new.up[p], new.low[p] = own.f[t], own.alpha[t], own.up[t], own.low[t]
        new.place[p], lane_of[p] = p, own.lane_of[t]
    return new


@part
def _put_back(own, whole):
    """Write what has become of gathered samples, and their order, to the whole problem."""
    for place in range(own.lane_at.size):
        t = own.lane_at[place]
        lane = own.lane_of[t]
        whole.f[lane], whole.alpha[lane], whole.place[lane], whole.lane_at[place] = own.f[t], own.alpha[t], place, lane
        whole.up[lane], whole.low[lane] = own.up[t], own.low[t]


@part
def _threshold(own):
    highest, lowest, total, free = np.inf, -np.inf, 0.0, 0
    for t in own.lane_at:
        if own.up[t] and own.low[t]:
            total += own.f[t]
            free += 1
        elif own.up[t]:
            highest = min(highest, own.f[t])
        else:
            lowest = max(lowest, own.f[t])
    return total / free if free else (highest + lowest) / 2


@compiled
def solve_as_libsvm(whole, tolerance, shrinking, limit):
    """Solve from zero, in ``limit`` iterations at most unless it is -1.

    Returns the threshold, how many iterations it took, and whether any multiplier was at its bound on the way.
    """
    count, iterations, again, reached, own = whole.lane_at.size, 0, False, False, whole
    active, next_look, spent = count, min(count, SOON) + 1, 0  # spent: iterations since the last gathering
    for t in own.lane_at:
        own.f[t] = -own.sign[t]
        _mark(own, t)
    i = j = np.int64(0)
    change_i = change_j = 0.0
    while True:
        first = _step_and_first(own, i, change_i, j, change_j)
        next_look -= 1
        if next_look == 0:
            next_look = min(count, SOON)
            if shrinking:
                if own.open_[0] > own.open_.size // 2:  # there may be no need
                    _write_down(whole)
                least, most = _extremes(own, active)
                if not again and most - least <= tolerance * 10:
                    again = True
                    _put_back(own, whole)
                    _all_again(whole, active)
                    own, active, spent = whole, count, 0
                active = _left_out(own, active, least, most)
                if spent * (own.f.size - active) > active * active:
                    _put_back(own, whole)
                    own, spent = _gathered(own, active), 0
                i = j = np.int64(0)
                first = _step_and_first(own, i, 0.0, j, 0.0)
        second = _second(own, first, tolerance) if first >= 0 else first
        if second < 0:
            _put_back(own, whole)
            _all_again(whole, active)
            own, active, spent = whole, count, 0
            i = j = np.int64(0)
            first = _step_and_first(own, i, 0.0, j, 0.0)
            second = _second(own, first, tolerance) if first >= 0 else first
            if second < 0:
                return _threshold(own), iterations, reached
            next_look = 1
        if iterations == limit:
            return _threshold(own), iterations, reached
        iterations += 1
        spent += 1
        i, j = first, second
        old_i, old_j = own.alpha[i], own.alpha[j]
        _move(own, i, j)
        reached = reached or own.alpha[i] >= own.bounds[i] or own.alpha[j] >= own.bounds[j]
        change_i, change_j = own.sign[i] * (own.alpha[i] - old_i), own.sign[j] * (own.alpha[j] - old_j)
        _mark(own, i)
        _mark(own, j)
        if shrinking:
            _note(own, i, old_i >= own.bounds[i])
            _note(own, j, old_j >= own.bounds[j])
