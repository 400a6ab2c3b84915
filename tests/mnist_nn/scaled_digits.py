"""The digits that come with scikit-learn at the size of MNIST's, for networks that need 28 x 28 pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from common.data import load
from tests.helpers import idx


def scaled_digits(n_train: int, n_test: int) -> dict[str, np.ndarray]:
    """The arrays of `common.data.load`, each pixel three times as wide and high, in a margin of 2."""
    arrays = load("digits", Path(), n_train, n_test)
    for name in ("train_images", "test_images"):
        images = np.kron(arrays[name], np.ones((3, 3), np.uint8)) * 15
        arrays[name] = np.pad(images, ((0, 0), (2, 2), (2, 2)))
    return arrays


def write_as_mnist(folder: Path, n_train: int, n_test: int) -> None:
    """Files in torchvision's layout, to be given as --data."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    arrays = scaled_digits(n_train, n_test)
    for part, stem in (("train", "train"), ("test", "t10k")):
        (raw / f"{stem}-images-idx3-ubyte").write_bytes(idx(arrays[f"{part}_images"]))
        (raw / f"{stem}-labels-idx1-ubyte").write_bytes(idx(arrays[f"{part}_labels"]))
