"""The classification problem of a grid search, and what a solver is asked and answers. It knows no solver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

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
    """

    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    folds: Sequence[slice]

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

    @cached_property
    def refit(self) -> Split:
        """All training images, and the test images."""
        return Split(np.arange(len(self.labels)), np.arange(0), self.test_images, self.test_labels)

    @cached_property
    def splits(self) -> list[Split]:
        """One for each fold."""
        everything = np.arange(len(self.labels))
        return [
            Split(np.delete(everything, fold), everything[fold], self.images[fold], self.labels[fold])
            for fold in self.folds
        ]


@dataclass(frozen=True, eq=False)
class Split:
    """The images that a classifier learns from, and those that it predicts.

    Attributes:
        train: int64 (n_train,), which of the training images it learns from.
        held_out: int64 (n,), which of the training images it predicts; none for a refit, which predicts test images.
        images: float32 (n, n_pixels), those that it predicts.
        labels: integers (n,), theirs.
    """

    train: np.ndarray
    held_out: np.ndarray
    images: np.ndarray
    labels: np.ndarray

    @property
    def is_refit(self) -> bool:
        """Whether it learns from all training images."""
        return not len(self.held_out)


class Fit(NamedTuple):
    """The answer of a solver for one point.

    predictions: labels (n_validation,). n_support: number of distinct support vectors. converged: False where
    the tolerance was not reached within the solver's cap of iterations, None where the solver does not tell.
    """

    predictions: np.ndarray
    n_support: int
    converged: bool | None = True


class GridPoint(NamedTuple):
    """One C on one split."""

    penalty: float
    split: Split


class LittleMemory(MemoryError):
    """A solver cannot work with the memory that it may use here; its text says what it needs."""


class Solver(ABC):
    """A way to fit the points of a grid."""

    @abstractmethod
    def __call__(self, dataset: Dataset, gamma: float, points: Sequence[GridPoint]) -> Iterator[Fit]:
        """A Fit of each point of one gamma, in their order, each as soon as it is known."""

    def together(self, dataset: Dataset, rows: Sequence[tuple[float, Sequence[GridPoint]]]) -> Iterator[Fit]:
        """A Fit of each point of each row (gamma, points), in their order: row by row, where that is no slower."""
        for gamma, points in rows:
            yield from self(dataset, gamma, points)


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


def grids(points: Sequence[GridPoint]) -> Iterator[tuple[list[float], list[Split]]]:
    """Runs of consecutive folds that ask for the same penalties, to be solved together; a refit is a run of its own."""
    by_split: dict[Split, list[float]] = {}
    for penalty, split in points:
        by_split.setdefault(split, []).append(penalty)
    run: list[Split] = []
    for split, penalties in by_split.items():
        if run and (penalties != by_split[run[0]] or split.is_refit or run[0].is_refit):
            yield by_split[run[0]], run
            run = []
        run.append(split)
    yield by_split[run[0]], run
