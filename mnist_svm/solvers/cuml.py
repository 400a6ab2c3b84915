"""cuML's SVC, which solves every point from nothing."""

from __future__ import annotations

import numpy as np

from mnist_svm.dataset import CACHE_MIB, TOLERANCE, Fit


def fit_cuml(
    images: np.ndarray, labels: np.ndarray, validation: np.ndarray, *, penalty: float, gamma: float, multiclass: str
) -> Fit:
    """One SVM by cuML's SVC (25.6 or later). On the GPU that this process can see."""
    import cupy
    from cuml.svm import SVC

    model = SVC(
        C=penalty, gamma=gamma, kernel="rbf", tol=TOLERANCE, cache_size=CACHE_MIB, decision_function_shape=multiclass
    )
    model.fit(cupy.asarray(images), cupy.asarray(labels, dtype=cupy.float32))
    predictions = cupy.asnumpy(cupy.asarray(model.predict(cupy.asarray(validation))))
    n_support = len(cupy.unique(cupy.asarray(model.support_)))
    return Fit(predictions.astype(labels.dtype), n_support, converged=None)
