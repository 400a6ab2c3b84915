"""The nearest training samples of some samples, for all k at once, and the classes that they vote for.

`neighbours.py` has the reason why the result is that of single fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist
from sklearn import get_config
from sklearn.metrics._pairwise_distances_reduction import ArgKmin, ArgKminClassMode
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neighbors._base import _get_weights
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils._openmp_helpers import _openmp_effective_n_threads
from sklearn.utils.validation import validate_data

_BEYOND = 4  # neighbours beyond the largest k, so that samples equally far are seen to their last
_CLOSE = 1e-9  # relative difference of two votes from which on rounding cannot decide
_ELEMENTS = 1 << 22  # distances in memory at a time


@dataclass(frozen=True)
class _Runs:
    """Runs of neighbours that are equally far.

    Attributes:
        same: bool (n_rows, n_near - 1), whether a neighbour is as far as the next.
        begins, ends: (n_rows, n_near), of the run of a neighbour, the end not included.
        mixed: bool (n_rows, n_near), whether the labels of that run differ, or some of it may be unknown.
    """

    same: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    mixed: np.ndarray

    @classmethod
    def of(cls, same: np.ndarray, labels: np.ndarray, whole: bool) -> _Runs:
        """whole: whether the last neighbour is the last sample. If not, those as far as the last may go on."""
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
        return cls(same, begins, ends, mixed if whole else mixed | (ends == n))


class Nearest:
    """The nearest training samples of some samples X, for several candidates.

    Args:
        base: Fitted; candidates differ from it in k and weights.
        X: The samples, as the model will be asked about them.
        models: The candidates.
    """

    def __init__(self, base: Any, X: Any, models: Sequence[Any]):
        self.X, self._base = X, base
        ks = [model.n_neighbors for model in models]
        self._places = {k: place for place, k in enumerate(sorted(set(ks)))}
        n = base.n_samples_fit_
        self._n_near = min(max(ks) + _BEYOND, n)
        self._whole = self._n_near == n
        finite = "allow-nan" if get_tags(base).input_tags.allow_nan else True
        self._checked = validate_data(base, X, ensure_all_finite=finite, accept_sparse="csr", reset=False, order="C")
        brute = base._fit_method == "brute"
        self._direct = brute and ArgKmin.is_usable_for(self._checked, base._fit_X, base.effective_metric_)
        self.distances, self.indices = self._searched()
        self._labels = base._y[self.indices]
        self._runs = _Runs.of(self.distances[:, 1:] == self.distances[:, :-1], self._labels, self._whole)
        self._settled: dict[
            int, tuple[np.ndarray, np.ndarray, np.ndarray]
        ] = {}  # doubtful rows, as scikit-learn has them
        votes = isinstance(base, KNeighborsClassifier) and not base.outputs_2d_
        kinds = {_kind(model.weights) for model in models if votes and not callable(model.weights)}
        self._voted = {kind: self._vote(kind) for kind in sorted(kinds)}

    def neighbours(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Distances and indices as `kneighbors` gives them for this k alone."""
        return self._of_rows(np.arange(len(self.distances)), k)

    def classes(self, model: Any, plain: Callable[[], Any]) -> np.ndarray:
        """The predicted class of each row.

        Args:
            model: Has k and weights.
            plain: Gives the same model, which computes everything.
        """
        kind, k = _kind(model.weights), model.n_neighbors
        chosen, doubtful = (part[:, self._places[k]] for part in self._voted[kind])
        classes = np.asarray(self._base.classes_[chosen])
        if _threads() > 1 and model.weights == "uniform" and self._counts_itself:
            rows = np.flatnonzero(doubtful)
            if len(rows):
                few = 2 * len(rows) < len(classes)
                classes[rows] = plain().predict(_rows(self.X, rows)) if few else plain().predict(self.X)[rows]
            return classes
        if k not in self._settled:
            rows = np.flatnonzero(np.any([part[:, self._places[k]] for _, part in self._voted.values()], axis=0))
            self._settled[k] = rows, *(self._asked(rows, k) if len(rows) else (rows, rows))
        rows, distances, indices = self._settled[k]
        if len(rows):
            classes[rows] = self._base.classes_[self._most(self._base._y[indices], _weights(kind, distances))]
        return classes

    @property
    def _counts_itself(self) -> bool:
        """Whether scikit-learn counts uniform votes without `kneighbors`; with several threads ties differ then."""
        base = self._base
        brute = base._fit_method == "brute"
        return brute and ArgKminClassMode.is_usable_for(self.X, base._fit_X, base.effective_metric_)

    def _most(self, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """The class with most votes of each row, added up in scikit-learn's order, the first of equal ones."""
        numbers = np.arange(len(self._base.classes_))[:, None, None]
        return np.asarray(np.where(labels == numbers, weights, 0.0).sum(2).argmax(0))

    def _of_rows(self, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Distances and indices of some rows as scikit-learn has them for this k alone."""
        distances, indices = self.distances[rows, :k], self.indices[rows, :k]
        if k < self._n_near:
            asked = np.flatnonzero(self._runs.same[rows, k - 1] & self._runs.mixed[rows, k - 1])
            if len(asked):
                distances[asked], indices[asked] = self._asked(rows[asked], k)
        return distances, indices

    def _asked(self, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """What scikit-learn says about some rows for this k alone."""
        n_rows = len(self.distances)
        # Beyond this number of rows scikit-learn divides its work among threads in another way, which ties depend on.
        limit = 4 * (get_config()["pairwise_dist_chunk_size"] or 256) * _threads()
        padded = np.resize(rows, limit + 1) if n_rows > limit >= len(rows) and _threads() > 1 else rows
        if 2 * len(padded) < n_rows:
            distances, indices = (part[: len(rows)] for part in self._found(_rows(self._checked, padded), k))
            if np.array_equal(distances, self.distances[rows, :k]):
                return distances, indices
        distances, indices = self._found(self._checked, k)
        return distances[rows], indices[rows]

    def _found(self, X: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
        """As `kneighbors`, of samples that were checked."""
        base = self._base
        if not self._direct:
            distances, indices = type(base).kneighbors(base, X, k)
            return distances, indices
        kwargs = base.effective_metric_params_
        return ArgKmin.compute(
            X, base._fit_X, k, base.effective_metric_, metric_kwargs=kwargs, strategy="auto", return_distance=True
        )

    def _searched(self) -> tuple[np.ndarray, np.ndarray]:
        """Distances and indices of the nearest, sorted; any of those equally far as the last.

        City-block distances are computed by SciPy, several pairs at a time, each added up in the same order as by
        scikit-learn: they are equal to the bit.
        """
        X, Y = self._checked, self._base._fit_X
        if not self._direct or self._base.effective_metric_ != "manhattan" or not _plain(X, Y):
            return self._found(X, self._n_near)
        step = max(_ELEMENTS // len(Y), 1)
        chunks = (X[begin : begin + step] for begin in range(0, len(X), step))
        parts = [_smallest(cdist(chunk, Y, "cityblock"), self._n_near) for chunk in chunks]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    def _vote(self, kind: str) -> tuple[np.ndarray, np.ndarray]:
        """Of each row and k the class with most votes, the first of equal ones, and whether that is in doubt.

        It is where rounding could decide, and where the class depends on which of those equally far are taken.
        """
        ks, runs = np.array(list(self._places)), self._runs
        weights = _weights(kind, self.distances)
        inner = ks < self._n_near
        tied = np.zeros((len(weights), len(ks)), np.bool_)
        tied[:, inner] = (runs.same & runs.mixed[:, :-1])[:, ks[inner] - 1]
        rows, columns = np.nonzero(tied)
        range_ = _Range(runs, weights, rows, ks[columns], self._whole)
        best, second = np.full(tied.shape, -1.0), np.full(tied.shape, -1.0)
        chosen = np.zeros(tied.shape, np.intp)
        votes = np.zeros((len(weights), self._n_near + 1))  # of one class, of the neighbours before
        for number in range(len(self._base.classes_)):
            mine = self._labels == number
            np.cumsum(np.where(mine, weights, 0.0), axis=1, out=votes[:, 1:])
            if len(rows):
                range_.add(number, votes, mine)
            now = votes[:, ks]
            better = now > best
            np.maximum(second, np.where(better, best, now), out=second)
            chosen[better] = number
            np.maximum(best, now, out=best)
        doubtful = best - second <= _CLOSE * best if kind == "distance" else np.zeros_like(tied)
        doubtful[rows, columns] |= range_.open()
        return chosen, doubtful


class _Range:
    """The least and the most votes that classes may get, where it depends on the choice among those equally far.

    Args:
        runs: Of all rows.
        weights: Of the neighbours, (n_rows, n_near).
        rows, ks: Pairs whose k-th neighbour and the next are equally far.
        whole: Whether the last neighbour is the last sample.
    """

    def __init__(self, runs: _Runs, weights: np.ndarray, rows: np.ndarray, ks: np.ndarray, whole: bool):
        self._rows, self._begins, self._ends = rows, runs.begins[rows, ks - 1], runs.ends[rows, ks - 1]
        self._taken, self._edge = ks - self._begins, weights[rows, ks - 1]
        self._complete = self._ends < weights.shape[1] if not whole else np.ones(len(rows), np.bool_)
        self._least, self._most, self._next = (np.full(len(rows), -1.0) for _ in range(3))
        self._safe, self._rival = np.full(len(rows), -1), np.full(len(rows), -1)  # classes of _least and _most

    def add(self, number: int, votes: np.ndarray, mine: np.ndarray) -> None:
        """The class of that number: its votes before each neighbour (n_rows, n_near + 1), and whether it is of it."""
        counts = np.zeros(votes.shape, np.intp)
        np.cumsum(mine, axis=1, out=counts[:, 1:])
        known = counts[self._rows, self._ends] - counts[self._rows, self._begins]
        others = self._ends - self._begins - known
        sure = votes[self._rows, self._begins]
        least = sure + np.where(self._complete, np.maximum(self._taken - others, 0), 0) * self._edge
        most = sure + np.where(self._complete, np.minimum(self._taken, known), self._taken) * self._edge
        self._safe = np.where(least > self._least, number, self._safe)
        self._least = np.maximum(self._least, least)
        higher = most > self._most
        self._next = np.where(higher, self._most, np.maximum(self._next, most))
        self._rival = np.where(higher, number, self._rival)
        self._most = np.maximum(self._most, most)

    def open(self) -> np.ndarray:
        """Whether another class than the one with the most sure votes may win."""
        rivals = np.where(self._rival == self._safe, self._next, self._most)
        return np.asarray(rivals >= self._least * (1 - _CLOSE))


def _smallest(distances: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The n smallest of each row, sorted, and their columns."""
    near = np.argpartition(distances, n - 1, axis=1)[:, :n]
    found = np.take_along_axis(distances, near, axis=1)
    order = np.argsort(found, axis=1, kind="stable")
    return np.take_along_axis(found, order, axis=1), np.take_along_axis(near, order, axis=1)


def _plain(*samples: Any) -> bool:
    return all(type(X) is np.ndarray and X.dtype == np.float64 for X in samples)


def _rows(X: Any, rows: np.ndarray) -> Any:
    return X[rows] if isinstance(X, np.ndarray) else _safe_indexing(X, rows)


def _kind(weights: Any) -> str:
    return "distance" if weights == "distance" else "uniform"


def _weights(kind: str, distances: np.ndarray) -> np.ndarray:
    """scikit-learn's weights of neighbours."""
    return np.asarray(_get_weights(distances, kind)) if kind == "distance" else np.ones_like(distances)


def _threads() -> int:
    return int(_openmp_effective_n_threads())
