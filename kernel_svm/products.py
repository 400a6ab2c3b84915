"""One symmetric matrix times the vectors of several binary problems, which read it together.

The training sets of a search have most of their samples in common. The matrix is read in tiles, which are multiplied
with the vectors of four problems at a time while they are in the cache. Folds lie side by side in a matrix, so most
tiles are of samples that one of the problems has not: it leaves such a tile out.
"""

# mypy: allow-untyped-defs
# Compiled functions have no annotations: numba infers their types.

from __future__ import annotations

import numpy as np

from jit import LANES, WIDE
from jit.simd import fma, item, load, part, prefetch, splat, store, widen
from kernel_svm.smo import aligned_doubles

FOUR = 4  # problems whose sums are in registers at a time
TALL = 64  # rows of a tile, which is WIDE columns wide


@part
def add_products(problems, group, going, steps, out):
    """Add the matrix times each problem's steps to its ``out``.

    Every element is one chain of fused multiply-adds over the rows in their order: the same bits in any company.

    Args:
        problems: `Binaries`; the rows where steps are not 0 must be there.
        group: int64 (n,), the numbers of the problems.
        going: bool (n,), which of them take part.
        steps: float64 (n + 1, width), by column.
        out: float64 (n + 1, width); columns of no sample of a problem, and the last row, get any number.
    """
    n, width = group.size, steps.shape[1]
    starts, sizes, count = np.empty(width, np.int64), np.zeros((width, n + 1)), 0  # the last: of nobody
    for t in range(width):
        some = False
        for k in range(n):
            if going[k] and steps[k, t] != 0.0:
                some, sizes[count, k] = True, steps[k, t]
        if some:
            starts[count] = np.int64(problems.slot[t]) * problems.rows.shape[1]
            count += 1
    there = _columns(problems, group, going)
    rows, tile = problems.rows, aligned_doubles(TALL * WIDE)
    moving, takers = np.empty(n, np.int64), np.empty(n + FOUR, np.int64)
    for top in range(0, count, TALL):
        high, n_moving = min(TALL, count - top), 0
        for k in range(n):
            for r in range(top, top + high):
                if sizes[r, k] != 0.0:
                    moving[n_moving] = k
                    n_moving += 1
                    break
        for left in range(0, width, WIDE):
            n_takers = 0
            for m in range(n_moving):
                if there[moving[m], left // WIDE]:
                    takers[n_takers] = moving[m]
                    n_takers += 1
            if n_takers == 0:
                continue
            for m in range(n_takers, n_takers + FOUR):
                takers[m] = n
            for r in range(high):
                at = starts[top + r] + left
                prefetch(rows, at + WIDE)
                for lane in range(0, WIDE, LANES):
                    store(tile, r * WIDE + lane, widen(load(rows, at + lane)))
            for m in range(0, n_takers, FOUR):
                for lane in range(0, WIDE, LANES):
                    _four(tile, lane, sizes[top : top + high], takers[m : m + FOUR], out, left)


@part
def _columns(problems, group, going):
    """In which WIDE columns a problem that takes part has lanes: bool (n, width / WIDE)."""
    there = np.zeros((group.size, problems.sign.shape[1] // WIDE), np.bool_)
    for k in range(group.size):
        if going[k]:
            for b in range(problems.lanes[group[k]] // LANES):
                there[k, problems.blocks[group[k], b] * LANES // WIDE] = True
    return there


@part
def _four(tile, lane, sizes, takers, out, left):
    """Add half a tile, or the whole one, times its sizes to four rows of ``out``."""
    a, b, c, d = takers[0], takers[1], takers[2], takers[3]
    width, stride, first = out.shape[1], sizes.shape[1], left + lane
    sum_a, sum_b = load(out, a * width + first), load(out, b * width + first)
    sum_c, sum_d = load(out, c * width + first), load(out, d * width + first)
    for r in range(sizes.shape[0]):
        kernel, at = load(tile, r * WIDE + lane), r * stride
        sum_a = fma(splat(item(sizes, at + a)), kernel, sum_a)
        sum_b = fma(splat(item(sizes, at + b)), kernel, sum_b)
        sum_c = fma(splat(item(sizes, at + c)), kernel, sum_c)
        sum_d = fma(splat(item(sizes, at + d)), kernel, sum_d)
    store(out, a * width + first, sum_a)
    store(out, b * width + first, sum_b)
    store(out, c * width + first, sum_c)
    store(out, d * width + first, sum_d)
