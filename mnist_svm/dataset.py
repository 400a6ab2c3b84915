"""The classification problem of a grid search, and what a solver is asked and answers. It knows no solver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from common.images import fold_slices, standardised
from mpitune.experiment import Data


@dataclass(frozen=True)
class Dataset:
    """The classification problem that all points of a grid have in common.

    A fold is the number of the images that are predicted, None for the refit, which predicts the test images.

    Attributes:
        images: float32 (n, n_pixels), standardised.
        labels: integers (n,).
        test_images, test_labels: the same of the test images.
        folds: the validation folds of the training images.
    """

    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    folds: list[slice]

    @classmethod
    def of(cls, data: Data, folds: int, max_pixel: int) -> Dataset:
        """From the arrays that `common.data.load` returns."""
        images, test_images = (standardised(data[f"{part}_images"], max_pixel) for part in ("train", "test"))
        labels = data["train_labels"]
        return cls(images, labels, test_images, data["test_labels"], fold_slices(len(labels), folds))

    def train(self, fold: int | None) -> np.ndarray:
        """int64 (n_train,), which of the images are learned from."""
        every = np.arange(len(self.labels))
        return every if fold is None else np.delete(every, self.folds[fold])

    def evaluated(self, fold: int | None) -> tuple[np.ndarray, np.ndarray]:
        """The images that are predicted, float32 (n, n_pixels), and their labels (n,)."""
        if fold is None:
            return self.test_images, self.test_labels
        return self.images[self.folds[fold]], self.labels[self.folds[fold]]


class Fit(NamedTuple):
    """The answer of a solver for one point.

    Attributes:
        predictions: labels (n,) of the images that are asked for.
        n_support: number of distinct support vectors.
        converged: False where the tolerance was not reached within the solver's cap of iterations, None where the
            solver does not tell.
    """

    predictions: np.ndarray
    n_support: int
    converged: bool | None = True


Point = tuple[float, int | None]  # one C on one fold
# From the data, a gamma and points of it to a Fit of each point, in their order, each as soon as it is known. Points of
# a fold are neighbours. Raises MemoryError: it cannot work with the memory that it may use here.
Solver = Callable[[Dataset, float, Sequence[Point]], Iterator[Fit]]


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
