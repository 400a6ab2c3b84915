"""The settings that all studies of images share, and how training images are cut into folds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.data import DatasetSettings, is_present, load
from mpitune.errors import UsageError
from mpitune.experiment import Data, Experiment
from mpitune.figures.statistics import RULES, cross_validated, interval_text
from mpitune.settings import setting
from mpitune.trial import Trial


@dataclass(frozen=True, kw_only=True)
class ImageSettings(DatasetSettings, Experiment):
    """Settings of all studies of images. Keyword-only, so that subclasses may add positionals."""

    train_size: int | None = setting(
        None, "learn from the first N training images (default all)", low=2, metavar="N", group="images"
    )
    test_size: int | None = setting(
        None, "test on the first N test images (default all)", low=1, metavar="N", group="images", advanced=True
    )
    folds: int = setting(5, "folds of the cross-validation", low=2)
    outer_folds: int | None = setting(
        None,
        "nested cross-validation: cut the training images into K parts, repeat the whole search without each of them, "
        "and report the errors on these",
        low=2,
        changes_results=False,
        metavar="K",
        advanced=True,
    )
    select: str = setting(
        "best",
        "the point or network to choose: best (the least error of the cross-validation), 1se (the simplest within one "
        "standard error of it) or simplest (the simplest that a paired test over the folds does not find worse)",
        choices=RULES,
        changes_results=False,
        advanced=True,
    )
    seed: int = setting(0, "root of every random stream", low=0)

    @property
    def outer(self) -> list[tuple[int, int] | None]:
        """What each search does not see: nothing but the test images (None), then each outer fold in turn."""
        n = self.outer_folds or 0
        return [None, *((number, n) for number in range(n))]

    def data(self) -> dict[str, np.ndarray]:
        """The arrays of `load`. Raises UsageError when there are fewer training images than folds."""
        arrays = load(self.dataset, self.data_folder, self.train_size, self.test_size)
        n_train = len(arrays["train_labels"])
        if n_train < self.folds:
            raise UsageError(f"--folds {self.folds} is too large: there are {n_train} training images")
        if self.outer_folds is not None and n_train - -(-n_train // self.outer_folds) < self.folds:
            raise UsageError(f"--outer-folds {self.outer_folds} leaves too few of the {n_train} training images")
        return arrays

    def data_here(self) -> Data | None:
        """The arrays of `data` where nothing must be downloaded for them."""
        return self.data() if is_present(self.dataset, self.data_folder) else None


def standardised(images: np.ndarray, max_pixel: int) -> np.ndarray:
    """Flat pixels with the mean and the standard deviation of a uniform grey value taken out.

    uint8 (n, height, width) in 0..max_pixel become float32 (n, height * width): (x - max / 2) / (max / sqrt(12)), the
    divisor to two decimals, so that 0..255 becomes the usual (x - 127.5) / 73.61.
    """
    deviation = round(max_pixel / 12**0.5, 2)
    return ((images.reshape(len(images), -1) - max_pixel / 2) / deviation).astype(np.float32)


def fold_slices(n: int, folds: int) -> list[slice]:
    """The slice of each validation fold in n samples; the first n % folds of them are one longer.

    The folds of scikit-learn's KFold without shuffling; n must be at least `folds`.
    """
    parts = np.array_split(np.arange(n), folds)
    return [slice(int(part[0]), int(part[-1]) + 1) for part in parts]


def outer_split(n: int, outer: tuple[int, int] | None) -> tuple[np.ndarray, np.ndarray]:
    """int64 (n_seen,), (n_held_out,): which of n training images a search sees; `outer` None is one that sees all."""
    everything = np.arange(n)
    if outer is None:
        return everything, everything[:0]
    part = fold_slices(n, outer[1])[outer[0]]
    return np.delete(everything, part), everything[part]


def outer_prefix(outer: tuple[int, int] | None) -> str:
    """Begins the keys of a search that does not see an outer fold (its number, of how many).

    The number of folds is in it, so that a study may be continued with another one.
    """
    return "" if outer is None else "o{}of{}/".format(*outer)


def outer_params(outer: tuple[int, int] | None) -> dict[str, int]:
    """The parameters of its trials that say so; `outer_of` reads them."""
    return {} if outer is None else {"outer": outer[0], "outer_folds": outer[1]}


def outer_of(trial: Trial) -> tuple[int, int] | None:
    """The outer fold that a trial's search does not see."""
    return (int(trial.params["outer"]), int(trial.params["outer_folds"])) if "outer" in trial.params else None


def nested_summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The error of nested cross-validation, of a row with an `error` for each outer fold; None where one has none."""
    errors = np.array([row["error"] for row in rows])
    if np.isnan(errors).any():
        return {"outer_folds": len(rows), "failed": int(np.isnan(errors).sum()), "error": None, "interval": None}
    interval = list(cross_validated(errors))
    return {"outer_folds": len(rows), "failed": 0, "error": float(errors.mean()), "interval": interval}


def nested_text(nested: Mapping[str, Any], kind: str) -> str:
    """A `nested_summary` for people; kind: what there is one of for each outer fold."""
    n = nested["outer_folds"]
    if nested["failed"]:
        return f"not known: {nested['failed']} of {n} outer folds have no error"
    return f"{nested['error']:.2%}{interval_text(nested['interval'])}, {n} {kind} on images they had not seen"
