"""A step of Newton's method for all free multipliers together, where moving pairs takes too long.

At a large C on few dimensions a kernel matrix has few directions that matter, and the free multipliers creep along
them, pair by pair, hundreds of thousands of times. Without bounds their best values solve linear equations, by a
Cholesky factor (K. Scheinberg, "An efficient implementation of an active set method for SVMs", JMLR 7, 2006). SMO
chooses which multipliers are free, before and after.
"""

# mypy: allow-untyped-defs
# Compiled functions have no annotations: numba infers their types.

from __future__ import annotations

import numpy as np

from jit import LANES
from jit.simd import fma, load, part, splat, store, widen
from kernel_svm.smo import aligned_doubles

MOST = 1000  # free multipliers that are moved together at most
RIDGE = 1e-7  # of the largest diagonal element, added to all: about what float32 has lost of the matrix


@part
def newton_step(matrix, sign, f, beta, up, low, bounds):
    """Move the free multipliers to where they are best without bounds, or towards it until one reaches its bound.

    Of a gathered problem, whose matrix has its lanes only. The masks are not brought up to date. Returns how many
    multipliers there were to move, 0 if none was moved.
    """
    free, m = np.empty(f.size, np.int64), np.int64(-1)  # a plain -1 would be a type of its own
    for t in range(f.size):
        if up[t] and low[t]:
            m += 1
            free[m] = t
    if m < 1 or m > MOST:
        return 0
    step = _best_step(matrix, f, free, m)
    if step.size == 0:
        return 0
    change, slope, curvature = aligned_doubles(f.size), 0.0, 0.0
    for p in range(m + 1):
        row, size = free[p] * matrix.shape[1], splat(step[p])
        for at in range(0, f.size, LANES):
            store(change, at, fma(size, widen(load(matrix, row + at)), load(change, at)))
    for p in range(m + 1):
        slope += step[p] * f[free[p]]
        curvature += step[p] * change[free[p]]
    if not (slope < 0.0 and curvature > 0.0):
        return 0
    length, first, reached = -slope / curvature, -1, 0.0
    for p in range(m + 1):
        t, size = free[p], step[p]
        if size != 0.0:
            bound = (bounds[t] if size > 0.0 else 0.0) if sign[t] > 0 else (0.0 if size > 0.0 else -bounds[t])
            if (bound - beta[t]) / size < length:
                length, first, reached = (bound - beta[t]) / size, t, bound
    for p in range(m + 1):
        beta[free[p]] = reached if free[p] == first else beta[free[p]] + length * step[p]
    for at in range(0, f.size, LANES):
        store(f, at, fma(splat(length), load(change, at), load(f, at)))
    return m + 1


@part
def _best_step(matrix, f, free, m):
    """The step of ``free[:m + 1]`` whose sum is 0 that lowers the objective most; empty where the factor fails.

    The last one's step is minus the sum of the others', which makes their matrix that of differences to it.
    """
    last, width = free[m], -(-m // LANES) * LANES
    factor, step, ridge = aligned_doubles(m * width).reshape(m, width), np.empty(m + 1), 0.0
    for p in range(m):
        i = free[p]
        step[p] = f[last] - f[i]
        for q in range(p, m):
            factor[p, q] = np.float64(matrix[i, free[q]]) - matrix[last, i] - matrix[last, free[q]]
        ridge = max(ridge, RIDGE * factor[p, p])
    for p in range(m):  # the rows of an upper triangle; what lies below the diagonal is never read
        pivot = factor[p, p] + ridge
        if pivot <= 0.0:
            return np.empty(0)
        root = np.sqrt(pivot)
        factor[p, p] = root
        for q in range(p + 1, m):
            factor[p, q] /= root
        step[p] /= root
        for k in range(p + 1, m):
            part, row = splat(-factor[p, k]), k * width
            step[k] -= factor[p, k] * step[p]
            for at in range(k // LANES * LANES, width, LANES):
                store(factor, row + at, fma(part, load(factor, p * width + at), load(factor, row + at)))
    total = 0.0
    for p in range(m - 1, -1, -1):
        for q in range(p + 1, m):
            step[p] -= factor[p, q] * step[q]
        step[p] /= factor[p, p]
        total += step[p]
    step[m] = -total
    return step
