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
from mpitune.sklearn.sharing.votes import Runs, voted

_BEYOND = 4  # neighbours beyond the largest k, so that samples equally far are seen to their last


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
        self.distances, self.indices = self._found(self._checked, self._n_near)
        self._labels = base._y[self.indices]
        self._runs = Runs.of(~(self.distances[:, 1:] > self.distances[:, :-1]), self._labels, self._n_near == n)
        votes = isinstance(base, KNeighborsClassifier) and not base.outputs_2d_
        asked = [(_kind(m.weights), m.n_neighbors) for m in models if votes and not callable(m.weights)]
        self._ks = {kind: sorted({k for other, k in asked if other == kind}) for kind, _ in asked}
        self._voted = self._votes()

    def neighbours(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Distances (float64) and indices, (n_rows, k) each, as `kneighbors` gives them for this k alone."""
        distances, indices = self.distances[:, :k].copy(), self.indices[:, :k].copy()
        if k < self._n_near:
            rows = np.flatnonzero(self._runs.same[:, k - 1] & self._runs.mixed[:, k - 1])
            if len(rows):
                distances[rows], indices[rows] = self._asked(rows, k)
        return distances, indices

    def classes(self, model: Any) -> np.ndarray:
        """The predicted class of each row, (n_rows,)."""
        kind, k = _kind(model.weights), model.n_neighbors
        chosen, doubtful = (part[self._ks[kind].index(k)] for part in self._voted[kind])
        rows = np.flatnonzero(doubtful)
        if len(rows):
            distances, indices = self._asked(rows, k)
            chosen[rows] = self._most(self._base._y[indices], _weights(kind, distances))
            doubtful[:] = False
        return np.asarray(self._base.classes_[chosen])

    def _votes(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Of each kind of weights what `voted` says for its numbers of neighbours."""
        if not self._ks:
            return {}
        asked = [
            (_weights(kind, self.distances) if kind == "distance" else None, np.array(ks))
            for kind, ks in self._ks.items()
        ]
        return dict(zip(self._ks, voted(self._labels, asked, len(self._base.classes_), self._runs), strict=True))

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

    def _asked(self, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """What scikit-learn says about some rows for this k alone."""
        if 2 * len(rows) < len(self.distances) and self._of_each_pair:
            return self._found(_rows(self._checked, rows), k)
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
            nearest = tuple(Nearest(base, X, members) for X in part.asked)
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
