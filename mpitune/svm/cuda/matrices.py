"""K - 1 of the RBF kernel on a device, by its library for matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

STRIP = 1024  # rows of distances computed at once


def kernels_minus_one(xp: Any, x: Any, sq_norms: Any, gammas: Sequence[float], out: Any) -> None:
    """K - 1 = expm1(-gamma * D2) of all pairs of samples, for each gamma, from one matrix of distances.

    Args:
        xp: numpy, or cupy for arrays on a GPU.
        x: float32 (n, n_features), centred.
        sq_norms: float32 (n,), squared lengths of the samples.
        gammas: the gamma of each matrix.
        out: float32 (n_gammas, n, n), overwritten. Each matrix is exactly symmetric and its diagonal is zero, since the
            solver reads K_ij from either row.
    """
    distances = out[-1]
    for top in range(0, len(x), STRIP):
        rows, right, below = slice(top, top + STRIP), slice(top, None), slice(top + STRIP, None)
        strip = squared_distances(xp, x[rows], sq_norms[rows], x[right], sq_norms[right])
        size = len(strip)
        upper = xp.triu(strip[:, :size], 1)
        strip[:, :size] = upper + upper.T
        distances[rows, right] = strip
        distances[below, rows] = strip[:, size:].T
    for gamma, matrix in zip(gammas, out, strict=True):  # the distances become the last of them
        xp.multiply(distances, np.float32(-gamma), out=matrix)
        xp.expm1(matrix, out=matrix)


def kernel_between(xp: Any, a: Any, a_sq_norms: Any, b: Any, b_sq_norms: Any, gamma: float) -> Any:
    """K - 1 of two sets of samples, float32 (len(a), len(b)); see `kernels_minus_one`."""
    distances = squared_distances(xp, a, a_sq_norms, b, b_sq_norms)
    xp.multiply(distances, np.float32(-gamma), out=distances)
    return xp.expm1(distances, out=distances)


def squared_distances(xp: Any, a: Any, a_sq_norms: Any, b: Any, b_sq_norms: Any) -> Any:
    """|a|^2 + |b|^2 - 2 a.b, float32 (len(a), len(b)), none below zero."""
    result = a @ b.T
    result *= np.float32(-2)
    result += a_sq_norms[:, None] + b_sq_norms
    return xp.maximum(result, 0, out=result)
