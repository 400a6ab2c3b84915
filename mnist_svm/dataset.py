"""The classification problem of a grid search, and what a solver is asked and answers. It knows no solver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from common.experiment import Data
from common.images import fold_slices, standardised

TOLERANCE = 1e-3  # of the optimality conditions; LIBSVM's, scikit-learn's and cuML's default
CACHE_MIB = 500  # rows of the kernel matrix that each worker may keep


@dataclass(frozen=True)
class Dataset:
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
    def of(cls, data: Data, folds: int, max_pixel: int) -> Dataset:
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
    the tolerance was not reached within the solver's cap of iterations, None where the solver does not tell.
    """

    predictions: np.ndarray
    n_support: int
    converged: bool | None = True


class GridPoint(NamedTuple):
    """One C on one fold; without a fold, trained on all training images and asked about the test images."""

    penalty: float
    fold: int | None


class LittleMemory(MemoryError):
    """A solver cannot work with the memory that it may use here; its text says what it needs."""


# (data set, gamma, points) -> one Fit per point, in their order, each as soon as it is known.
Solver = Callable[[Dataset, float, Sequence[GridPoint]], Iterator[Fit]]


@runtime_checkable
class SeveralGammas(Protocol):
    """A solver that gains from being given several gammas at once."""

    def together(self, dataset: Dataset, rows: Sequence[tuple[float, Sequence[GridPoint]]]) -> Iterator[Fit]:
        """A Fit of each point of each row (gamma, points), in their order."""


def solved(solver: Solver, dataset: Dataset, rows: Sequence[tuple[float, Sequence[GridPoint]]]) -> Iterator[Fit]:
    """A Fit of each point of each row (gamma, points): all together where the solver can, else row by row."""
    if isinstance(solver, SeveralGammas):
        yield from solver.together(dataset, rows)
    else:
        for gamma, points in rows:
            yield from solver(dataset, gamma, points)


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


def grids(points: Sequence[GridPoint]) -> Iterator[tuple[list[float], list[int]]]:
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
