"""Solvers that fit point by point: scikit-learn's SVC on CPU cores, cuML's on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mnist_svm.dataset import CACHE_MIB, TOLERANCE, Dataset, Fit, GridPoint, Solver


class Pointwise(Solver):
    """Fits point by point.

    Args:
        fit: such as `fit_sklearn`.
    """

    def __init__(self, fit: Callable[..., Fit], multiclass: str) -> None:
        self.fit, self.multiclass = fit, multiclass

    def __call__(self, dataset: Dataset, gamma: float, points: Sequence[GridPoint]) -> Iterator[Fit]:
        for penalty, split in points:
            images, labels = dataset.images[split.train], dataset.labels[split.train]
            point = {"penalty": penalty, "gamma": gamma, "multiclass": self.multiclass}
            yield self.fit(images, labels, dataset.predicted(split), **point)


def fit_sklearn(
    images: np.ndarray, labels: np.ndarray, validation: np.ndarray, *, penalty: float, gamma: float, multiclass: str
) -> Fit:
    """One SVM by scikit-learn's SVC, which is LIBSVM (C.-C. Chang, C.-J. Lin, 2011). On the CPU."""
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.svm import SVC

    model: Any = SVC(C=penalty, gamma=gamma, kernel="rbf", tol=TOLERANCE, cache_size=CACHE_MIB)
    if multiclass == "ovo":
        model.fit(images, labels)
        support = model.support_
    else:
        model = OneVsRestClassifier(model).fit(images, labels)
        support = np.concatenate([binary.support_ for binary in model.estimators_])
    return Fit(model.predict(validation), len(np.unique(support)))


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
