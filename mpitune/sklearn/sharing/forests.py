"""Forests: the trees of a smaller one are the first trees of a larger one, so sums of their predictions are shared too.

Why the result is the single one. The seeds of the trees are drawn one after the other from `random_state`, and a tree
depends on its seed alone. So a forest of n has the first n trees of a larger one, to the bit. A forest adds up the
predictions of its trees in their order and divides by their number. So the sum of a larger forest after n trees is that
of a forest of n. (With `n_jobs` above 1, trees are added in the order in which they end, so results differ by rounding
from run to run.) With `oob_score` the forest grows by scikit-learn's own `warm_start`, which computes that score at
each size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor, RandomForestClassifier, RandomForestRegressor

from mpitune.sklearn.sharing.family import Settings, SplitPart
from mpitune.sklearn.sharing.prefixes import _OUT_OF_BAG, Answers, KnowsAnswers, Prefixes


class _KnowsSums(KnowsAnswers):
    def _mean(self, X: Any) -> np.ndarray | None:
        sums = self._answers(X)
        if sums is None or self.n_outputs_ > 1:  # type: ignore[attr-defined]
            return None
        return sums.of(len(self.estimators_)) / len(self.estimators_)  # type: ignore[attr-defined]


class _Classes(_KnowsSums):
    def predict_proba(self, X: Any) -> Any:
        mean = self._mean(X)
        return super().predict_proba(X) if mean is None else mean  # type: ignore[misc]


class _Numbers(_KnowsSums):
    def predict(self, X: Any) -> Any:
        mean = self._mean(X)
        return super().predict(X) if mean is None else mean  # type: ignore[misc]


class PrefixOfForestClassifier(_Classes, RandomForestClassifier):
    """The first trees of a forest."""


class PrefixOfExtraTreesClassifier(_Classes, ExtraTreesClassifier):
    """The first trees of a forest."""


class PrefixOfForestRegressor(_Numbers, RandomForestRegressor):
    """The first trees of a forest."""


class PrefixOfExtraTreesRegressor(_Numbers, ExtraTreesRegressor):
    """The first trees of a forest."""


_CLASSES: dict[type, type] = {
    RandomForestClassifier: PrefixOfForestClassifier,
    ExtraTreesClassifier: PrefixOfExtraTreesClassifier,
    RandomForestRegressor: PrefixOfForestRegressor,
    ExtraTreesRegressor: PrefixOfExtraTreesRegressor,
}


_KEPT = ("_n_samples", "_n_samples_bootstrap", "_sample_weight", "n_outputs_", "class_weight", *_OUT_OF_BAG)


class Forests(Prefixes):
    """Candidates that differ in the number of trees."""

    def __init__(self) -> None:
        super().__init__("n_estimators", _cut, _KEPT)

    def why_not(self, model: Any) -> str | None:
        if model.oob_score and model.class_weight in ("balanced", "balanced_subsample"):
            return "with balanced classes a forest with an out-of-bag score does not grow"
        return super().why_not(model)

    def fit(self, model: Any, settings: Settings, part: SplitPart) -> list[Any]:
        made = self._grown(model, settings, part) if model.oob_score else super().fit(model, settings, part)
        whole = max((forest for forest in made if forest is not None), key=lambda forest: forest.n_estimators)
        whole = copy(whole)
        sizes = [forest.n_estimators for forest in made if forest is not None]
        known = tuple(Answers(_sums, whole, X, sizes) for X in part.asked)
        for forest in made:
            if forest is not None and forest.n_jobs in (None, 1):
                forest._known, forest.__class__ = known, _CLASSES[type(forest)]
        return made

    def _grown(self, model: Any, settings: Settings, part: SplitPart) -> list[Any]:
        right = {
            place: setting.get("n_estimators", model.n_estimators)
            for place, setting in enumerate(settings)
            if self.right(model, setting)
        }
        whole, at = clone(model).set_params(warm_start=True), {}
        for n in sorted(set(right.values())):
            whole.set_params(n_estimators=n).fit(part.X, part.y, **part.weights)
            at[n] = self.smaller(whole, n).set_params(warm_start=model.warm_start)
        return [copy(at[right[place]]) if place in right else None for place in range(len(settings))]


def _sums(whole: Any, X: Any, sizes: Sequence[int]) -> Iterator[np.ndarray]:
    X = whole._validate_X_predict(X)
    total: np.ndarray | float = 0.0
    for n, tree in enumerate(whole.estimators_, 1):
        total = total + getattr(tree, "predict_proba", tree.predict)(X, check_input=False)
        if n in sizes:
            yield np.asarray(total)


def _cut(whole: Any, n: int) -> dict[str, Any]:
    return {"estimators_": whole.estimators_[:n]}


FAMILIES = {kind.__name__: Forests() for kind in _CLASSES}
