"""The nearest of samples that are whole numbers, as pixels and counts are, for one thread.

Nothing is rounded there, so distances may be added up in any order and in small types, and are still scikit-learn's to
the bit. A distance and the number of the training sample are put into one integer, since to sort numbers is several
times as fast as to sort their places. Of samples equally far the first are taken.

City-block distances come from the smaller of two numbers: |a - b| = a + b - 2 min(a, b).
"""

from __future__ import annotations

from typing import Any

import numpy as np

_ELEMENTS = 1 << 20  # distances in memory at a time
_LEAST = 8  # numbers that a type must be able to add


def nearest(X: np.ndarray, Y: np.ndarray, metric: str, n: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The n nearest of the training samples, sorted.

    Args:
        X: The samples asked about, (n_rows, n_features), float64.
        Y: The training samples, (n_train, n_features), float64.
        metric: "manhattan" or "euclidean".
        n: At most n_train.

    Returns:
        Distances, float64, and indices, both (n_rows, n); None where the samples are not whole, or too large, or the
        metric is another one.
    """
    if metric not in _DISTANCES or not all((np.rint(Z[:1]) == Z[:1]).all() and (np.rint(Z) == Z).all() for Z in (X, Y)):
        return None
    least = min(X.min(), Y.min())
    top = max(X.max(), Y.max()) - least
    largest = X.shape[1] * (top if metric == "manhattan" else top**2)
    bits = len(Y).bit_length()
    if not largest < 1 << (50 - bits) or (metric == "manhattan" and (top >= 1 << 13 or largest >= 1 << 31)):
        return None
    kind = np.uint32 if int(largest) << bits < 1 << 32 else np.uint64
    distances_to = _DISTANCES[metric](Y - least, int(top), int(largest))
    numbers, mask = np.arange(len(Y), dtype=kind), kind((1 << bits) - 1)
    distances, indices = np.empty((len(X), n)), np.empty((len(X), n), np.intp)
    step = max(_ELEMENTS // len(Y), 1)
    for begin in range(0, len(X), step):
        rows = slice(begin, begin + step)
        keys = distances_to(X[rows] - least).astype(kind)
        keys <<= kind(bits)
        keys |= numbers
        keys.partition(n - 1, axis=1)
        near = np.sort(keys[:, :n], axis=1)
        distances[rows], indices[rows] = near >> kind(bits), near & mask
    return (np.sqrt(distances) if metric == "euclidean" else distances), indices


class _CityBlock:
    """City-block distances to Y, (n_rows, n_train).

    Args:
        Y: Whole numbers from 0 to top.
        top: The largest number.
        largest: The largest distance.
    """

    def __init__(self, Y: np.ndarray, top: int, largest: int):
        p = Y.shape[1]
        self._small: Any = next(kind for kind in (np.uint8, np.uint16) if np.iinfo(kind).max >= _LEAST * top)
        blocks = -(-p * max(top, 1) // np.iinfo(self._small).max)  # of features, which are added up in the small type
        self._shape = blocks, -(-p // blocks)
        self._total: Any = np.uint16 if 2 * largest < 1 << 16 else np.uint32
        self._Y = np.ascontiguousarray(self._cut(Y).transpose(1, 2, 0))
        self._sums = Y.sum(axis=1).astype(self._total)

    def __call__(self, X: np.ndarray) -> np.ndarray:
        smaller, part = np.empty_like(self._Y), np.empty((len(self._Y), self._Y.shape[2]), self._small)
        found = np.empty((len(X), len(self._sums)), self._total)
        for x, row in zip(self._cut(X)[..., None], found, strict=True):
            np.minimum(self._Y, x, out=smaller)
            np.add.reduce(smaller, axis=1, dtype=self._small, out=part)
            np.add.reduce(part, axis=0, dtype=self._total, out=row)
        sums = X.sum(axis=1).astype(self._total)[:, None] + self._sums
        found += found
        return np.subtract(sums, found, out=sums)

    def _cut(self, X: np.ndarray) -> np.ndarray:
        """The features in blocks, with zeros at the end."""
        padded = np.zeros((len(X), self._shape[0] * self._shape[1]), self._small)
        padded[:, : X.shape[1]] = X
        return padded.reshape(len(X), *self._shape)


class _Squares:
    """Squared Euclidean distances to Y, (n_rows, n_train), as one matrix product; the arguments are the same."""

    def __init__(self, Y: np.ndarray, top: int, largest: int):
        self._kind: Any = np.float32 if 4 * largest < 1 << 24 else np.float64  # no sum is beyond what it holds exactly
        self._Y = np.column_stack([Y, np.ones(len(Y)), (Y * Y).sum(axis=1)]).astype(self._kind).T

    def __call__(self, X: np.ndarray) -> np.ndarray:
        return np.asarray(np.column_stack([-2 * X, (X * X).sum(axis=1), np.ones(len(X))]).astype(self._kind) @ self._Y)


_DISTANCES: dict[str, Any] = {"manhattan": _CityBlock, "euclidean": _Squares}
