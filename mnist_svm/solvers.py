"""The solvers of a grid: all points of a gamma together (`mpitune.svm`), or point by point (scikit-learn, cuML)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from mnist_svm.dataset import Dataset, Fit, Point, Solver
from mpitune import svm
from mpitune.experiment import WorkerContext
from mpitune.svm.matrices.plan import Matrices, keep

TOLERANCE = 1e-3  # of the optimality conditions; LIBSVM's, scikit-learn's and cuML's default
CACHE_MIB = 500  # rows of the kernel matrix that scikit-learn and cuML may keep
MAX_ITER = 100_000_000  # iterations per binary problem and C


def make_solver(name: str, worker: WorkerContext, *, multiclass: str, memory: int, n_points: int) -> Solver:
    """The solver of that name for this worker. `SvmGrid.check` says whether it can work there.

    memory: bytes that this worker may use, which the shared solver keeps to. n_points: the most points of one gamma
    that it will be asked for at once.
    """
    if name in ("auto", "shared"):
        return SharedSolver(worker, multiclass, memory=memory, n_points=n_points)
    importlib.import_module({"sklearn": "sklearn.svm", "cuml": "cuml.svm"}[name])  # missing is no trial's fault
    return partial(point_by_point, fit_sklearn if name == "sklearn" else fit_cuml, multiclass)


class SharedSolver:
    """All points of one gamma together; matrices are kept, and shared with other processes, as memory allows.

    At a C so small that all decision values of one-vs-rest differ by less than the tolerance, predictions are those of
    one of many solutions that satisfy it, as in LIBSVM.

    n_points: the most points (folds times C) of one gamma that it will be asked for at once.
    """

    def __init__(self, worker: WorkerContext, multiclass: str, *, memory: int, n_points: int) -> None:
        worker.report_step(0, unit="compiling")
        svm.warm_up()
        self.worker, self.multiclass, self.memory, self.n_points = worker, multiclass, memory, n_points
        self._kept: tuple[svm.Data, Matrices] | None = None

    def __call__(self, dataset: Dataset, gamma: float, points: Sequence[Point]) -> Iterator[Fit]:
        data, matrices = self._prepared(dataset)
        penalties_of: dict[int | None, list[float]] = {}
        for penalty, fold in points:
            penalties_of.setdefault(fold, []).append(penalty)
        folds, first = list(penalties_of), penalties_of[points[0][1]]
        alike = all(penalties == first for penalties in penalties_of.values())
        with matrices.source(gamma) as source:
            for together in [folds] if alike else [[fold] for fold in folds]:
                penalties = penalties_of[together[0]]
                ascending, k = np.unique(penalties), len(data.samples.classes)
                trainings = [svm.TrainingSet.without_weights(dataset.train(fold), k) for fold in together]
                n_points = len(together) * len(penalties)
                report = partial(self.worker.report_step, unit="binary problem", trials=n_points)
                solve = partial(svm.solve, data, source, ascending, trainings, max_iter=MAX_ITER, libsvm=False)
                for fold, solved in zip(together, solve(report=report), strict=True):
                    n_support, converged = solved.solutions.n_support.tolist(), solved.solutions.converged.tolist()
                    if fold is None:
                        predictions = solved.predict(dataset.test_images)
                    else:
                        predictions = solved.labels(np.arange(len(dataset.labels))[dataset.folds[fold]])
                    for c in np.searchsorted(ascending, penalties).tolist():
                        yield Fit(predictions[c], n_support[c], converged[c])

    def _prepared(self, dataset: Dataset) -> tuple[svm.Data, Matrices]:
        """Sorted samples and their matrices, made once. Raises MemoryError."""
        if self._kept is None:
            data = svm.Data(dataset.images, dataset.labels, "rbf", self.memory, multiclass=self.multiclass)
            shared = self.worker.node_memory, self.worker.n_workers
            self._kept = data, keep(data.samples, self.multiclass, self.n_points, self.memory, *shared)
        return self._kept


def point_by_point(
    fit: Callable[..., Fit], multiclass: str, dataset: Dataset, gamma: float, points: Sequence[Point]
) -> Iterator[Fit]:
    """As `Solver`, by a function such as `fit_sklearn`."""
    for penalty, fold in points:
        train, (images, _) = dataset.train(fold), dataset.evaluated(fold)
        point = {"penalty": penalty, "gamma": gamma, "multiclass": multiclass}
        yield fit(dataset.images[train], dataset.labels[train], images, **point)


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
