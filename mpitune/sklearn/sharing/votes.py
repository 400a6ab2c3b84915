"""The classes that nearest samples vote for, for all k at once, and where a class is in doubt.

The votes before each neighbour are one matrix product, so each k reads its own. Votes of `weights="uniform"` are whole
numbers, so the first of equal classes is known. Other votes may be added up in another order than by scikit-learn, so
classes that are closer than a billionth are in doubt. A class is in doubt, too, if it depends on which of several
samples at the same distance are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# Weights of the nearest, (n_rows, n_near), or None where each has one vote; and numbers of neighbours, (n_ks,).
Asked = tuple[np.ndarray | None, np.ndarray]

_CLOSE = 1e-9  # relative difference of two votes from which on rounding cannot decide
_ELEMENTS = 1 << 17  # votes in memory at a time


@dataclass(frozen=True)
class Runs:
    """Runs of neighbours that are equally far; arrays of (n_rows, n_near), but for `same`."""

    same: np.ndarray  # bool (n_rows, n_near - 1), whether a neighbour is as far as the next
    begins: np.ndarray  # of the run of a neighbour
    ends: np.ndarray  # not included
    mixed: np.ndarray  # bool, whether the labels of that run differ, or some of it may be unknown
    complete: np.ndarray  # bool, whether all of that run is known

    @classmethod
    def of(cls, same: np.ndarray, labels: np.ndarray, whole: bool) -> Runs:
        """The runs of neighbours whose classes are `labels`, (n_rows, n), sorted by distance.

        whole: whether the last neighbour is the last sample. If not, the last run may go on.
        """
        n_rows, n = len(labels), labels.shape[1]
        places = np.arange(n)
        begins, ends = np.zeros((n_rows, n), np.intp), np.full((n_rows, n), n)
        np.maximum.accumulate(np.where(same, 0, places[1:]), axis=1, out=begins[:, 1:])
        ends[:, :-1] = np.minimum.accumulate(np.where(same, n, places[1:])[:, ::-1], axis=1)[:, ::-1]
        other = labels[:, 1:] != labels[:, :-1]
        changes = np.zeros((n_rows, n), np.intp)  # of labels, within runs, up to a neighbour
        np.cumsum(same & (other if other.ndim == 2 else other.any(2)), axis=1, out=changes[:, 1:])
        rows = np.arange(n_rows)[:, None]
        mixed = changes[rows, ends - 1] > changes[rows, begins]
        complete = (ends < n) | whole
        return cls(same, begins, ends, mixed | ~complete, complete)

    def __getitem__(self, rows: slice) -> Runs:
        return Runs(*(part[rows] for part in (self.same, self.begins, self.ends, self.mixed, self.complete)))


def voted(
    labels: np.ndarray, asked: Sequence[Asked], n_classes: int, runs: Runs
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of each k and row the number of the class with most votes, the first of equal ones, and whether that is in doubt.

    labels are numbers of the classes of the nearest, (n_rows, n_near). Each of `asked` has two (n_ks, n_rows).
    """
    n_rows, n_near = labels.shape
    decided = [(np.zeros((len(ks), n_rows), np.intp), np.zeros((len(ks), n_rows), np.bool_)) for _, ks in asked]
    step = max(_ELEMENTS // (n_classes * (n_near + 1)), 1)
    for begin in range(0, n_rows, step):
        rows = slice(begin, begin + step)
        mine = labels[rows].T[:, None, :] == np.arange(n_classes)[:, None]
        # The smaller type, where it tells whole numbers apart that differ by a class's fraction, see `_voted`.
        counts = _before(mine.astype(np.float32 if n_near * n_classes < 1 << 22 else np.float64))
        for (weights, ks), (chosen, doubtful) in zip(asked, decided, strict=True):
            part = None if weights is None else weights[rows]
            chosen[:, rows], doubtful[:, rows] = _voted(mine, counts, part, ks, runs[rows])
    return decided


def _voted(mine: np.ndarray, counts: np.ndarray, weights: Any, ks: np.ndarray, runs: Runs) -> tuple[np.ndarray, ...]:
    """The same for some rows; mine: whether a neighbour is of a class, (n_near, n_classes, n_rows)."""
    n_near, n_classes, _ = mine.shape
    numbers = np.arange(n_classes, dtype=np.min_scalar_type(n_classes))[:, None]
    votes = counts if weights is None else _before(np.where(mine, weights.T[:, None, :], 0.0))
    now = votes[ks]
    if weights is None:  # whole numbers: of equal ones the first is a little more
        now -= (numbers / n_classes).astype(now.dtype)
    best = now.max(axis=1, keepdims=True)
    near = (now >= (best if weights is None else best * (1 - _CLOSE))).view(np.uint8)
    chosen = (near * numbers).sum(axis=1, dtype=numbers.dtype)  # where there is one
    doubtful = near.sum(axis=1, dtype=numbers.dtype) != 1
    inner = np.flatnonzero(ks < n_near)
    columns, rows = np.nonzero((runs.same & runs.mixed[:, :-1]).T[ks[inner] - 1])
    if len(rows):
        columns = inner[columns]
        doubtful[columns, rows] |= _open(counts, votes, weights, ks[columns], rows, runs)
    return chosen, doubtful


def _before(votes: np.ndarray) -> np.ndarray:
    """The sums of the first 0, 1, 2, ... of (n_near, n_classes, n_rows)."""
    n_near, n_classes, n_rows = votes.shape
    sums = np.tri(n_near + 1, n_near, -1, dtype=votes.dtype) @ votes.reshape(n_near, -1)
    return np.asarray(sums).reshape(n_near + 1, n_classes, n_rows)


def _open(
    counts: np.ndarray, votes: np.ndarray, weights: Any, ks: np.ndarray, rows: np.ndarray, runs: Runs
) -> np.ndarray:
    """Whether the class depends on the choice among those as far as the k-th, for pairs of k and row."""
    begins, ends, complete = (part[rows, ks - 1, None] for part in (runs.begins, runs.ends, runs.complete))
    taken = ks[:, None] - begins  # of the run
    edge = 1.0 if weights is None else weights[rows, ks - 1, None]
    known = counts[ends[:, 0], :, rows] - counts[begins[:, 0], :, rows]
    sure = votes[begins[:, 0], :, rows]
    least = sure + np.where(complete, np.maximum(taken - (ends - begins - known), 0), 0) * edge
    most = sure + np.where(complete, np.minimum(taken, known), taken) * edge
    safe = least.argmax(axis=1)[:, None]
    np.put_along_axis(most, safe, -np.inf, axis=1)
    return np.asarray(most.max(axis=1) >= np.take_along_axis(least, safe, axis=1)[:, 0] * (1 - _CLOSE))
