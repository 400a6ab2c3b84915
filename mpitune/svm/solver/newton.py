"""Newton's method for all free multipliers together, where moving pairs takes too long.

At a large C on few dimensions a kernel matrix has few directions that matter, and the free multipliers creep along
them, pair by pair, hundreds of thousands of times. Without bounds their best values solve linear equations, by a
Cholesky factor. On the way there one after the other reaches a bound; it stays there, its column is taken out of the
factor, and the others go on (K. Scheinberg, "An efficient implementation of an active set method for SVMs", JMLR 7,
2006). SMO chooses which multipliers are free, before and after.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mpitune._jit import LANES
from mpitune._jit.simd import fma, load, mul, part, splat, store, sub, total_of
from mpitune.svm.solver.smo import add_rows, aligned_doubles

MOST = 1000  # multipliers that are moved together at most
# Of the largest diagonal element, added to all: about what float32 has lost of the matrix. Where it has lost more, and
# a matrix of samples with few features has no factor, ten times as much is tried, up to the second.
RIDGE, MOST_RIDGE = 1e-7, 1e-5


class Free(NamedTuple):
    """Multipliers that move together, and the rows of a Cholesky factor of their matrix, a triangle.

    What is below the diagonal is never used. For steps whose sum is 0 the matrix is as good as one of scalar products,
    of differences to sample ``origin``, plus a constant.

    Attributes:
        factor: float64 (count, stride).
        kept: int64 (lanes,), their lanes, in the order of the factor's columns.
        origin: the lane of that sample.
        scale: what is added to each scalar product.
        slopes, sums: float64 (stride,), right sides, of the gradient and of the sum, solved by the transposed triangle.
        values: float64 (stride,), room.
    """

    factor: np.ndarray
    kept: np.ndarray
    origin: int
    scale: float
    slopes: np.ndarray
    sums: np.ndarray
    values: np.ndarray


@part
def newton_step(own, worth):
    """Move the free multipliers to where they are best; those that reach a bound on the way stay there.

    Returns False where it takes more than ``worth`` multiplications, and is not made. The masks stay as they are.
    """
    n = own.f.size
    kept, count = np.empty(n, np.int64), np.int64(0)  # a plain 0 is a type of its own
    for t in range(n):
        if own.up[t] and own.low[t]:
            kept[count] = t
            count += 1
    if count < 2 or count > MOST or count * count * count > 3 * worth:
        return False
    origin, scale = kept[0], 0.0
    first = own.columns[origin]
    for p in range(count):
        scale = max(scale, -2.0 * np.float64(own.rows[first, own.columns[kept[p]]]))
    stride = -(-count // LANES) * LANES + LANES
    free = Free(
        aligned_doubles(count * stride).reshape(count, stride), kept, origin, scale, aligned_doubles(stride),
        aligned_doubles(stride), aligned_doubles(stride),
    )  # fmt: skip
    ridge = RIDGE
    while not _factor(own, free, count, ridge):
        ridge *= 10.0
        if ridge > MOST_RIDGE:
            return True
    target, step, change = own.beta.copy(), aligned_doubles(n), aligned_doubles(n)
    for p in range(count):
        free.values[p] = -own.f[kept[p]]
    _solve_transposed(free, count, free.slopes)
    for p in range(count):
        free.values[p] = 1.0
    _solve_transposed(free, count, free.sums)
    _walk_to_best(own, free, count, target)
    _move(own, target, step, change)
    return True


@part
def _factor(own, free, count, ridge):
    """Write the factor of the matrix with a ridge; False where it fails."""
    matrix, columns, factor, kept = own.rows, own.columns, free.factor, free.kept
    stride, width, origin = factor.shape[1], -(-count // LANES) * LANES, columns[free.origin]
    for p in range(count):
        i = columns[kept[p]]
        for q in range(p, count):
            j = columns[kept[q]]
            factor[p, q] = np.float64(matrix[i, j]) - matrix[origin, i] - matrix[origin, j] + free.scale
        factor[p, p] += ridge * free.scale
    for k in range(count):
        row, begin, fours = k * stride, k // LANES * LANES, k // 4 * 4
        for p in range(0, fours, 4):
            first, second = splat(-factor[p, k]), splat(-factor[p + 1, k])
            third, fourth = splat(-factor[p + 2, k]), splat(-factor[p + 3, k])
            for at in range(begin, width, LANES):
                value = fma(first, load(factor, p * stride + at), load(factor, row + at))
                value = fma(second, load(factor, (p + 1) * stride + at), value)
                value = fma(third, load(factor, (p + 2) * stride + at), value)
                store(factor, row + at, fma(fourth, load(factor, (p + 3) * stride + at), value))
        for p in range(fours, k):
            first = splat(-factor[p, k])
            for at in range(begin, width, LANES):
                store(factor, row + at, fma(first, load(factor, p * stride + at), load(factor, row + at)))
        if factor[k, k] <= 0.0:
            return False
        size = splat(1.0 / np.sqrt(factor[k, k]))
        for at in range(begin, width, LANES):
            store(factor, row + at, mul(size, load(factor, row + at)))
    return True


@part
def _solve_transposed(free, count, out):
    """Solve the transposed triangle for ``values``, which are lost, both whole vectors."""
    factor, values, stride = free.factor, free.values, free.factor.shape[1]
    for p in range(count):
        out[p] = values[p] / factor[p, p]
        size = splat(-out[p])
        for at in range(p // LANES * LANES, count, LANES):
            store(values, at, fma(size, load(factor, p * stride + at), load(values, at)))


@part
def _walk_to_best(own, free, count, target):
    """Move ``target``, multipliers of ``kept``, to where all that stay between their bounds are best."""
    sign, bounds = own.sign, own.bounds
    factor, kept, slopes, sums = free.factor, free.kept, free.slopes, free.sums
    stride = factor.shape[1]
    step = aligned_doubles(stride)
    while True:
        together = total = 0.0
        for p in range(count):
            together += slopes[p] * sums[p]
            total += sums[p] * sums[p]
        for p in range(count - 1, -1, -1):
            products = splat(0.0)
            for at in range(p // LANES * LANES, count, LANES):
                products = fma(load(factor, p * stride + at), load(step, at), products)
            step[p] = (slopes[p] - together / total * sums[p] - total_of(products)) / factor[p, p]
        length, first, reached = 1.0, np.int64(-1), 0.0  # a plain -1 would be a type of its own
        for p in range(count):
            t, size = kept[p], step[p]
            if size != 0.0:
                least, most = (0.0, bounds[t]) if sign[t] > 0 else (-bounds[t], 0.0)
                bound = most if size > 0.0 else least
                if (bound - target[t]) / size <= length:  # of equals the last: it was the least eager to move
                    length, first, reached = (bound - target[t]) / size, p, bound
        rest, widest, room = 0.0, kept[0], -1.0
        for p in range(count):
            t = kept[p]
            moved = reached if p == first else target[t] + length * step[p]
            rest += moved - target[t]
            target[t] = moved
            inner = min(abs(moved), bounds[t] - abs(moved))
            if inner > room:
                widest, room = t, inner
        target[widest] -= rest  # a rounding error
        if first < 0 or count == 2:
            return
        for p in range(count):
            slopes[p] *= 1.0 - length
        _take_out(free, first, count)
        for p in range(first, count - 1):
            kept[p] = kept[p + 1]
        count -= 1
        for p in range(count + 1):
            step[p] = 0.0


@part
def _take_out(free, column, count):
    """Take a column out of a triangle with ``count``; those after it move to the left.

    Below its diagonal every later row has one element then; each is turned into the row above (Givens), in the right
    sides, too.
    """
    factor, slopes, sums, stride = free.factor, free.slopes, free.sums, free.factor.shape[1]
    for p in range(column):
        for at in range(p * stride + column, p * stride + count, LANES):
            store(factor, at, load(factor, at + 1))
    for p in range(column, count - 1):
        a, b = factor[p, p + 1], factor[p + 1, p + 1]
        root = np.sqrt(a * a + b * b)
        a, b = a / root, b / root
        cosine, sine = splat(a), splat(b)
        for at in range(p * stride + p + 1, p * stride + count, LANES):
            upper, lower = load(factor, at), load(factor, at + stride)
            store(factor, at - 1, fma(cosine, upper, mul(sine, lower)))
            store(factor, at + stride, sub(mul(cosine, lower), mul(sine, upper)))
        slopes[p], slopes[p + 1] = a * slopes[p] + b * slopes[p + 1], a * slopes[p + 1] - b * slopes[p]
        sums[p], sums[p + 1] = a * sums[p] + b * sums[p + 1], a * sums[p + 1] - b * sums[p]


@part
def _move(own, target, step, change):
    """Take multipliers to ``target`` if that is better and within the bounds, and f with them; else False."""
    sign, f, beta, bounds = own.sign, own.f, own.beta, own.bounds
    for t in range(f.size):
        step[t], change[t] = target[t] - beta[t], 0.0
    add_rows(own.rows, own.columns, step, change)
    slope = curvature = 0.0
    inside = True  # not where all have reached a bound and one of them takes the rounding error of the sum
    for t in range(f.size):
        alpha = target[t] * sign[t]
        slope += step[t] * f[t]
        curvature += step[t] * change[t]
        inside = inside and 0.0 <= alpha <= bounds[t]
    if not (inside and slope + curvature / 2 < 0.0):
        return False
    for t in range(f.size):
        beta[t] = target[t]
        f[t] += change[t]
    return True
