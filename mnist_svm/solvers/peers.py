"""scikit-learn's SVC, point by point: what the grid solver is compared with."""

from __future__ import annotations

from typing import Any

import numpy as np

from mnist_svm.dataset import CACHE_MIB, TOLERANCE, Fit


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
