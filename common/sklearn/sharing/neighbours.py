"""k nearest neighbours: all k and all weights from one search of neighbours.

Why the result is the single one. scikit-learn answers for k from the k nearest training samples, sorted by distance.
The first k of the K > k nearest are these same samples, unless the k-th and the next are equally far: which of them
scikit-learn keeps then depends on the order in which its heap of size k saw all samples. So a row in which samples
that are equally far on both sides of the boundary differ in their labels is asked of scikit-learn again, for this k
alone. Where they agree in their labels, any choice gives the same answer. Votes of `weights="uniform"` are whole
numbers. Votes of `weights="distance"` are sums of the same numbers, perhaps in another order: where two classes are
closer than a billionth, scikit-learn is asked too. Distances do not depend on k; where those of the rows asked again
differ by a bit from those known (a matrix product of another shape may round differently), all rows are asked again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from numbers import Integral
from typing import Any

import numpy as np
from sklearn import get_config
from sklearn.base import clone
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neighbors._base import _get_weights
from sklearn.utils import _safe_indexing
from sklearn.utils._openmp_helpers import _openmp_effective_n_threads
from sklearn.utils.validation import _num_samples

from common.sklearn.sharing.family import Family, Settings, SplitPart, valid

_BEYOND = 4  # neighbours beyond the largest k, so that samples equally far are seen to their last
_CLOSE = 1e-9  # relative difference of two votes from which on rounding cannot decide


class _Near:
    """The nearest training samples of some samples X, for several candidates.

    base: fitted; candidates differ from it in k and weights. ks: all values of k that may be asked for.
    """

    def __init__(self, base: Any, X: Any, ks: Sequence[int]):
        self.X, self._ks, self._base = X, sorted(set(ks)), base
        n = base.n_samples_fit_
        self._n_near = min(self._ks[-1] + _BEYOND, n)
        self.distances, self.indices = type(base).kneighbors(base, X, self._n_near)
        self.labels = base._y[self.indices]
        self._doubtful = self._boundaries(whole=self._n_near == n)
        self._voted: dict[str, dict[int, tuple[np.ndarray, np.ndarray]]] = {}
        self._settled: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}  # rows as scikit-learn has them

    def _boundaries(self, whole: bool) -> dict[int, np.ndarray]:
        """For each k, the rows (indices) in which samples equally far, with different labels, lie on both sides.

        whole: whether the last neighbour is the last sample. If not, those equally far as the last may go on.
        """
        same = self.distances[:, 1:] == self.distances[:, :-1]
        other = self.labels[:, 1:] != self.labels[:, :-1]
        differ = same & (other if other.ndim == 2 else other.any(2))
        rows, n = self.distances.shape
        before = np.zeros((rows, n), np.bool_)  # those equally far as this one, up to it, differ
        for i in range(1, n):
            before[:, i] = differ[:, i - 1] | (same[:, i - 1] & before[:, i - 1])
        after = np.zeros((rows, n), np.bool_)  # from it on
        after[:, -1] = not whole
        for i in range(n - 2, -1, -1):
            after[:, i] = differ[:, i] | (same[:, i] & after[:, i + 1])
        found = {}
        for k in self._ks:
            if k < n:
                found[k] = np.flatnonzero(same[:, k - 1] & (before[:, k] | after[:, k]))
            else:
                found[k] = np.arange(0 if whole else rows)
        return found

    def _asked(self, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows, distances and indices as scikit-learn has them for this k alone: of the rows given, or of all rows."""
        n_rows = len(self.distances)
        # Beyond this number of rows scikit-learn divides its work among threads in another way, which ties depend on.
        limit = 4 * (get_config()["pairwise_dist_chunk_size"] or 256) * _threads()
        padded = np.resize(rows, limit + 1) if n_rows > limit >= len(rows) > 0 and _threads() > 1 else rows
        if not len(rows):
            return rows, self.distances[:0, :k], self.indices[:0, :k]
        if 2 * len(padded) < n_rows:
            found = type(self._base).kneighbors(self._base, _safe_indexing(self.X, padded), k)
            distances, indices = (part[: len(rows)] for part in found)
            if np.array_equal(distances, self.distances[rows, :k]):
                return rows, distances, indices
        return np.arange(n_rows), *type(self._base).kneighbors(self._base, self.X, k)

    def neighbours(self, model: Any) -> tuple[np.ndarray, np.ndarray]:
        """Distances and indices as `kneighbors` gives them for the model's k alone."""
        k = model.n_neighbors
        kept = self.distances[:, :k].copy(), self.indices[:, :k].copy()
        rows, *found = self._asked(self._doubtful[k], k)
        for part, new in zip(kept, found, strict=True):
            part[rows] = new
        return kept

    def classes(self, model: Any) -> np.ndarray:
        """The predicted class of each row."""
        kind, k = "distance" if model.weights == "distance" else "uniform", model.n_neighbors
        if kind not in self._voted:
            self._voted[kind] = self._vote(kind)
        chosen, close = self._voted[kind][k]
        if k not in self._settled:
            open_rows = np.union1d(self._undecided("uniform", k), self._undecided("distance", k))
            self._settled[k] = self._asked(open_rows, k)
        rows, distances, indices = self._settled[k]
        chosen = chosen.copy()
        if len(rows):
            votes = self._votes(kind, distances, self._base._y[indices])
            chosen[rows] = votes.argmax(1)
            close = np.union1d(np.setdiff1d(close, rows), rows[_close(kind, votes)])
        classes = self._base.classes_[chosen]
        if len(rows) and kind == "uniform" and _threads() > 1:
            close = rows  # with several threads scikit-learn's votes see the samples in another order
        if len(close):
            return self._predicted(model, classes, close)
        return np.asarray(classes)

    def _predicted(self, model: Any, classes: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The classes, those of some rows as scikit-learn predicts them for this model alone."""
        plain = _plain(model)
        if 2 * len(rows) >= len(classes):
            return np.asarray(plain.predict(self.X))
        classes[rows] = plain.predict(_safe_indexing(self.X, rows))
        return classes

    def _undecided(self, kind: str, k: int) -> np.ndarray:
        """The doubtful rows of this k whose class depends on which of those equally far at the boundary are taken."""
        rows = self._doubtful[k]
        if not len(rows) or k >= self.distances.shape[1]:
            return rows
        distances = self.distances[rows]
        edge = distances[:, k - 1 : k]
        closer = distances < edge
        of = self.labels[rows][:, :, None] == np.arange(len(self._base.classes_))  # row x neighbour x class
        places = (k - closer.sum(1))[:, None]  # for those at the boundary, of whom there may be more than are known
        known = (of & (distances == edge)[:, :, None]).sum(1)
        complete = distances[:, -1:] > edge
        low = np.where(complete, np.maximum(places - (known.sum(1)[:, None] - known), 0), 0)
        high = np.where(complete, np.minimum(places, known), places)
        weights = _weights(kind, distances)
        sure = np.einsum("ij,ijc->ic", np.where(closer, weights, 0.0), of)
        lowest, highest = (sure + number * weights[:, k - 1 : k] for number in (low, high))
        all_rows, best = np.arange(len(rows)), lowest.argmax(1)
        least = lowest[all_rows, best]
        highest[all_rows, best] = -1.0
        return np.asarray(rows[highest.max(1) >= least * (1 - _CLOSE)])

    def _votes(self, kind: str, distances: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The votes for each class, (n_rows, n_classes), of neighbours (n_rows, k)."""
        votes, rows = np.zeros((len(labels), len(self._base.classes_))), np.arange(len(labels))
        for weights, column in zip(_weights(kind, distances).T, labels.T, strict=True):
            votes[rows, column] += weights
        return votes

    def _vote(self, kind: str) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """For each k the class with most votes, the first of equal ones, and the rows where votes are too close."""
        rows = np.arange(len(self.labels))
        votes = np.zeros((len(rows), len(self._base.classes_)))
        weights = _weights(kind, self.distances)
        chosen, wanted = {}, set(self._ks)
        for i, labels in enumerate(self.labels.T):
            votes[rows, labels] += weights[:, i]
            if i + 1 in wanted:
                chosen[i + 1] = votes.argmax(1), _close(kind, votes)
        return chosen


def _threads() -> int:
    return int(_openmp_effective_n_threads())


def _weights(kind: str, distances: np.ndarray) -> np.ndarray:
    """scikit-learn's weights of neighbours."""
    return np.ones_like(distances) if kind == "uniform" else np.asarray(_get_weights(distances.copy(), kind))


def _close(kind: str, votes: np.ndarray) -> np.ndarray:
    """The rows in which rounding could decide between two classes."""
    if kind == "uniform" or votes.shape[1] < 2:
        return np.arange(0)
    second, first = np.partition(votes, -2, axis=1)[:, -2:].T
    return np.flatnonzero(first - second <= _CLOSE * first)


class _KnowsNear:
    """A fitted model that answers for samples whose neighbours are known."""

    _near: tuple[_Near, ...] = ()

    def _known(self, X: Any) -> _Near | None:
        return next((near for near in self._near if near.X is X), None)

    def kneighbors(self, X: Any = None, n_neighbors: int | None = None, return_distance: bool = True) -> Any:
        near = self._known(X) if n_neighbors is None else None
        if near is None:
            return super().kneighbors(X, n_neighbors, return_distance)  # type: ignore[misc]
        distances, indices = near.neighbours(self)
        return (distances, indices) if return_distance else indices


class NearClassifier(_KnowsNear, KNeighborsClassifier):
    """A classifier that does so."""

    def predict(self, X: Any) -> Any:
        near = self._known(X)
        if near is None or self.outputs_2d_ or self.weights not in ("uniform", "distance", None):
            return super().predict(X)
        return near.classes(self)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        if self._known(X) is None or sample_weight is not None or type(y) is not np.ndarray or y.ndim != 1:
            return float(super().score(X, y, sample_weight))
        return float(np.average(self.predict(X) == y))  # what `accuracy_score` gives, without its checks


class NearRegressor(_KnowsNear, KNeighborsRegressor):
    """A regressor that does so."""


_CLASSES: Mapping[type, type] = {KNeighborsClassifier: NearClassifier, KNeighborsRegressor: NearRegressor}
_PLAIN = {ours: theirs for theirs, ours in _CLASSES.items()}


def _plain(model: Any) -> Any:
    """The same fitted model, which computes everything."""
    plain = copy(model)
    plain.__class__ = _PLAIN[type(model)]
    return plain


class Neighbours(Family):
    """Candidates that differ in k and weights."""

    divides = True

    shared = frozenset({"n_neighbors", "weights"})

    def why_not(self, model: Any) -> str | None:
        return "its samples are distances" if model.metric == "precomputed" else None

    def fit(self, model: Any, settings: Settings, part: SplitPart) -> list[Any]:
        candidates = [_with(model, setting) for setting in settings]
        n = _num_samples(part.X)
        groups: dict[bool, list[Any]] = {}  # with algorithm="auto" scikit-learn chooses a tree or none by the size of k
        for one in candidates:
            if one is not None and one.n_neighbors <= n:
                groups.setdefault(one.n_neighbors < n // 2, []).append(one)
        for members in groups.values():
            base = clone(members[0]).fit(part.X, part.y)
            ks = [one.n_neighbors for one in members]
            near = tuple(_Near(base, X, ks) for X in part.asked)
            for one in members:
                one.__dict__ = {**vars(base), "n_neighbors": one.n_neighbors, "weights": one.weights, "_near": near}
                one.__class__ = _CLASSES[type(base)]
        return [one if hasattr(one, "_near") else None for one in candidates]


def _with(model: Any, setting: Mapping[str, Any]) -> Any:
    """An unfitted model with a candidate's k and weights; None where scikit-learn would not have them."""
    one = copy(model)
    one.__dict__.update(setting)
    k, weights = one.n_neighbors, one.weights
    plain = type(k) is int or isinstance(k, Integral)
    if not (plain and k > 0 and isinstance(weights, str)) and not valid(model, setting):
        return None
    return one if isinstance(k, Integral) and (weights in ("uniform", "distance", None) or callable(weights)) else None


FAMILIES = {"KNeighborsClassifier": Neighbours(), "KNeighborsRegressor": Neighbours()}
