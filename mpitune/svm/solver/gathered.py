"""Lanes of a binary problem that are gathered into a small dense matrix, and solved there.

Within one C, lanes that cannot move any more leave the problem for a while (LIBSVM's shrinking rule); the rest
is gathered into a small dense matrix that stays in the processor's cache. Where the rest is large, those that violate
most are gathered and solved to a part of their violation, again and again (T. Joachims, "Making large-scale SVM
learning practical", 1999): a row of the large matrix is then read once for hundreds of iterations, not in each.

Where a gathered problem needs thousands of iterations, `newton` moves the free multipliers together now and then.

The arrays of the compiled functions are listed in `smo`.
"""

from __future__ import annotations

import numpy as np

from mpitune._jit import LANES
from mpitune._jit.simd import part
from mpitune.svm.solver.binary import Binary
from mpitune.svm.solver.newton import newton_step
from mpitune.svm.solver.smo import CONVERGED, add_rows, aligned_doubles, iterate, set_masks

CHECK = 200  # iterations between two looks at whether gathering pays
GATHER = 3.0  # cost of gathering one element, in sixteen-lane blocks of an iteration, times 16
MAX_ACTIVE = 4096  # lanes of a gathered problem at most: a matrix of 64 MiB
WORKING = 2048  # lanes that are gathered where more than MAX_ACTIVE are active
NEWTON = 400  # iterations on a gathered problem before a Newton step, and between two at least
WORTH = 12  # and no fewer than a Newton step takes multiplications, by so many times the lanes


@part
def active(own, extremes, lanes):
    """Write the lanes that may still move to ``lanes``; return how many."""
    least, most = extremes
    f, up, low = own.f, own.up, own.low
    count = 0
    for t in range(f.size):
        if (up[t] and low[t]) or (up[t] and f[t] <= most) or (low[t] and f[t] >= least):
            lanes[count] = t
            count += 1
    return count


@part
def _nth(values, n):
    """The n-th smallest of ``values``, counted from 0, by C. A. R. Hoare's quickselect; they change their order."""
    low, high = 0, values.size - 1
    while low < high:
        pivot, i, j = values[(low + high) // 2], low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while pivot < values[j]:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if n <= j:
            high = j
        elif n >= i:
            low = i
        else:
            break
    return values[n]


@part
def most_violating(own, lanes):
    """WORKING of the lanes at most, in their order: half of them those that most want to rise, half to fall."""
    f, up, low = own.f, own.up, own.low
    keys = np.empty((2, lanes.size))
    for p in range(lanes.size):
        t = lanes[p]
        keys[0, p] = f[t] if up[t] else np.inf
        keys[1, p] = -f[t] if low[t] else np.inf
    limits, room = np.empty(2), np.empty(2, np.int64)
    for side in range(2):
        limits[side] = _nth(keys[side].copy(), WORKING // 2 - 1)
        room[side] = WORKING // 2
        for p in range(lanes.size):
            room[side] -= keys[side, p] < limits[side]
    chosen, count = np.empty(lanes.size, np.int64), 0
    for p in range(lanes.size):
        wanted = False
        for side in range(2):
            if keys[side, p] < limits[side]:
                wanted = True
            elif keys[side, p] == limits[side] and room[side] > 0:
                wanted = True
                room[side] -= 1
        if wanted:
            chosen[count] = lanes[p]
            count += 1
    return chosen[:count]


@part
def _gather(rows, columns, matrix):
    for p in range(columns.size):
        for q in range(columns.size):
            matrix[p, q] = rows[columns[p], columns[q]]


@part
def solve_gathered(own, lanes, tolerance, limit, extremes):
    """Iterate on ``lanes`` alone, then bring f of all lanes up to date. Returns the number of iterations."""
    # No slices are assigned here: numba takes seconds to compile what it says when their sizes differ.
    moved = own.beta.copy()
    count = lanes.size
    width = -(-count // LANES) * LANES
    now, source_columns, kept = lanes.copy(), np.empty(count, np.int64), np.empty(width, np.int64)
    f, beta, bounds, sign = aligned_doubles(width), np.zeros(width), np.zeros(width), np.zeros(width, np.int8)
    up, low = np.zeros(width, np.uint8), np.zeros(width, np.uint8)
    blocks, columns = np.empty(width // LANES, np.int32), np.empty(width, np.int64)
    for p in range(width):
        columns[p] = p
    for p in range(width // LANES):
        blocks[p] = p
    # The state of the gathered problem begins as that of the whole one.
    for p in range(count):
        t = lanes[p]
        source_columns[p], sign[p], bounds[p] = own.columns[t], own.sign[t], own.bounds[t]
        f[p], beta[p] = own.f[t], own.beta[t]
    source = own.rows
    done = spent = waited = 0
    while True:
        matrix = aligned_doubles(count * width // 2).view(np.float32).reshape(count, width)
        _gather(source, source_columns, matrix)
        small = Binary(
            matrix, blocks[: width // LANES], columns[:width], sign[:width], bounds[:width], f[:width],
            beta[:width], up[:width], low[:width],
        )  # fmt: skip
        set_masks(small.sign, small.beta, small.bounds, small.up, small.low)
        while True:
            at_most = min(CHECK, limit - done)
            status, k = iterate(
                matrix, small.blocks, small.sign, small.f, small.beta, small.up, small.low, small.bounds,
                tolerance, at_most, extremes,
            )  # fmt: skip
            done += k
            spent += k
            if status == CONVERGED or done == limit:
                break
            waited += k
            if waited >= NEWTON and newton_step(small, waited * WORTH * width):
                set_masks(small.sign, small.beta, small.bounds, small.up, small.low)
                waited = 0
            m = active(small, extremes, kept)
            if m <= 0.8 * count and spent * (count - m) >= GATHER * m * m:
                break
        for p in range(count):
            moved[now[p]] = beta[p]
        if status == CONVERGED or done == limit:
            break
        for p in range(m):
            q = kept[p]
            now[p], f[p], beta[p], sign[p], bounds[p] = now[q], f[q], beta[q], sign[q], bounds[q]
        for p in range(m, width):
            sign[p] = 0
        source, source_columns = matrix, kept[:m].copy()
        count, spent = m, 0
        width = -(-count // LANES) * LANES
    for t in range(moved.size):
        own.beta[t], moved[t] = moved[t], moved[t] - own.beta[t]
    add_rows(own.rows, own.columns, moved, own.f)
    set_masks(own.sign, own.beta, own.bounds, own.up, own.low)
    return done
