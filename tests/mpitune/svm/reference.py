"""Sequential minimal optimisation in plain Python: what `mpitune.svm.solver.smo` computes with vectors."""

from __future__ import annotations

import numpy as np

FLOOR = 1e-12  # of the curvature of a pair


def smo(matrix: np.ndarray, sign: np.ndarray, bounds: np.ndarray, tolerance: float, limit: int) -> np.ndarray:
    """Signed multipliers float64 (n,) after at most ``limit`` iterations from zero.

    Args:
        matrix: float32 (n, n), a kernel with zeros on its diagonal (see `smo`).
        sign: (n,), 1 or -1.
        bounds: float64 (n,), of the multipliers.
        tolerance: of LIBSVM's stopping rule.
        limit: iterations.
    """
    kernel, beta, f = matrix.astype(np.float64), np.zeros(len(sign)), -sign.astype(np.float64)
    top, bottom = np.where(sign > 0, bounds, 0.0), np.where(sign > 0, 0.0, -bounds)
    for _ in range(limit):
        up, low = beta < top, beta > bottom
        i = int(np.where(up, f, np.inf).argmin())
        if np.where(low, f, -np.inf).max() - f[i] < tolerance:
            break
        curvature = np.maximum(-2 * kernel[i], FLOOR)
        j = int(np.where(low & (f > f[i]), (f - f[i]) ** 2 / curvature, -np.inf).argmax())
        step = min((f[j] - f[i]) / curvature[j], top[i] - beta[i], beta[j] - bottom[j])
        beta[i], beta[j] = beta[i] + step, beta[j] - step
        f += step * (kernel[i] - kernel[j])
    return beta
