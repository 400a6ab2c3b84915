"""Sequential minimal optimisation over a kernel matrix that is read in place.

One binary problem, written with the signed multipliers ``b = y * alpha``:

    minimise  1/2 b'Kb - y'b   subject to   sum(b) = 0,   0 <= y b <= bound

where the bound of a sample is C times its weight. The gradient ``f = K b - y`` needs no label in the inner loops. As
``sum(b) = 0``, nothing but a constant in ``f`` changes when K is replaced by K - u1' - 1u', and half its diagonal
is taken for u: the matrices here have a zero diagonal and hold minus half the squared distances of the samples in
the space of the kernel, with which a pair has its curvature in one number. Of an RBF kernel that is K - 1, which
keeps its precision in float32 when gamma is tiny.
``f`` and ``b`` are double over the one float32 matrix: they are updated, never recomputed.

An iteration, lane by lane, where ``up`` and ``low`` are the lanes whose b may rise and fall:

    i = argmin of f over up
    stop if max f over low - f_i < tolerance
    j = argmax of (f_t - f_i)^2 / -2 K_it  over t in low with f_t > f_i         K has a zero diagonal here
    d = min((f_j - f_i) / -2 K_ij, room of i to rise, room of j to fall)
    b_i += d;  b_j -= d;  f += d (K_i - K_j)

`_step_and_first` does the last line together with the first of the next iteration, in one pass over f; `_second` finds
j. The pair to move is chosen by second order (WSS2: Fan, Chen and Lin, "Working set selection using second
order information for training support vector machines", JMLR 6, 2005), the stopping rule is LIBSVM's.

Lanes. A problem covers whole blocks of LANES columns of the matrix: those that hold at least one of its samples.
Lane ``t`` is column ``LANES * blocks[t // LANES] + t % LANES``. Lanes of no sample have sign 0: neither mask admits
them, their f is meaningless.

Arrays of the compiled functions here and in `walk`, all contiguous:

    rows         float32 (width, width)        K - 1
    blocks       int32 (n_blocks,)             blocks of LANES columns that the problem covers
    columns      int64 (lanes,)                column of each lane; lanes = LANES * n_blocks
    sign         int8 (lanes,)                 +1, -1, or 0 for a lane of no sample
    weights      float64 (lanes,)              factor of C in the bound of each lane
    bounds       float64 (lanes,)              C times the weight, of one C
    f, beta      float64 (lanes,)              gradient and signed multipliers
    up, low      uint8 (lanes,)                YES where beta may rise, or fall, else 0
    extremes     float64 (2,)                  min f over ``up``, max f over ``low``
    penalties    float64 (n_penalties,)        C, ascending
    betas        float64 (n_penalties, lanes)  solutions
    rhos, iterations, converged                float64, int64 and bool (n_penalties,)
"""

from __future__ import annotations

import numpy as np

from mpitune._jit import LANES, WIDE
from mpitune._jit.simd import (
    add,
    choose,
    div,
    fma,
    inlined,
    item,
    lane,
    lane_of,
    least_lane,
    less,
    load,
    marked,
    masked,
    memory,
    most_lane,
    mul,
    narrow,
    part,
    prefetch,
    splat,
    store,
    widen,
)

CONVERGED, LIMIT = 0, 1
# Blocks, an even number. `_step_and_first` notes in which run of so many the least f is, and only that run is searched
# for it, without a branch: which of its blocks it is cannot be foretold.
RUN = 128 // LANES
# Of a row that comes from memory FAR blocks are asked for at once, and then in each step of a scan the one so far on: a
# processor by itself asks for few, and stops at each 4 KiB. Rows of no more than LONG elements stay in a cache.
FAR, LONG = 1024 // LANES, 1536
YES = 255  # in a mask: all bits, so that sign extension makes a mask of wider elements
TAU = 1e-12  # LIBSVM's floor of the curvature of a pair


@part
def aligned_doubles(count):
    """float64 zeros (count,) that begin on a 64-byte border."""
    raw = np.zeros(count + 8)
    start = (-raw.ctypes.data // 8) % 8
    return raw[start : start + count]


@part
def add_rows(rows, columns, steps, out):
    """Add each lane's row, times its part of float64 ``steps`` (lanes,), to ``out`` (lanes,)."""
    starts, sizes, count = np.empty(steps.size, np.int64), np.empty(steps.size), 0
    for t in range(steps.size):
        if steps[t] != 0.0:
            starts[count], sizes[count] = columns[t] * rows.shape[1], steps[t]
            count += 1
    fours, far = count // 4 * 4, FAR * LANES if rows.shape[1] > LONG else 0
    for p in range(0, fours, 4):  # four rows at a time: ``out`` is read and written less often
        one, two, three, four = splat(sizes[p]), splat(sizes[p + 1]), splat(sizes[p + 2]), splat(sizes[p + 3])
        for at in range(0, out.size, LANES):
            column, later = columns[at], columns[min(at + far, out.size - LANES)]
            for q in range(p, p + 4):
                prefetch(rows, starts[q] + later)
            value = fma(one, widen(load(rows, starts[p] + column)), load(out, at))
            value = fma(two, widen(load(rows, starts[p + 1] + column)), value)
            value = fma(three, widen(load(rows, starts[p + 2] + column)), value)
            store(out, at, fma(four, widen(load(rows, starts[p + 3] + column)), value))
    for p in range(fours, count):
        size = splat(sizes[p])
        for at in range(0, out.size, LANES):
            prefetch(rows, starts[p] + columns[min(at + far, out.size - LANES)])
            store(out, at, fma(size, widen(load(rows, starts[p] + columns[at])), load(out, at)))


@inlined
def _ask_two(rows, row, blocks, b, last):
    """Ask for blocks b and b + 1 of a row, none beyond the last."""
    prefetch(rows, row + np.intp(item(blocks, min(b, last))) * LANES)
    if LANES == WIDE:  # otherwise both are in one cache line
        prefetch(rows, row + np.intp(item(blocks, min(b + 1, last))) * LANES)


@inlined
def _ask_first(rows, row, blocks, far):
    """Ask for the first blocks of a row."""
    for b in range(0, far, 2):
        _ask_two(rows, row, blocks, b, far - 1)


@inlined
def _step_block(rows, row_i, row_j, column, f, up, t, step, back, least):
    """One block of `_step_and_first` on one accumulator."""
    value = fma(step, widen(load(rows, row_i + column)), load(f, t))
    value = fma(back, widen(load(rows, row_j + column)), value)
    store(f, t, value)
    candidate = choose(marked(load(up, t)), value, splat(np.inf))
    return choose(less(candidate, least), candidate, least)


@part
def _step_and_first(rows, row_i, row_j, far, blocks, n_blocks, f, up, delta):
    """Move f by ``delta * (K_i - K_j)``; return (min f over ``up``, its lane)."""
    step, back = splat(delta), splat(-delta)
    least_0, least_1, where_0, where_1 = splat(np.inf), splat(np.inf), splat(0.0), splat(1.0)
    for run in range(0, n_blocks, RUN):
        end, before_0, before_1 = min(run + RUN, n_blocks), least_0, least_1
        for b in range(run, end - 1, 2):  # two accumulators hide the latency of the comparisons
            at_0, at_1 = np.intp(item(blocks, b)) * LANES, np.intp(item(blocks, b + 1)) * LANES
            _ask_two(rows, row_j, blocks, b + far, n_blocks - 1)
            least_0 = _step_block(rows, row_i, row_j, at_0, f, up, b * LANES, step, back, least_0)
            least_1 = _step_block(rows, row_i, row_j, at_1, f, up, (b + 1) * LANES, step, back, least_1)
        if (end - run) % 2:
            at_0 = np.intp(item(blocks, end - 1)) * LANES
            least_0 = _step_block(rows, row_i, row_j, at_0, f, up, (end - 1) * LANES, step, back, least_0)
        where_0 = choose(less(least_0, before_0), splat(np.float64(run)), where_0)
        where_1 = choose(less(least_1, before_1), splat(np.float64(run + 1)), where_1)
    better = less(least_1, least_0)
    least_0, where_0 = choose(better, least_1, least_0), choose(better, where_1, where_0)
    least = least_lane(least_0)
    p = lane_of(least_0, least)
    b = np.intp(lane(where_0, p))
    end, t = min(b + RUN, n_blocks), b * LANES + p
    for k in range(RUN - 2, -2, -2):
        candidate = (b + k if b + k < end else b) * LANES + p
        there = (item(f, candidate) == least) & (item(up, candidate) != 0)
        t = candidate if there else t
    return least, t


@inlined
def _second_block(rows, row, f, low, t, base, here, gain, cost, where):
    """One block of `_second` on one set of accumulators."""
    zero, floor = splat(np.float32(0)), splat(np.float32(-TAU))
    gap = masked(load(low, t), narrow(add(load(f, t), base)))
    gap = choose(less(zero, gap), gap, zero)
    bend = load(rows, row)
    bend = choose(less(floor, bend), floor, bend)
    square = mul(gap, gap)
    better = less(mul(square, cost), mul(gain, bend))
    return choose(better, square, gain), choose(better, bend, cost), choose(better, here, where)


@part
def _second(rows, row_i, far, blocks, n_blocks, f, low, f_i):
    """(The lane of ``low`` that lowers the objective most together with i, its f_t - f_i); (-1, 0) if none does.

    The lane is that of max (f_t - f_i)^2 / -(K - 1)_it. Gains are kept as numerator and denominator, which is negative,
    and compared crosswise, which spares divisions.
    """
    base, zero, one, two = splat(-f_i), splat(np.float32(0)), splat(np.float32(1)), splat(np.float32(2))
    gain_0, gain_1, cost_0, cost_1 = zero, zero, splat(np.float32(-1)), splat(np.float32(-1))
    here, where_0, where_1 = zero, zero, zero
    for b in range(0, n_blocks - 1, 2):  # two sets of accumulators hide the latency
        at_0, at_1 = row_i + np.intp(item(blocks, b)) * LANES, row_i + np.intp(item(blocks, b + 1)) * LANES
        _ask_two(rows, row_i, blocks, b + far, n_blocks - 1)
        t = b * LANES
        gain_0, cost_0, where_0 = _second_block(rows, at_0, f, low, t, base, here, gain_0, cost_0, where_0)
        gain_1, cost_1, where_1 = _second_block(rows, at_1, f, low, t + LANES, base, here, gain_1, cost_1, where_1)
        here = add(here, two)
    if n_blocks % 2:
        b = n_blocks - 1
        at_0 = row_i + np.intp(item(blocks, b)) * LANES
        gain_0, cost_0, where_0 = _second_block(rows, at_0, f, low, b * LANES, base, here, gain_0, cost_0, where_0)
    better = less(mul(gain_1, cost_0), mul(gain_0, cost_1))
    where_0 = choose(better, add(where_1, one), where_0)
    gains = div(choose(better, gain_1, gain_0), choose(better, cost_1, cost_0))
    best = least_lane(gains)
    if not best < 0:
        return np.intp(-1), np.float32(0)
    p = lane_of(gains, best)
    t = np.intp(lane(where_0, p)) * LANES + p
    return t, np.float32(item(f, t) - f_i)


@part
def _most(f, low, n_blocks):
    """Max f over ``low``."""
    most = splat(-np.inf)
    for t in range(0, n_blocks * LANES, LANES):
        candidate = choose(marked(load(low, t)), load(f, t), splat(-np.inf))
        most = choose(less(most, candidate), candidate, most)
    return most_lane(most)


@part
def set_masks(sign, beta, bounds, up, low):
    """``up``: lanes whose beta may rise, ``low``: lanes whose beta may fall, as bytes."""
    for t in range(sign.size):
        up[t] = YES if sign[t] != 0 and beta[t] < (bounds[t] if sign[t] > 0 else 0.0) else 0
        low[t] = YES if sign[t] != 0 and beta[t] > (0.0 if sign[t] > 0 else -bounds[t]) else 0


@part
def iterate(rows, blocks, sign, f, beta, up, low, bounds, tolerance, limit, extremes):
    """At most ``limit`` iterations. Returns (status, iterations).

    ``bounds``: of the multipliers, per lane. ``extremes`` receives min f over ``up`` and max f over ``low``. Whatever
    the status, ``f`` and ``beta`` agree with each other, so that a later call goes on from there.
    """
    width = rows.shape[1]
    # Memory without counted references, see `simd`: an iteration on a gathered problem takes less than a microsecond.
    rows_, blocks_, f_, up_, low_ = memory(rows), memory(blocks), memory(f), memory(up), memory(low)
    far = min(FAR, blocks.size) if width > LONG else 0
    row_i = row_j = np.intp(0)  # a plain 0 would be a type of its own
    delta, done, enough = 0.0, 0, np.float32(tolerance)
    while True:
        # The step of the iteration before, none at first, and the lane that most wants to rise after it.
        least, i = _step_and_first(rows_, row_i, row_j, far, blocks_, blocks.size, f_, up_, delta)
        delta, j, gap = 0.0, np.intp(-1), np.float32(0)
        if done < limit:
            row_i = (np.intp(item(blocks_, i // LANES)) * LANES + i % LANES) * width
            _ask_first(rows_, row_i, blocks_, far)
            j, gap = _second(rows_, row_i, far, blocks_, blocks.size, f_, low_, least)
        if not gap > enough:  # perhaps all are as small, or it was not computed
            extremes[0], extremes[1] = least, _most(f_, low_, blocks.size)
            if not extremes[1] - extremes[0] >= tolerance:
                return CONVERGED, done
            if done == limit:
                return LIMIT, done
        if j < 0:
            return CONVERGED, done
        column_j = np.intp(item(blocks_, j // LANES)) * LANES + j % LANES
        # Move the pair as far as the objective falls, or to the nearer of the two bounds, which is then met exactly.
        row_j = column_j * width
        _ask_first(rows_, row_j, blocks_, far)
        most_i, most_j, beta_i, beta_j = sign[i] * bounds[i], sign[j] * bounds[j], beta[i], beta[j]
        top_i, bottom_i, top_j, bottom_j = max(most_i, 0.0), min(most_i, 0.0), max(most_j, 0.0), min(most_j, 0.0)
        curvature = -2.0 * np.float64(item(rows_, row_i + column_j))
        delta = (item(f_, j) - least) / max(curvature, TAU)
        room_i, room_j = top_i - beta_i, beta_j - bottom_j
        delta = min(delta, room_i, room_j)
        beta_i = top_i if delta == room_i else beta_i + delta
        beta_j = bottom_j if delta == room_j else beta_j - delta
        beta[i], beta[j] = beta_i, beta_j
        up[i], low[i] = YES if beta_i < top_i else 0, YES if beta_i > bottom_i else 0
        up[j], low[j] = YES if beta_j < top_j else 0, YES if beta_j > bottom_j else 0
        done += 1
