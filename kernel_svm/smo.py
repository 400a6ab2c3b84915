"""Sequential minimal optimisation over a kernel matrix that is read in place.

One binary problem, written with the signed multipliers ``b = y * alpha``:

    minimise  1/2 b'Kb - y'b   subject to   sum(b) = 0,   0 <= y b <= bound

where the bound of a sample is C times its weight. The gradient ``f = K b - y`` needs no label in the inner loops. As
``sum(b) = 0``, nothing but a constant in ``f`` changes when K is replaced by K - u1' - 1u', and half its diagonal
is taken for u: the matrices here have a zero diagonal and hold minus half the squared distances of the samples in
the space of the kernel, with which a pair has its curvature in one number. Of an RBF kernel that is K - 1, which
keeps its precision in float32 when gamma is tiny.
``f`` and ``b`` are double over the one float32 matrix: they are updated, never recomputed.

The pair to move is chosen by second order (WSS2: Fan, Chen and Lin, "Working set selection using second
order information for training support vector machines", JMLR 6, 2005), the stopping rule is LIBSVM's.

Lanes. A problem covers whole blocks of LANES columns of the matrix: those that hold at least one of its samples.
Lane ``t`` is column ``LANES * blocks[t // LANES] + t % LANES``. Lanes of no sample have sign 0: neither mask admits
them, their f is meaningless.

Arrays of the compiled functions here and in `walk`, all contiguous:

    rows         float32 (any, width)          rows of K - 1
    slot         int32 (width,)                row of ``rows`` that is a column's row of K - 1; -1: not in memory now
    blocks       int32 (n_blocks,)             blocks of LANES columns that the problem covers
    columns      int64 (lanes,)                column of each lane; lanes = LANES * n_blocks
    sign         int8 (lanes,)                 +1, -1, or 0 for a lane of no sample
    weights      float64 (lanes,)              factor of C in the bound of each lane
    bounds       float64 (lanes,)              C times the weight, of one C
    f, beta      float64 (lanes,)              gradient and signed multipliers
    up, low      uint8 (lanes,)                1 where beta may rise, or fall
    extremes     float64 (2,)                  min f over ``up``, max f over ``low``
    penalties    float64 (n_penalties,)        C, ascending
    state        int64 (8,)                    progress of paths: PATH, AT, STAGE, DONE ... of `walk`
    wanted       int64 (lanes,)                columns whose rows are missing, the first ``state[WANTED]``
    betas        float64 (n_penalties, lanes)  solutions
    rhos, iterations, converged                float64, int64 and bool (n_penalties,)
"""

# mypy: allow-untyped-defs
# Compiled functions have no annotations: numba infers their types.

from __future__ import annotations

import numpy as np

from jit import LANES
from jit.simd import (
    both,
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
    memory,
    most_lane,
    mul,
    narrow,
    nonzero,
    part,
    prefetch,
    splat,
    store,
    sub,
    widen,
)

CONVERGED, LIMIT, MISSING = 0, 1, 2
PREFETCH = 1536  # elements of a row that are asked for in advance: processors by themselves stop at each 4 KiB
TAU = 1e-12  # LIBSVM's floor of the curvature of a pair


@part
def aligned_doubles(count):
    """float64 zeros (count,) that begin on a 64-byte border."""
    raw = np.zeros(count + 8)
    start = (-raw.ctypes.data // 8) % 8
    return raw[start : start + count]


@part
def add_rows(rows, slot, columns, steps, out):
    """Add each lane's row, which must be there, times its part of float64 ``steps`` (lanes,) to ``out`` (lanes,)."""
    starts, sizes, count = np.empty(steps.size, np.int64), np.empty(steps.size), 0
    for t in range(steps.size):
        if steps[t] != 0.0:
            starts[count], sizes[count] = np.int64(slot[columns[t]]) * rows.shape[1], steps[t]
            count += 1
    fours, ahead = count // 4 * 4, PREFETCH if rows.shape[1] > PREFETCH else 0
    for p in range(0, fours, 4):  # four rows at a time: ``out`` is read and written less often
        one, two, three, four = splat(sizes[p]), splat(sizes[p + 1]), splat(sizes[p + 2]), splat(sizes[p + 3])
        for at in range(0, out.size, LANES):
            column = columns[at]
            for q in range(p, p + 4):
                prefetch(rows, starts[q] + column + ahead)
            value = fma(one, widen(load(rows, starts[p] + column)), load(out, at))
            value = fma(two, widen(load(rows, starts[p + 1] + column)), value)
            value = fma(three, widen(load(rows, starts[p + 2] + column)), value)
            store(out, at, fma(four, widen(load(rows, starts[p + 3] + column)), value))
    for p in range(fours, count):
        size = splat(sizes[p])
        for at in range(0, out.size, LANES):
            prefetch(rows, starts[p] + columns[at] + ahead)
            store(out, at, fma(size, widen(load(rows, starts[p] + columns[at])), load(out, at)))


@inlined
def _step_block(rows, row_i, row_j, ahead, column, f, up, low, t, step, back, b, least, where, most):
    """One block of `_step_and_first` on one set of accumulators."""
    prefetch(rows, row_j + column + ahead)
    value = fma(step, widen(load(rows, row_i + column)), load(f, t))
    value = fma(back, widen(load(rows, row_j + column)), value)
    store(f, t, value)
    candidate = choose(nonzero(load(up, t)), value, splat(np.inf))
    better = less(candidate, least)
    least = choose(better, candidate, least)
    where = choose(better, splat(np.int32(b)), where)
    candidate = choose(nonzero(load(low, t)), value, splat(-np.inf))
    return least, where, choose(less(most, candidate), candidate, most)


@part
def _step_and_first(rows, row_i, row_j, ahead, blocks, n_blocks, f, up, low, delta):
    """Move f by ``delta * (K_i - K_j)``; return (min f over ``up``, its lane, max f over ``low``)."""
    step, back = splat(delta), splat(-delta)
    least_0, where_0, most_0 = splat(np.inf), splat(np.int32(0)), splat(-np.inf)
    least_1, where_1, most_1 = splat(np.inf), splat(np.int32(0)), splat(-np.inf)
    for b in range(0, n_blocks - 1, 2):  # two sets of accumulators hide the latency of the comparisons
        at_0, at_1 = np.intp(item(blocks, b)) * LANES, np.intp(item(blocks, b + 1)) * LANES
        least_0, where_0, most_0 = _step_block(
            rows, row_i, row_j, ahead, at_0, f, up, low, b * LANES, step, back, b, least_0, where_0, most_0
        )
        least_1, where_1, most_1 = _step_block(
            rows, row_i, row_j, ahead, at_1, f, up, low, (b + 1) * LANES, step, back, b + 1, least_1, where_1, most_1
        )
    if n_blocks % 2:
        b = n_blocks - 1
        at_0 = np.intp(item(blocks, b)) * LANES
        least_0, where_0, most_0 = _step_block(
            rows, row_i, row_j, ahead, at_0, f, up, low, b * LANES, step, back, b, least_0, where_0, most_0
        )
    better = less(least_1, least_0)
    least_0 = choose(better, least_1, least_0)
    where_0 = choose(better, where_1, where_0)
    least, most = least_lane(least_0), most_lane(choose(less(most_0, most_1), most_1, most_0))
    p = lane_of(least_0, least)
    return least, np.intp(lane(where_0, p)) * LANES + p, most


@inlined
def _second_block(rows, row, ahead, f, low, t, base, b, gain, cost, where):
    """One block of `_second` on one set of accumulators."""
    zero, tau = splat(np.float32(0)), splat(np.float32(TAU))
    prefetch(rows, row + ahead)
    gap = narrow(sub(load(f, t), base))
    curvature = sub(zero, load(rows, row))
    curvature = choose(less(curvature, tau), tau, curvature)
    square = mul(gap, choose(less(zero, gap), gap, zero))
    better = both(nonzero(load(low, t)), less(mul(gain, curvature), mul(square, cost)))
    return (
        choose(better, square, gain),
        choose(better, curvature, cost),
        choose(better, splat(np.int32(b)), where),
    )


@part
def _second(rows, row_i, ahead, blocks, n_blocks, f, low, f_i):
    """The lane of ``low`` that lowers the objective most together with i: max (f_t - f_i)^2 / -(K - 1)_it.

    -1 if there is none. Gains are kept as numerator and denominator and compared crosswise, which spares divisions.
    """
    base = splat(f_i)
    gain_0, cost_0, where_0 = splat(np.float32(0)), splat(np.float32(1)), splat(np.int32(0))
    gain_1, cost_1, where_1 = splat(np.float32(0)), splat(np.float32(1)), splat(np.int32(0))
    for b in range(0, n_blocks - 1, 2):
        at_0, at_1 = np.intp(item(blocks, b)) * LANES, np.intp(item(blocks, b + 1)) * LANES
        gain_0, cost_0, where_0 = _second_block(
            rows, row_i + at_0, ahead, f, low, b * LANES, base, b, gain_0, cost_0, where_0
        )
        gain_1, cost_1, where_1 = _second_block(
            rows, row_i + at_1, ahead, f, low, (b + 1) * LANES, base, b + 1, gain_1, cost_1, where_1
        )
    if n_blocks % 2:
        b = n_blocks - 1
        at_0 = np.intp(item(blocks, b)) * LANES
        gain_0, cost_0, where_0 = _second_block(
            rows, row_i + at_0, ahead, f, low, b * LANES, base, b, gain_0, cost_0, where_0
        )
    better = less(mul(gain_0, cost_1), mul(gain_1, cost_0))
    gain_0 = choose(better, gain_1, gain_0)
    cost_0 = choose(better, cost_1, cost_0)
    where_0 = choose(better, where_1, where_0)
    gains = div(gain_0, cost_0)
    best = most_lane(gains)
    p = lane_of(gains, best)
    return np.intp(lane(where_0, p)) * LANES + p if best > 0 else np.intp(-1)


@part
def set_masks(sign, beta, bounds, up, low):
    """``up``: lanes whose beta may rise, ``low``: lanes whose beta may fall, as bytes."""
    for t in range(sign.size):
        up[t] = sign[t] != 0 and beta[t] < (bounds[t] if sign[t] > 0 else 0.0)
        low[t] = sign[t] != 0 and beta[t] > (0.0 if sign[t] > 0 else -bounds[t])


@part
def iterate(rows, slot, blocks, sign, f, beta, up, low, bounds, tolerance, limit, extremes):
    """At most ``limit`` iterations. Returns (status, iterations, column of the row that is missing or -1).

    ``bounds``: of the multipliers, per lane. ``extremes`` receives min f over ``up`` and max f over ``low``. Whatever
    the status, ``f`` and ``beta`` agree with each other, so that a later call goes on from there.
    """
    width = rows.shape[1]
    rows_, blocks_, f_, up_, low_ = memory(rows), memory(blocks), memory(f), memory(up), memory(low)
    ahead = PREFETCH if width > PREFETCH else 0  # short rows stay in the cache, if nothing else is fetched into it
    row_i = row_j = np.intp(0)  # a plain 0 would be a type of its own
    delta = 0.0
    done = 0
    while True:
        least, i, most = _step_and_first(rows_, row_i, row_j, ahead, blocks_, blocks.size, f_, up_, low_, delta)
        extremes[0], extremes[1] = least, most
        if not most - least >= tolerance:
            return CONVERGED, done, -1
        if done == limit:
            return LIMIT, done, -1
        delta = 0.0
        column_i = np.intp(blocks[i // LANES]) * LANES + i % LANES
        if slot[column_i] < 0:
            return MISSING, done, column_i
        row_i = np.intp(slot[column_i]) * width
        j = _second(rows_, row_i, ahead, blocks_, blocks.size, f_, low_, least)
        if j < 0:
            return CONVERGED, done, -1
        column_j = np.intp(blocks[j // LANES]) * LANES + j % LANES
        if slot[column_j] < 0:
            return MISSING, done, column_j
        row_j = np.intp(slot[column_j]) * width
        top_i, bottom_i = (bounds[i], 0.0) if sign[i] > 0 else (0.0, -bounds[i])
        top_j, bottom_j = (bounds[j], 0.0) if sign[j] > 0 else (0.0, -bounds[j])
        curvature = -2.0 * np.float64(rows[slot[column_i], column_j])
        delta = (f[j] - f[i]) / max(curvature, TAU)
        room_i, room_j = top_i - beta[i], beta[j] - bottom_j
        delta = min(delta, room_i, room_j)
        beta[i] = top_i if delta == room_i else beta[i] + delta
        beta[j] = bottom_j if delta == room_j else beta[j] - delta
        up[i], low[i] = beta[i] < top_i, beta[i] > bottom_i
        up[j], low[j] = beta[j] < top_j, beta[j] > bottom_j
        done += 1
