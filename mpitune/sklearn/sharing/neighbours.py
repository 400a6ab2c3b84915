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

from collections.abc import Mapping, Sequence
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.metrics._pairwise_distances_reduction import ArgKmin
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neighbors._base import _get_weights
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils.validation import _num_samples, validate_data

from mpitune.sklearn.sharing.family import Family, Settings, SplitPart, valid

_BEYOND = 4  # neighbours beyond the largest k, so that samples equally far are seen to their last
_CLOSE = 1e-9  # relative difference of two votes from which on rounding cannot decide
_ELEMENTS = 1 << 17  # votes in memory at a time


class Nearest:
    """The nearest training samples of some samples X, which the models will be asked about.

    The base is fitted; the models are the candidates, which differ from it in k and weights.
    """

    def __init__(self, base: Any, X: Any, models: Sequence[Any]):
        self.X, self._base = X, base
        ks = [model.n_neighbors for model in models]
        n = base.n_samples_fit_
        self._n_near = min(max(ks) + _BEYOND, n)
        finite = "allow-nan" if get_tags(base).input_tags.allow_nan else True
        self._checked = validate_data(base, X, ensure_all_finite=finite, accept_sparse="csr", reset=False, order="C")
        brute = base._fit_method == "brute"
        self._direct = brute and ArgKmin.is_usable_for(self._checked, base._fit_X, base.effective_metric_)
        # Any of those equally far may be the last.
        self.distances, self.indices = self._searched(self._checked, self._n_near)
        self._labels = base._y[self.indices]
        same = ~(self.distances[:, 1:] > self.distances[:, :-1])
        self._open = _open(same, self._labels, self._n_near == n)
        votes = isinstance(base, KNeighborsClassifier) and not base.outputs_2d_
        kinds = [(_kind(m.weights), m.n_neighbors) for m in models if votes and not callable(m.weights)]
        self._ks = {kind: sorted({k for other, k in kinds if other == kind}) for kind, _ in kinds}

    def neighbours(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Distances (float64) and indices, (n_rows, k) each, as `kneighbors` gives them for this k alone."""
        distances, indices = self.distances[:, :k].copy(), self.indices[:, :k].copy()
        if k < self._n_near:
            rows = np.flatnonzero(self._open[:, k - 1] > 0)
            if len(rows):
                distances[rows], indices[rows] = self._nearest_of(rows, k)
        return distances, indices

    def classes(self, model: Any) -> np.ndarray:
        """The predicted class of each row, (n_rows,)."""
        kind = _kind(model.weights)
        chosen = self._chosen[kind][self._ks[kind].index(model.n_neighbors)]
        return np.asarray(self._base.classes_[chosen])

    @cached_property
    def _chosen(self) -> dict[str, np.ndarray]:
        """Of each kind of weights the number of the class of each k and row."""
        chosen: dict[str, np.ndarray] = {}
        asked: dict[int, list[tuple[str, int, np.ndarray]]] = {}  # for each k what is in doubt
        for kind, ks in self._ks.items():
            weights = _weights(kind, self.distances) if kind == "distance" else None
            chosen[kind], doubtful = _voted(self._labels, weights, np.array(ks), len(self._base.classes_), self._open)
            for place, k in enumerate(ks):
                asked.setdefault(k, []).append((kind, place, doubtful[place]))
        for k, those in asked.items():
            rows = np.flatnonzero(np.any([doubtful for _, _, doubtful in those], axis=0))
            if len(rows):
                distances, indices = self._nearest_of(rows, k)
                for kind, place, _ in those:
                    chosen[kind][place, rows] = self._most(self._base._y[indices], _weights(kind, distances))
        return chosen

    @cached_property
    def _of_each_pair(self) -> bool:
        """Whether a distance depends on its two samples alone, bitwise.

        A matrix product of another shape may round differently: of two samples equally far, one may be farther then.
        """
        base, X = self._base, self._checked
        if base._fit_method != "brute":
            return True
        if not self._direct:
            return False
        metric = base.effective_metric_
        if metric not in ("euclidean", "sqeuclidean"):
            return True
        return _doubles(X, base._fit_X) and _exact(X, base._fit_X)

    def _most(self, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """The class with most votes of each row, added up in scikit-learn's order, the first of equal ones."""
        numbers = np.arange(len(self._base.classes_))[:, None, None]
        return np.asarray(np.where(labels == numbers, weights, 0.0).sum(2).argmax(0))

    def _nearest_of(self, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """What scikit-learn says about some rows for this k alone."""
        if 2 * len(rows) < len(self.distances) and self._of_each_pair:
            return self._searched(_rows(self._checked, rows), k)
        distances, indices = self._searched(self._checked, k)
        return distances[rows], indices[rows]

    def _searched(self, X: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
        """As `kneighbors`, of samples that were checked."""
        base = self._base
        if not self._direct:
            distances, indices = type(base).kneighbors(base, X, k)
            return distances, indices
        kwargs = base.effective_metric_params_
        return ArgKmin.compute(
            X, base._fit_X, k, base.effective_metric_, metric_kwargs=kwargs, strategy="auto", return_distance=True
        )


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


def _voted(
    labels: np.ndarray, weights: np.ndarray | None, ks: np.ndarray, n_classes: int, open_: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Of each k and row the number of the class with most votes, the first of equal ones, and whether that is in doubt.

    Votes of weights may be added up in another order than by scikit-learn: classes that are close are in doubt. So is
    a class that is ahead by no more than what other samples at the same distance could change.

    Args:
        labels: numbers of the classes of the nearest, (n_rows, n_near).
        weights: of the same; None where each has one vote.
        ks: numbers of neighbours.
        n_classes: in all.
        open_: see `_open`.
    """
    n_rows, n_near = labels.shape
    chosen, doubtful = np.zeros((len(ks), n_rows), np.intp), np.zeros((len(ks), n_rows), np.bool_)
    inner = np.flatnonzero(ks < n_near)
    step = max(_ELEMENTS // (n_classes * n_near), 1)
    for begin in range(0, n_rows, step):
        rows = slice(begin, begin + step)
        mine = labels[rows].T[:, None, :] == np.arange(n_classes)[:, None]
        own = mine.astype(np.float32) if weights is None else np.where(mine, weights[rows].T[:, None, :], 0.0)
        votes = np.cumsum(own, axis=0)[ks - 1]
        chosen[:, rows] = votes.argmax(axis=1)
        if weights is not None:
            near = votes >= votes.max(axis=1, keepdims=True) * (1 - _CLOSE)
            doubtful[:, rows] = near.sum(axis=1) != 1
        moved = open_[rows, ks[inner] - 1].T
        places, some = np.nonzero(moved)
        if len(some):
            second, first = np.partition(votes[inner[places], :, some], -2, axis=1)[:, -2:].T
            edge = 1.0 if weights is None else weights[begin + some, ks[inner[places]] - 1]
            doubtful[inner[places], begin + some] |= ~(first - second > 2 * edge * moved[places, some] * (1 + _CLOSE))
    return chosen, doubtful


def _doubles(*samples: Any) -> bool:
    return all(type(X) is np.ndarray and X.dtype == np.float64 for X in samples)


def _exact(X: np.ndarray, Y: np.ndarray) -> bool:
    """Whether no squared distance is rounded: the samples are whole numbers, and not too large."""
    largest = max(np.abs(X).max(), np.abs(Y).max())
    return bool(largest**2 * X.shape[1] < 1 << 50 and (np.rint(X) == X).all() and (np.rint(Y) == Y).all())


def _rows(X: Any, rows: np.ndarray) -> Any:
    return X[rows] if isinstance(X, np.ndarray) else _safe_indexing(X, rows)


def _kind(weights: Any) -> str:
    return "distance" if weights == "distance" else "uniform"


def _weights(kind: str, distances: np.ndarray) -> np.ndarray:
    """scikit-learn's weights of neighbours."""
    return np.asarray(_get_weights(distances, kind)) if kind == "distance" else np.ones_like(distances)


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
            nearest = tuple(Nearest(base, X, members) for X in part.scored)
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
