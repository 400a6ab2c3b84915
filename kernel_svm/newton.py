"""A step of Newton's method for all free multipliers together, where moving pairs takes too long.

At a large C on few dimensions a kernel matrix has few directions that matter, and the free multipliers creep along
them, pair by pair, hundreds of thousands of times. Without bounds their best values solve linear equations, by a
Cholesky factor. On the way there one after the other reaches a bound; it stays there, its column is taken out of the
factor, and the others go on (K. Scheinberg, "An efficient implementation of an active set method for SVMs", JMLR 7,
2006). SMO chooses which multipliers are free, before and after.
"""

# mypy: allow-untyped-defs
# Compiled functions have no annotations: numba infers their types.

from __future__ import annotations

import numpy as np

from jit import LANES
from jit.simd import fma, load, mul, part, splat, store, sub, total_of, widen
from kernel_svm.smo import aligned_doubles

MOST = 1000  # free multipliers that are moved together at most
RIDGE = 1e-7  # of the largest diagonal element, added to all: about what float32 has lost of the matrix


@part
def newton_step(matrix, sign, f, beta, up, low, bounds):
    """Move the free multipliers to where they are best, those that reach a bound on the way to that bound.

    Of a gathered problem, whose matrix has its lanes only. The masks are not brought up to date. Returns the
    multiplications that it took, roughly.
    """
    free, m = np.empty(f.size, np.int64), np.int64(0)  # a plain 0 would be a type of its own
    for t in range(f.size):
        if up[t] and low[t]:
            free[m] = t
            m += 1
    if m < 2 or m > MOST:
        return 0
    factor = _factor(matrix, f, free, m)
    work = m * m * m // 3
    if factor.size == 0:
        return work
    target = np.empty(m)
    for p in range(m):
        target[p] = beta[free[p]]
    work += _walk_to_best(factor, sign, bounds, free, target)
    change, slope, curvature = aligned_doubles(f.size), 0.0, 0.0
    for p in range(m):
        row, size = free[p] * matrix.shape[1], target[p] - beta[free[p]]
        for at in range(0, f.size, LANES):
            store(change, at, fma(splat(size), widen(load(matrix, row + at)), load(change, at)))
    for p in range(m):
        size = target[p] - beta[free[p]]
        slope += size * f[free[p]]
        curvature += size * change[free[p]]
    inside = True  # not where all have reached a bound and one of them takes the rounding error of the sum
    for p in range(m):
        own = target[p] * sign[free[p]]
        inside = inside and 0.0 <= own <= bounds[free[p]]
    if inside and slope + curvature / 2 < 0.0:
        for p in range(m):
            beta[free[p]] = target[p]
        for t in range(f.size):
            f[t] += change[t]
    return work


@part
def _factor(matrix, f, free, m):
    """The equations of the step of ``free[:m]`` that lowers the objective most, as a triangle.

    For steps whose sum is 0 the matrix is as good as one of scalar products, of differences to one sample, plus a
    constant. Rows of its Cholesky factor R lie in float64 (m, any), what is below its diagonal is never read. After R
    come two right sides, solved by its transpose: of the gradient and of the sum. Empty where the factor fails.
    """
    one, width = free[0], -(-(m + 2) // LANES) * LANES
    factor, most = aligned_doubles(m * (width + LANES)).reshape(m, width + LANES), 0.0
    for p in range(m):
        most = max(most, -2.0 * np.float64(matrix[one, free[p]]))
    for p in range(m):
        i = free[p]
        for q in range(p, m):
            factor[p, q] = np.float64(matrix[i, free[q]]) - matrix[one, i] - matrix[one, free[q]] + most
        factor[p, p] += RIDGE * most
        factor[p, m], factor[p, m + 1] = -f[i], 1.0
    stride = factor.shape[1]
    for k in range(m):
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
            return np.empty((0, 0))
        scale = splat(1.0 / np.sqrt(factor[k, k]))
        for at in range(begin, width, LANES):
            store(factor, row + at, mul(scale, load(factor, row + at)))
    return factor


@part
def _walk_to_best(factor, sign, bounds, free, target):
    """Move ``target``, multipliers of ``free``, to where all that stay between their bounds are best.

    Returns the multiplications that it took, roughly.
    """
    count, stride = factor.shape
    kept, step, work = np.arange(count), aligned_doubles(stride), 0
    while True:
        together = total = 0.0
        for p in range(count):
            together += factor[p, count] * factor[p, count + 1]
            total += factor[p, count + 1] * factor[p, count + 1]
        for p in range(count - 1, -1, -1):
            products = splat(0.0)
            for at in range(p // LANES * LANES, count, LANES):
                products = fma(load(factor, p * stride + at), load(step, at), products)
            value = factor[p, count] - together / total * factor[p, count + 1]
            step[p] = (value - total_of(products)) / factor[p, p]
        work += count * count
        length, first, reached = 1.0, np.int64(-1), 0.0  # a plain -1 would be a type of its own
        for p in range(count):
            t, size = free[kept[p]], step[p]
            if size != 0.0:
                least, most = (0.0, bounds[t]) if sign[t] > 0 else (-bounds[t], 0.0)
                bound = most if size > 0.0 else least
                if (bound - target[kept[p]]) / size < length:
                    length, first, reached = (bound - target[kept[p]]) / size, p, bound
        rest, widest, room = 0.0, 0, -1.0
        for p in range(count):
            t = free[kept[p]]
            moved = reached if p == first else target[kept[p]] + length * step[p]
            rest += moved - target[kept[p]]
            target[kept[p]] = moved
            own = min(abs(moved), bounds[t] - abs(moved))
            if own > room:
                widest, room = kept[p], own
        target[widest] -= rest  # a rounding error
        if first < 0 or count == 2:
            return work
        for p in range(count):
            factor[p, count] *= 1.0 - length
        _take_out(factor, first, count)
        for p in range(first, count - 1):
            kept[p] = kept[p + 1]
        count -= 1
        for p in range(count + 1):
            step[p] = 0.0


@part
def _take_out(factor, column, count):
    """Take a column out of a triangle with ``count``, and two of right sides after them, which move to the left.

    Below its diagonal every later row has one element then; each is turned into the row above (Givens).
    """
    stride = factor.shape[1]
    for p in range(column):
        for at in range(p * stride + column, p * stride + count + 1, LANES):
            store(factor, at, load(factor, at + 1))
    for p in range(column, count - 1):
        a, b = factor[p, p + 1], factor[p + 1, p + 1]
        root = np.sqrt(a * a + b * b)
        cosine, sine = splat(a / root), splat(b / root)
        for at in range(p * stride + p + 1, p * stride + count + 2, LANES):
            upper, lower = load(factor, at), load(factor, at + stride)
            store(factor, at - 1, fma(cosine, upper, mul(sine, lower)))
            store(factor, at + stride, sub(mul(cosine, lower), mul(sine, upper)))
