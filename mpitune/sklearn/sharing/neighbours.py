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

from collections.abc import Mapping
from copy import copy
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.utils.validation import _num_samples

from mpitune.sklearn.sharing.family import Family, Settings, SplitPart, valid
from mpitune.sklearn.sharing.nearest import Nearest


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

    divides = True

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
