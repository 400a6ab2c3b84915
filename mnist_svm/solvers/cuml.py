"""cuML's SVC over a kernel matrix that is computed once per gamma."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from common.errors import UsageError
from kernel_svm.cuda.matrices import kernel_between, kernels_minus_one
from kernel_svm.multiclass import choose_class, machines_of
from mnist_svm.dataset import CACHE_MIB, TOLERANCE, Dataset, Fit, GridPoint, Solver


class PrecomputedSolver(Solver):
    """Every point by cuML, from one matrix K of its gamma on the GPU; the machines of the classes are made here.

    cuML takes a precomputed matrix for two classes only (its issue 7724), so each machine gets a copy of its part of
    K, and each point is solved from nothing. It saves cuML the products of pixels, which pays with many pixels and
    few support vectors; it costs 4 n^2 bytes for K and as much again for a one-vs-rest part. Where K does not fit,
    or the steps of large C outweigh the kernel, `--solver cuml` is no slower. It has not been run on a GPU yet.

    xp, svc: an array module and an SVC over its arrays; cupy and cuML's by default.
    """

    def __init__(self, multiclass: str, xp: Any = None, svc: Any = None) -> None:
        self.multiclass = multiclass
        self._xp = xp or importlib.import_module("cupy")
        self._svc = svc or importlib.import_module("cuml.svm").SVC
        try:
            self._machine(1.0).fit(self._xp.eye(2, dtype=np.float32), self._xp.asarray([-1, 1], np.float32))
        except Exception as error:  # what an older cuML says differs from release to release
            told = f"--solver cuml-precomputed needs a cuML whose SVC takes kernel='precomputed' ({error}): "
            raise UsageError(told + "update it, or give --solver cuml") from error

    def __call__(self, dataset: Dataset, gamma: float, points: Sequence[GridPoint]) -> Iterator[Fit]:
        xp = self._xp
        mean = dataset.images.mean(axis=0, dtype=np.float64)
        x, test_x = (xp.asarray((part - mean).astype(np.float32)) for part in (dataset.images, dataset.test_images))
        norms, test_norms = (xp.einsum("ij,ij->i", part, part) for part in (x, test_x))
        kernel = xp.empty((len(x), len(x)), np.float32)
        kernels_minus_one(xp, x, norms, [gamma], kernel[None])
        kernel += 1
        for penalty, split in points:
            if split.is_refit:
                answers = kernel_between(xp, test_x, test_norms, x, norms, gamma) + 1
            else:
                answers = kernel[xp.asarray(split.held_out)]
            yield self._fit(kernel, answers, dataset.labels, split.train, penalty)

    def _fit(self, kernel: Any, answers: Any, labels: np.ndarray, train: np.ndarray, penalty: float) -> Fit:
        """kernel: K of all samples. answers: K of the images to classify with all samples. train: rows to learn."""
        xp = self._xp
        classes, machines = np.unique(labels), machines_of(len(np.unique(labels)), self.multiclass)
        decisions, support = [], np.zeros(len(labels), np.bool_)
        for a, b in machines:
            rows = train if b < 0 else train[np.isin(labels[train], classes[[a, b]])]
            sign = np.where(labels[rows] == classes[a], 1, -1).astype(np.float32)
            own = xp.asarray(rows)
            # Symmetric, so that its transpose is the same matrix, already in the order that cuML wants.
            machine = self._machine(penalty).fit(kernel.take(own, 0).take(own, 1).T, xp.asarray(sign))
            decisions.append(self._numpy(machine.decision_function(answers[:, own])).ravel())
            support[rows[self._numpy(machine.support_)]] = True
        predictions = classes[choose_class(np.stack(decisions, axis=1), machines, len(classes))]
        return Fit(predictions, int(support.sum()), converged=None)

    def _numpy(self, array: Any) -> np.ndarray:
        array = self._xp.asarray(array)
        return array.get() if hasattr(array, "get") else array

    def _machine(self, penalty: float) -> Any:
        # gamma is of no use here, but "scale", its default, would be computed from the whole matrix for every fit.
        return self._svc(C=penalty, kernel="precomputed", gamma=1.0, tol=TOLERANCE, cache_size=CACHE_MIB)


def fit_cuml(
    images: np.ndarray, labels: np.ndarray, validation: np.ndarray, penalty: float, gamma: float, multiclass: str
) -> Fit:
    """One SVM by cuML's SVC (25.6 or later). On the GPU that this process can see."""
    import cupy
    from cuml.svm import SVC

    machine = SVC(
        C=penalty, gamma=gamma, kernel="rbf", tol=TOLERANCE, cache_size=CACHE_MIB, decision_function_shape=multiclass
    )
    machine.fit(cupy.asarray(images), cupy.asarray(labels, dtype=cupy.float32))
    predictions = cupy.asnumpy(cupy.asarray(machine.predict(cupy.asarray(validation))))
    n_support = len(cupy.unique(cupy.asarray(machine.support_)))
    return Fit(predictions.astype(labels.dtype), n_support, converged=None)
