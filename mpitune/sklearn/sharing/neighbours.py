"""k nearest neighbours: all k and all weights from one search of neighbours.

Why the result is the single one. scikit-learn answers for k from the k nearest training samples, sorted by distance.
The first k of the K > k nearest are these same samples, unless the k-th and the next have the same distance. Then
scikit-learn's choice depends on the order in which its heap of size k saw all samples. If all of these have one label,
any choice gives the same answer. The other rows are asked of scikit-learn again, for this k alone. Votes
of `weights="uniform"` are whole numbers. Votes of `weights="distance"` are sums of the same numbers, perhaps in another
order: where two classes are closer than a billionth, scikit-learn is asked too.

Distances do not depend on k. But a matrix product of another shape may round differently. So where distances come from
one, and samples are not whole numbers, all rows are asked again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.metrics._pairwise_distances_reduction import ArgKmin
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neighbors._base import _get_weights
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _num_samples

from mpitune.sklearn.sharing.family import Family, Settings, SplitPart, valid

_BEYOND = 4  # neighbours beyond the largest k, so that samples equally far are seen to their last
_CLOSE = 1e-9  # relative difference of two votes from which on rounding cannot decide


class Nearest:
    """The nearest training samples of some samples X, for models that differ from the fitted base in k and weights.

    n_near: how many, at least the largest k.
    """

    def __init__(self, base: Any, X: Any, n_near: int) -> None:
        self.X, self._base, self._n_near = X, base, n_near
        self.distances, self.indices = base.kneighbors(X, n_near)  # any of those equally far may be the last
        self._labels = base._y[self.indices]
        same = ~(self.distances[:, 1:] > self.distances[:, :-1])
        self._open = _open(same, self._labels, n_near == base.n_samples_fit_)
        self._again: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}  # of k, what was in doubt

    def neighbours(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Distances (float64) and indices, (n_rows, k) each, as `kneighbors` gives them for this k alone."""
        distances, indices = self.distances[:, :k].copy(), self.indices[:, :k].copy()
        rows = np.flatnonzero(self._open_at(k))
        if len(rows):
            distances[rows], indices[rows] = self._nearest_of(rows, k)
        return distances, indices

    def classes(self, model: Any) -> np.ndarray:
        """The predicted class of each row, (n_rows,): the first one with most votes."""
        k, weighted = model.n_neighbors, model.weights == "distance"
        chosen, doubtful = self._voted(k, weighted)
        if doubtful.any():
            if k not in self._again:
                rows = np.flatnonzero(doubtful | self._voted(k, not weighted)[1])
                self._again[k] = rows, *self._nearest_of(rows, k)
            rows, distances, indices = self._again[k]
            weights = np.asarray(_get_weights(distances, "distance")) if weighted else np.ones_like(distances)
            of_class = self._base._y[indices] == np.arange(len(self._base.classes_))[:, None, None]
            chosen[rows] = np.where(of_class, weights, 0.0).sum(2).argmax(0)  # summed in scikit-learn's order
        return np.asarray(self._base.classes_[chosen])

    def _voted(self, k: int, weighted: bool) -> tuple[np.ndarray, np.ndarray]:
        """Of each row the number of the class with most votes, and whether that is in doubt: scikit-learn is asked.

        It is where other samples at the same distance could change it, and where the order of a sum could.
        """
        n_rows, n_classes = len(self._labels), max(2, len(self._base.classes_))
        cells = np.arange(n_rows)[:, None] * n_classes + self._labels[:, :k]
        weights = self._weights[:, :k] if weighted else None
        votes = np.bincount(cells.ravel(), None if weights is None else weights.ravel(), n_rows * n_classes)
        votes, open_ = votes.reshape(n_rows, n_classes), self._open_at(k)
        second, first = np.partition(votes, -2, axis=1)[:, -2:].T
        if weights is None:
            return votes.argmax(axis=1), (open_ > 0) & (first - second <= 2 * open_)
        return votes.argmax(axis=1), ~(first - second > (2 * weights[:, -1] * open_ + first * _CLOSE) * (1 + _CLOSE))

    @cached_property
    def _weights(self) -> np.ndarray:
        return np.asarray(_get_weights(self.distances, "distance"))

    def _open_at(self, k: int) -> np.ndarray:
        return self._open[:, k - 1] if k < self._n_near else np.zeros(len(self._open), np.intp)

    def _nearest_of(self, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """What scikit-learn says about some rows for this k alone."""
        if 2 * len(rows) < len(self.distances) and self._of_each_pair:
            base, X = self._base, _safe_indexing(self.X, rows)
            if base._fit_method != "brute":
                return tuple(base.kneighbors(X, k))
            how = {"metric": base.effective_metric_, "metric_kwargs": base.effective_metric_params_}
            return tuple(ArgKmin.compute(np.ascontiguousarray(X), base._fit_X, k, **how, return_distance=True))
        distances, indices = self._base.kneighbors(self.X, k)
        return distances[rows], indices[rows]

    @cached_property
    def _of_each_pair(self) -> bool:
        """Whether a distance depends on its two samples alone, bitwise.

        A matrix product of another shape may round differently: of two samples equally far, one may be farther then.
        """
        both, metric = (self.X, self._base._fit_X), self._base.effective_metric_
        if self._base._fit_method != "brute":
            return True
        if any(type(of) is not np.ndarray for of in both):
            return False
        if metric not in ("euclidean", "sqeuclidean"):
            return bool(ArgKmin.is_usable_for(*map(np.ascontiguousarray, both), metric))
        if any(of.dtype != np.float64 for of in both):
            return False
        # No squared distance is rounded: the samples are whole numbers, and not too large.
        largest = max(np.abs(of).max() for of in both)
        return bool(largest**2 * both[0].shape[1] < 1 << 50 and all((np.rint(of) == of).all() for of in both))


def _open(same: np.ndarray, labels: np.ndarray, whole: bool) -> np.ndarray:
    """How many of the first k depend on which samples at one distance are taken, for each row and k; 0 for no matter.

    Args:
        same: bool (n_rows, n_near - 1), whether a neighbour is as far as the next.
        labels: of the neighbours, sorted by distance.
        whole: whether the last neighbour is the last sample. If not, the last run of equal distances may go on.

    Returns:
        int (n_rows, n_near - 1).
    """
    n_rows, n_near = labels.shape[:2]
    places, other = np.arange(1, n_near), labels[:, 1:] != labels[:, :-1]
    begins = np.maximum.accumulate(np.where(same, 0, places), axis=1)  # of the run of each neighbour but the first
    runs = np.arange(n_rows)[:, None] * n_near + begins
    mixed = np.zeros(n_rows * n_near, np.bool_)
    mixed[runs[same & (other if other.ndim == 2 else other.any(2))]] = True
    mixed[runs[:, -1:]] |= not whole
    return np.where(same & mixed[runs], places - begins, 0)


class _KnowsNearest:
    """A fitted model that answers for samples whose neighbours are known."""

    _nearest: tuple[Nearest, ...] = ()

    def _known(self, X: Any) -> Nearest | None:
        return next((nearest for nearest in self._nearest if nearest.X is X), None)

    def kneighbors(self, X: Any = None, n_neighbors: int | None = None, return_distance: bool = True) -> Any:
        nearest = self._known(X) if n_neighbors is None else None
        if nearest is None:
            return super().kneighbors(X, n_neighbors, return_distance)  # type: ignore[misc]
        distances, indices = nearest.neighbours(self.n_neighbors)  # type: ignore[attr-defined]
        return (distances, indices) if return_distance else indices


class NearClassifier(_KnowsNearest, KNeighborsClassifier):
    """A classifier that does so."""

    def predict(self, X: Any) -> Any:
        nearest = self._known(X)
        return super().predict(X) if nearest is None or not self._votes else nearest.classes(self)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        plain = sample_weight is None and type(y) is np.ndarray and y.ndim == 1
        if self._known(X) is None or not plain or not self._votes:
            return float(super().score(X, y, sample_weight))
        return float((self.predict(X) == y).mean())  # as scikit-learn, without its checks of y

    @property
    def _votes(self) -> bool:
        return not self.outputs_2d_ and self.weights in ("uniform", "distance", None)


class NearRegressor(_KnowsNearest, KNeighborsRegressor):
    """A regressor that does so."""


_CLASSES: Mapping[type, type] = {KNeighborsClassifier: NearClassifier, KNeighborsRegressor: NearRegressor}


class Neighbours(Family):
    """Candidates that differ in k and weights."""

    shared = frozenset({"n_neighbors", "weights"})

    def why_not(self, model: Any) -> str | None:
        return "its samples are distances" if model.metric == "precomputed" else None

    def fit(self, model: Any, settings: Settings, part: SplitPart) -> list[Any]:
        candidates = [_with(model, setting) for setting in settings]
        n = _num_samples(part.X)
        groups: dict[bool, list[Any]] = {}  # with algorithm="auto" scikit-learn chooses a tree or none by the size of k
        for candidate in candidates:
            if candidate is not None and candidate.n_neighbors <= n:
                groups.setdefault(candidate.n_neighbors < n // 2, []).append(candidate)
        for members in groups.values():
            base = clone(members[0]).fit(part.X, part.y)
            n_near = min(max(candidate.n_neighbors for candidate in members) + _BEYOND, n)
            nearest = tuple(Nearest(base, X, n_near) for X in part.scored)
            for candidate in members:
                own = {"n_neighbors": candidate.n_neighbors, "weights": candidate.weights}
                candidate.__dict__ = {**vars(base), **own, "_nearest": nearest}
                candidate.__class__ = _CLASSES[type(base)]
        return [candidate if type(candidate) in _CLASSES.values() else None for candidate in candidates]


def _with(model: Any, setting: Mapping[str, Any]) -> Any:
    """An unfitted model with a candidate's k and weights; None where scikit-learn would not have them."""
    candidate = object.__new__(type(model))
    candidate.__dict__ = {**vars(model), **setting}
    k, weights = candidate.n_neighbors, candidate.weights
    # scikit-learn's checks take True as a number, its searches do not
    if isinstance(k, bool) or not isinstance(k, Integral) or not valid(model, setting):
        return None
    return candidate if weights in ("uniform", "distance", None) or callable(weights) else None


FAMILIES = {"KNeighborsClassifier": Neighbours(), "KNeighborsRegressor": Neighbours()}
