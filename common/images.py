"""The settings that all studies of images share, and how training images are cut into folds."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from threading import Thread

import numpy as np

from common.data import DatasetSettings, load
from mpitune.errors import UsageError
from mpitune.experiment import Experiment
from mpitune.settings import setting


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
    seed: int = setting(0, "root of every random stream", low=0)

    def data(self) -> dict[str, np.ndarray]:
        """The arrays of `load`. Raises UsageError when there are fewer training images than folds."""
        Thread(target=import_module, args=("mpitune.figures.plotting",), daemon=True).start()  # for the report
        arrays = load(self.dataset, self.data_folder, self.train_size, self.test_size)
        n_train = len(arrays["train_labels"])
        if n_train < self.folds:
            raise UsageError(f"--folds {self.folds} is too large: there are {n_train} training images")
        return arrays


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
