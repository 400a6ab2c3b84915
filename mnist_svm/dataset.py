"""The classification problem of a grid search, and what a solver is asked and answers. It knows no solver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from common.images import fold_slices, standardised
from mpitune.experiment import Data

TOLERANCE = 1e-3  # of the optimality conditions; LIBSVM's, scikit-learn's and cuML's default
CACHE_MIB = 500  # rows of the kernel matrix that each worker may keep


@dataclass(frozen=True)
class Dataset:
    """The classification problem that all points of a grid have in common.

    Attributes:
        images: float32 (n, n_pixels), standardised.
        labels: integers (n,).
        test_images, test_labels: the same of the test images.
        folds: into how many validation folds the training images are cut.
    """

    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    folds: int

    @classmethod
    def of(cls, data: Data, folds: int, max_pixel: int) -> Dataset:
        """From the arrays that `common.data.load` returns."""
        return cls(
            standardised(data["train_images"], max_pixel),
            data["train_labels"],
            standardised(data["test_images"], max_pixel),
            data["test_labels"],
            folds,
        )

    @cached_property
    def splits(self) -> dict[int | None, Split]:
        """By the validation fold that is predicted; None: the refit on all training images predicts the test images."""
        every = np.arange(len(self.labels))
        splits: dict[int | None, Split] = {None: Split(every, every[:0], self.test_labels)}
        for fold, part in enumerate(fold_slices(len(every), self.folds)):
            splits[fold] = Split(np.delete(every, part), every[part], self.labels[part])
        return splits

    def predicted(self, split: Split) -> np.ndarray:
        """float32 (n, n_pixels), the images that a classifier of this split predicts."""
        return self.test_images if split.is_refit else self.images[split.held_out]


@dataclass(frozen=True, eq=False)
class Split:
    """The images that a classifier learns from, and those that it predicts.

    Attributes:
        train: int64 (n_train,), which of the training images it learns from.
        held_out: int64 (n,), which of the training images it predicts; none where it predicts test images.
        labels: integers (n,), of the images that it predicts.
    """

    train: np.ndarray
    held_out: np.ndarray
    labels: np.ndarray

    @property
    def is_refit(self) -> bool:
        """Whether it learns from all training images, and so predicts test images."""
        return not len(self.held_out)


class Fit(NamedTuple):
    """The answer of a solver for one point.

    Attributes:
        predictions: labels (n_validation,).
        n_support: number of distinct support vectors.
        converged: False where the tolerance was not reached within the solver's cap of iterations, None where the
            solver does not tell.
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


# From the data, a gamma and points of it to a Fit of each point, in their order, each as soon as it is known.
Solver = Callable[[Dataset, float, Sequence[GridPoint]], Iterator[Fit]]


def check_classes(labels: np.ndarray, folds: int) -> None:
    """Raise ValueError if a class of `labels` occurs only inside one fold, or if there is only one class."""
    classes = np.unique(labels)
    if len(classes) < 2:
        raise ValueError(f"the {len(labels)} training images are all of class {classes[0]}")
    for number, part in enumerate(fold_slices(len(labels), folds)):
        missing = np.setdiff1d(classes, np.delete(labels, part))
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
