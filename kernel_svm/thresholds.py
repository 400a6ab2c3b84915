"""Thresholds in double, where samples are so far from each other that K - 1 in float32 loses K.

Between two classes of equal size a threshold is then as small as the values of K, such as 1e-20; it decides the labels
of all samples that are far from any support vector.
"""

# mypy: allow-untyped-defs
# Compiled functions have no annotations: numba infers their types.

from __future__ import annotations

from dataclasses import replace

import numpy as np

from jit.simd import compiled
from kernel_svm.path import Paths
from kernel_svm.sources import RbfSource

LOST = 1e-6  # of the multipliers' sum: a larger threshold is known well enough


def refined(
    source: RbfSource, rows: np.ndarray, paths: Paths, signs: np.ndarray, weights: np.ndarray, penalties: np.ndarray
) -> Paths:
    """The paths of one binary problem for several training sets, with `rhos` that are computed from K in double.

    Args:
        source: the kernel's rows, also in double.
        rows: int64 (width,), for each column of the problem's matrix its row in the samples.
        paths: as `solve_paths` returned them, one for each training set.
        signs: int8 (n_paths, width), as `solve_paths` was given them.
        weights: float64 (n_paths, width), as `solve_paths` was given them.
        penalties: float64 (n_penalties,), ascending.

    Returns:
        The same paths; those whose thresholds are all large enough as they were given.
    """
    own = [paths[n] for n in range(len(paths.lanes))]
    small = [n for n, path in enumerate(own) if (abs(path.rhos) <= LOST * abs(path.betas).sum(axis=1)).any()]
    if not small:
        return paths
    used = np.flatnonzero(np.any(signs[small], axis=0))
    number = [np.cumsum([0, *(own[n].betas[1:] != own[n].betas[:-1]).any(axis=1)]) for n in small]
    first = [np.searchsorted(each, np.arange(each[-1] + 1)) for each in number]  # the smallest C of each solution
    starts = np.cumsum([0, *map(len, first)])
    betas = np.zeros((len(rows), starts[-1]))
    for n, start, each in zip(small, starts, first, strict=False):
        betas[own[n].columns, start : start + len(each)] = own[n].betas[each].T
    betas = betas[used]
    others = source.of_others(rows[used], betas)
    rhos = paths.rhos.copy()
    for n, start, each, which in zip(small, starts, first, number, strict=False):
        rhos[n] = thresholds(signs[n][used], weights[n][used], penalties[each], betas, others, start)[which]
    return replace(paths, rhos=rhos)


@compiled
def thresholds(sign, weights, penalties, betas, others, start):
    """LIBSVM's rho of each solution, a column of ``betas`` from ``start`` on, as `walk._intercept` has it."""
    result = np.empty(penalties.size)
    for c in range(result.size):
        # Two sums: the first is 0 where all multipliers are free, and would hide the second.
        own, rest, free, least, most = 0.0, 0.0, 0, np.inf, -np.inf
        for t in range(sign.size):
            if sign[t] == 0:
                continue
            beta, bound = betas[t, start + c], penalties[c] * weights[t]
            up = beta < (bound if sign[t] > 0 else 0.0)
            low = beta > (0.0 if sign[t] > 0 else -bound)
            if up and low:
                own += beta - sign[t]
                rest += others[t, start + c]
                free += 1
            elif up:
                least = min(least, beta - sign[t] + others[t, start + c])
            elif low:
                most = max(most, beta - sign[t] + others[t, start + c])
        result[c] = (own + rest) / free if free else (least + most) / 2
    return result
