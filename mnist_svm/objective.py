"""Errors of support vector machines on validation folds and on test images, inside a worker."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from common.data import fold_slices, standardised
from common.experiment import Data
from common.shared import NOTHING, SharedArrays
from common.trial import Batch, Result, Trial

if TYPE_CHECKING:
    from mnist_svm.shared import Samples
    from mnist_svm.shared.matrices import Matrices

TOLERANCE = 1e-3  # of the optimality conditions; LIBSVM's, scikit-learn's and cuML's default
CACHE_MIB = 500  # rows of the kernel matrix that each worker may keep


@dataclass(frozen=True)
class Problem:
    """The classification problem that all points of a grid have in common.

    images: float32 (n, n_pixels), standardised; labels: integers (n,); test_images, test_labels likewise.
    folds: where each validation fold lies in the training images.
    Raises ValueError when a class is missing from what is left of the training images without a fold.
    """

    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    folds: Sequence[slice]

    def __post_init__(self) -> None:
        check_classes(self.labels, self.folds)

    @classmethod
    def of(cls, data: Data, folds: int, max_pixel: int) -> Problem:
        """From the arrays that `common.data.load` returns."""
        return cls(
            standardised(data["train_images"], max_pixel),
            data["train_labels"],
            standardised(data["test_images"], max_pixel),
            data["test_labels"],
            fold_slices(len(data["train_labels"]), folds),
        )

    def split(self, fold: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(images, labels, validation images, validation labels); without a fold, all training and the test images."""
        if fold is None:
            return self.images, self.labels, self.test_images, self.test_labels
        held_out = self.folds[fold]
        kept = np.ones(len(self.labels), dtype=bool)
        kept[held_out] = False
        return self.images[kept], self.labels[kept], self.images[held_out], self.labels[held_out]


class Fit(NamedTuple):
    """What a solver says of one point.

    predictions: labels (n_validation,). n_support: number of distinct support vectors. converged: False where
    the tolerance was not reached within the solver's cap of iterations.
    """

    predictions: np.ndarray
    n_support: int
    converged: bool = True


class Point(NamedTuple):
    """One C on one fold; without a fold, trained on all training images and asked about the test images."""

    penalty: float
    fold: int | None


# (problem, gamma, points) -> one Fit per point, in their order, each as soon as it is known.
Solver = Callable[[Problem, float, Sequence[Point]], Iterator[Fit]]


@runtime_checkable
class SeveralGammas(Protocol):
    """A solver that gains from being given several gammas at once."""

    def together(self, problem: Problem, rows: Sequence[tuple[float, Sequence[Point]]]) -> Iterator[Fit]:
        """A Fit of each point of each row (gamma, points), in their order."""


class SvmObjective:
    """Evaluates batches of trials, gamma by gamma.

    A trial has parameters C, gamma and, unless it is the refit on all training images, fold. Its
    values are `error` (or `test_error`), a fraction, `n_support`, and `converged`, 1 or 0; a refit also has the
    array `predictions`, uint8 (n_test,). With the shared solver the points of one fold start from each other, so
    they may depend, within the solver's tolerance, on which C a batch holds.
    """

    def __init__(self, problem: Problem, solver: Solver) -> None:
        self.problem = problem
        self.solver = solver

    def __call__(self, batch: Batch) -> Iterator[Result]:
        problem = self.problem
        rows = [(gamma, [_point(trial) for trial in trials]) for gamma, trials in groupby(batch, _gamma)]
        points = [point for _, row in rows for point in row]
        for trial, point, fit in zip(batch, points, solved(self.solver, problem, rows), strict=True):
            counts = {"n_support": float(fit.n_support), "converged": float(fit.converged)}
            if point.fold is None:
                error = float(np.mean(fit.predictions != problem.test_labels))
                arrays = {"predictions": fit.predictions.astype(np.uint8)}
                yield Result(trial.key, {"test_error": error, **counts}, arrays)
            else:
                error = float(np.mean(fit.predictions != problem.labels[problem.folds[point.fold]]))
                yield Result(trial.key, {"error": error, **counts})


def _gamma(trial: Trial) -> float:
    return float(trial.params["gamma"])


def _point(trial: Trial) -> Point:
    return Point(float(trial.params["C"]), int(trial.params["fold"]) if "fold" in trial.params else None)


def solved(solver: Solver, problem: Problem, rows: Sequence[tuple[float, Sequence[Point]]]) -> Iterator[Fit]:
    """A Fit of each point of each row (gamma, points): all together where the solver can, else row by row."""
    if isinstance(solver, SeveralGammas):
        yield from solver.together(problem, rows)
    else:
        for gamma, points in rows:
            yield from solver(problem, gamma, points)


def check_classes(labels: np.ndarray, folds: Sequence[slice]) -> None:
    """Raise ValueError if a class of `labels` occurs only inside one fold, or if there is only one class."""
    classes = np.unique(labels)
    if len(classes) < 2:
        raise ValueError(f"the {len(labels)} training images are all of class {classes[0]}")
    for number, fold in enumerate(folds):
        missing = np.setdiff1d(classes, np.delete(labels, fold))
        if len(missing):
            raise ValueError(
                f"fold {number} holds every training image of class {missing[0]}: none is left to learn it"
            )


def make_solver(
    name: str, device: str, multiclass: str, memory: int, scratch: SharedArrays = NOTHING, sharers: int = 1
) -> Solver:
    """The solver called "shared", "sklearn", "cuml", "cuml-precomputed" or "auto".

    "auto" is cuML on a GPU, else the shared-kernel solver, which there is on both.
    device: "cpu" or "cuda". multiclass: "ovo" (one-vs-one) or "ovr" (one-vs-rest).
    memory: bytes that this worker may use, which the shared-kernel solver keeps to. scratch: matrices that it can
    share with others, `sharers` processes in all.
    `SvmGrid.check` says whether the solver can work there.
    """
    if name == "auto":
        name = "cuml" if device == "cuda" else "shared"
    if name == "cuml-precomputed":
        from mnist_svm.shared.cuda.precomputed import PrecomputedSolver

        return PrecomputedSolver(multiclass)
    if name == "shared" and device == "cuda":
        from mnist_svm.shared.cuda import CudaSolver

        return CudaSolver(multiclass)
    if name == "shared":
        return SharedSolver(multiclass, memory, scratch, sharers)
    fit = {"sklearn": fit_sklearn, "cuml": fit_cuml}[name]
    importlib.import_module({"sklearn": "sklearn.svm", "cuml": "cuml.svm"}[name])  # missing is no trial's fault

    def pointwise(problem: Problem, gamma: float, points: Sequence[Point]) -> Iterator[Fit]:
        for penalty, fold in points:
            images, labels, validation, _ = problem.split(fold)
            yield fit(images, labels, validation, penalty, gamma, multiclass)

    return pointwise


class SharedSolver:
    """All points of one gamma together; matrices are kept, and shared with other processes, as memory allows."""

    def __init__(self, multiclass: str, memory: int, scratch: SharedArrays = NOTHING, sharers: int = 1) -> None:
        from mnist_svm.shared import warm_up

        warm_up()
        self.multiclass, self.memory, self.scratch, self.sharers = multiclass, memory, scratch, sharers
        self._kept: tuple[Samples, Matrices] | None = None

    def __call__(self, problem: Problem, gamma: float, points: Sequence[Point]) -> Iterator[Fit]:
        from mnist_svm import shared

        samples, kept = self._prepared(problem, len(points))
        everything = np.arange(len(problem.labels))
        with kept.kernel(gamma) as kernel:
            if points[0].fold is None:
                for penalty, _ in points:
                    model = shared.fit_samples(samples, penalty, gamma, kept.plan, kept.distances, kernel)
                    yield Fit(model.predict(problem.test_images), model.n_support, model.converged)
                return
            for penalties, folds in grids(points):
                cuts = [(np.delete(everything, problem.folds[fold]), everything[problem.folds[fold]]) for fold in folds]
                for fold in shared.path(samples, gamma, penalties, cuts, kept.plan, kept.distances, kernel):
                    yield from (Fit(point.predictions, point.n_support, point.converged) for point in fold)

    def _prepared(self, problem: Problem, n_points: int) -> tuple[Samples, Matrices]:
        """Sorted samples and their matrices, made once."""
        from mnist_svm import shared
        from mnist_svm.shared.matrices import keep

        if self._kept is None:
            samples = shared.prepare(problem.images, problem.labels)
            kept = keep(samples, self.multiclass, n_points, self.memory, self.scratch, self.sharers)
            self._kept = samples, kept
        return self._kept


def grids(points: Sequence[Point]) -> Iterator[tuple[list[float], list[int]]]:
    """Runs of consecutive folds that ask for the same penalties, so that each run can be solved together."""
    by_fold: dict[int, list[float]] = {}
    for penalty, fold in points:
        by_fold.setdefault(int(fold or 0), []).append(penalty)
    run: list[int] = []
    for fold, penalties in by_fold.items():
        if run and penalties != by_fold[run[0]]:
            yield by_fold[run[0]], run
            run = []
        run.append(fold)
    yield by_fold[run[0]], run


def fit_sklearn(
    images: np.ndarray, labels: np.ndarray, validation: np.ndarray, penalty: float, gamma: float, multiclass: str
) -> Fit:
    """One SVM by scikit-learn's SVC, which is LIBSVM (C.-C. Chang, C.-J. Lin, 2011). On the CPU."""
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.svm import SVC

    machine: Any = SVC(C=penalty, gamma=gamma, kernel="rbf", tol=TOLERANCE, cache_size=CACHE_MIB)
    if multiclass == "ovo":
        machine.fit(images, labels)
        support = machine.support_
    else:
        machine = OneVsRestClassifier(machine).fit(images, labels)
        support = np.concatenate([binary.support_ for binary in machine.estimators_])
    return Fit(machine.predict(validation), len(np.unique(support)))


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
    return Fit(predictions.astype(labels.dtype), len(cupy.unique(cupy.asarray(machine.support_))))
