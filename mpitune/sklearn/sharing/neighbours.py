"""k nearest neighbours: all k and all weights from one search of neighbours.

Why the result is the single one. scikit-learn answers for k from the k nearest training samples, sorted by distance.
The first k of the K > k nearest are these same samples, unless the k-th and the next have the same distance. Then
scikit-learn's choice depends on the order in which its heap of size k saw all samples. If the class does not depend on
that choice, any choice gives the same answer. The other rows are asked of scikit-learn again, for this k alone. Votes
of `weights="uniform"` are whole numbers. Votes of `weights="distance"` are sums of the same numbers, perhaps in another
order: where two classes are closer than a billionth, scikit-learn is asked too.

Distances do not depend on k. But a matrix product of another shape may round differently. So where distances come from
one, and samples are not whole numbers, all rows are asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist
from sklearn import get_config
from sklearn.base import clone
from sklearn.metrics._pairwise_distances_reduction import ArgKmin, ArgKminClassMode
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neighbors._base import _get_weights
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils._openmp_helpers import _openmp_effective_n_threads
from sklearn.utils.validation import _num_samples, validate_data

from mpitune.sklearn.sharing.family import Family, Settings, SplitPart, valid
from mpitune.sklearn.sharing.votes import Runs, voted

_BEYOND = 4  # neighbours beyond the largest k, so that samples equally far are seen to their last
_ELEMENTS = 1 << 22  # distances in memory at a time


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
        self.distances, self.indices = self._searched()
        self._labels = base._y[self.indices]
        self._runs = Runs.of(~(self.distances[:, 1:] > self.distances[:, :-1]), self._labels, self._n_near == n)
        votes = isinstance(base, KNeighborsClassifier) and not base.outputs_2d_
        asked = [(_kind(m.weights), m.n_neighbors) for m in models if votes and not callable(m.weights)]
        self._ks = {kind: sorted({k for other, k in asked if other == kind}) for kind, _ in asked}
        self._voted = self._votes()
        self._settled: dict[int, tuple[np.ndarray, ...]] = {}  # doubtful rows of k, as scikit-learn has them
        self._decided: dict[str, np.ndarray] = {}
        self._right: dict[str, tuple[Any, dict[int, float]]] = {}

    def neighbours(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Distances (float64) and indices, (n_rows, k) each, as `kneighbors` gives them for this k alone."""
        return self._of_rows(np.arange(len(self.distances)), k)

    def classes(self, model: Any, plain: Callable[[], Any]) -> np.ndarray:
        """The predicted class of each row, (n_rows,). plain: gives the same model, which computes everything."""
        kind, k = _kind(model.weights), model.n_neighbors
        if not self._alike(model):
            chosen, doubtful = (part[self._ks[kind].index(k)] for part in self._voted[kind])
            classes = np.asarray(self._base.classes_[chosen])
            rows = np.flatnonzero(doubtful)
            if len(rows):
                few = 2 * len(rows) < len(classes)
                classes[rows] = plain().predict(_rows(self.X, rows)) if few else plain().predict(self.X)[rows]
            return classes
        return np.asarray(self._all_classes(kind)[self._ks[kind].index(k)].copy())

    def accuracy(self, model: Any, y: np.ndarray) -> float | None:
        """The share of rows whose class is that of y, (n_rows,), as `accuracy_score` gives it; None if not known."""
        kind = _kind(model.weights)
        if y.shape != (len(self.distances),) or not self._alike(model):
            return None
        if kind not in self._right or self._right[kind][0] is not y:
            right = (self._all_classes(kind) == y).sum(axis=1) / len(y)
            self._right[kind] = y, dict(zip(self._ks[kind], right.tolist(), strict=True))
        return self._right[kind][1][model.n_neighbors]

    def _alike(self, model: Any) -> bool:
        """Whether scikit-learn counts the votes of what `kneighbors` gives.

        If not, it counts uniform votes itself; with several threads ties differ then.
        """
        if _threads() == 1 or model.weights != "uniform":
            return True
        base = self._base
        brute = base._fit_method == "brute"
        return not (brute and ArgKminClassMode.is_usable_for(self.X, base._fit_X, base.effective_metric_))

    def _votes(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Of each kind of weights what `voted` says for its numbers of neighbours."""
        if not self._ks:
            return {}
        asked = [
            (_weights(kind, self.distances) if kind == "distance" else None, np.array(ks))
            for kind, ks in self._ks.items()
        ]
        return dict(zip(self._ks, voted(self._labels, asked, len(self._base.classes_), self._runs), strict=True))

    def _all_classes(self, kind: str) -> np.ndarray:
        """The classes for all k of that kind, (n_ks, n_rows)."""
        if kind not in self._decided:
            chosen = self._voted[kind][0]
            for place, k in enumerate(self._ks[kind]):
                rows, distances, indices = self._settle(k)
                if len(rows):
                    chosen[place, rows] = self._most(self._base._y[indices], _weights(kind, distances))
            self._decided[kind] = np.asarray(self._base.classes_[chosen])
        return self._decided[kind]

    def _settle(self, k: int) -> tuple[np.ndarray, ...]:
        """The rows whose class is in doubt for this k and any weights, with distances and indices."""
        if k not in self._settled:
            places = [(kind, ks.index(k)) for kind, ks in self._ks.items() if k in ks]
            rows = np.flatnonzero(np.any([self._voted[kind][1][place] for kind, place in places], axis=0))
            self._settled[k] = rows, *(self._asked(rows, k) if len(rows) else (rows, rows))
        return self._settled[k]

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
        if 2 * len(padded) < n_rows and self._of_each_pair:
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
        scikit-learn: they are bitwise equal.
        """
        X, Y, metric = self._checked, self._base._fit_X, self._base.effective_metric_
        plain = self._direct and _doubles(X, Y) and not self._base.effective_metric_params_
        if not plain or metric != "manhattan":
            return self._found(X, self._n_near)
        step = max(_ELEMENTS // len(Y), 1)
        chunks = (X[begin : begin + step] for begin in range(0, len(X), step))
        parts = [_smallest(cdist(chunk, Y, "cityblock"), self._n_near) for chunk in chunks]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _smallest(distances: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The n smallest of each row, sorted, and their columns."""
    near = np.argpartition(distances, n - 1, axis=1)[:, :n]
    smallest = np.take_along_axis(distances, near, axis=1)
    order = np.argsort(smallest, axis=1, kind="stable")
    return np.take_along_axis(smallest, order, axis=1), np.take_along_axis(near, order, axis=1)


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


def _threads() -> int:
    return int(_openmp_effective_n_threads())


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
        if nearest is None or not self._votes:
            return super().predict(X)
        return nearest.classes(self, lambda: _plain(self))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        nearest, known = self._known(X), None
        if nearest is not None and sample_weight is None and type(y) is np.ndarray and self._votes:
            known = nearest.accuracy(self, y)
        return float(super().score(X, y, sample_weight)) if known is None else known

    @property
    def _votes(self) -> bool:
        return not self.outputs_2d_ and self.weights in ("uniform", "distance", None)


class NearRegressor(_KnowsNearest, KNeighborsRegressor):
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
            nearest = tuple(Nearest(base, X, members) for X in part.asked)
            for candidate in members:
                own = {"n_neighbors": candidate.n_neighbors, "weights": candidate.weights}
                candidate.__dict__ = {**vars(base), **own, "_nearest": nearest}
                candidate.__class__ = _CLASSES[type(base)]
        return [candidate if type(candidate) in _PLAIN else None for candidate in candidates]


def _with(model: Any, setting: Mapping[str, Any]) -> Any:
    """An unfitted model with a candidate's k and weights; None where scikit-learn would not have them."""
    candidate = object.__new__(type(model))
    candidate.__dict__ = {**vars(model), **setting}
    k, weights = candidate.n_neighbors, candidate.weights
    plain = type(k) is int or isinstance(k, Integral)
    if isinstance(k, bool) or not plain:  # scikit-learn's checks take True as a number, its searches do not
        return None
    if not (k > 0 and isinstance(weights, str)) and not valid(model, setting):
        return None
    return candidate if weights in ("uniform", "distance", None) or callable(weights) else None


FAMILIES = {"KNeighborsClassifier": Neighbours(), "KNeighborsRegressor": Neighbours()}
