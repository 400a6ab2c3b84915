"""One symmetric matrix times the vectors of several binary problems, which read it together.

The training sets of a search have most of their samples in common. The matrix is read in tiles, and a vector of a tile
is multiplied for four problems while it is in a register. Folds lie side by side in a matrix, so most tiles are of
samples that one of the problems has not: it leaves such a tile out.
"""

from __future__ import annotations

import numpy as np

from mpitune._jit import LANES, WIDE
from mpitune._jit.simd import fma, item, load, part, prefetch, splat, store, widen

FOUR = 4  # problems whose sums are in registers at a time
TALL = 64  # rows of a tile, which is WIDE columns wide


@part
def add_products(problems, group, going, steps, out):
    """Add the matrix times each problem's steps to its ``out``.

    Every element is one chain of fused multiply-adds over the rows in their order: the same bits in any company.

    Args:
        problems: `Binaries`.
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
            starts[count] = t * problems.rows.shape[1]
            count += 1
    there = _columns(problems, group, going)
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
            n_fours = -(-n_takers // FOUR) * FOUR
            for m in range(n_takers, n_fours):
                takers[m] = n
            own_starts, own_sizes = starts[top : top + high], sizes[top : top + high]
            for column in range(left, left + WIDE, LANES):
                for m in range(0, n_fours, FOUR):
                    _four(problems.rows, own_starts, own_sizes, column, takers[m : m + FOUR], out)


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
def _four(rows, starts, sizes, column, takers, out):
    """Add a tile times its sizes to four rows of ``out``, and ask for the next tile."""
    a, b, c, d = takers[0], takers[1], takers[2], takers[3]
    width, stride = out.shape[1], sizes.shape[1]
    sum_a, sum_b = load(out, a * width + column), load(out, b * width + column)
    sum_c, sum_d = load(out, c * width + column), load(out, d * width + column)
    for r in range(starts.size):
        begin, at = starts[r] + column, r * stride
        prefetch(rows, begin + WIDE)
        kernel = widen(load(rows, begin))
        sum_a = fma(splat(item(sizes, at + a)), kernel, sum_a)
        sum_b = fma(splat(item(sizes, at + b)), kernel, sum_b)
        sum_c = fma(splat(item(sizes, at + c)), kernel, sum_c)
        sum_d = fma(splat(item(sizes, at + d)), kernel, sum_d)
    store(out, a * width + column, sum_a)
    store(out, b * width + column, sum_b)
    store(out, c * width + column, sum_c)
    store(out, d * width + column, sum_d)
