"""LightGBM: a model of n trees is the beginning of a larger one.

Why the result is the single one. LightGBM's random choices come from seeds of the iteration (fixed where `random_state`
is None), and an iteration depends only on those before it. So the first n iterations of a longer training are a
training of n, with the same number of threads. A smaller model is the larger one, told to predict with its first
iterations. Two types of boosting share nothing: "dart" changes earlier trees, and "rf" divides by the number of trees.
"""

from __future__ import annotations

from typing import Any

from lightgbm import LGBMClassifier, LGBMRegressor

from common.sklearn.sharing.prefixes import Rounds


class PrefixOfLGBMClassifier(LGBMClassifier):
    """The first trees of a model."""

    def predict_proba(self, X: Any, num_iteration: int | None = None, **kwargs: Any) -> Any:  # type: ignore[override]
        return super().predict_proba(X, num_iteration=num_iteration or self.n_estimators, **kwargs)


class PrefixOfLGBMRegressor(LGBMRegressor):
    """The first trees of a model."""

    def predict(self, X: Any, num_iteration: int | None = None, **kwargs: Any) -> Any:  # type: ignore[override]
        return super().predict(X, num_iteration=num_iteration or self.n_estimators, **kwargs)


_CLASSES: dict[type, type] = {LGBMClassifier: PrefixOfLGBMClassifier, LGBMRegressor: PrefixOfLGBMRegressor}


class LightGBM(Rounds):
    """Candidates that differ in the number of trees."""

    def why_not(self, model: Any) -> str | None:
        if model.boosting_type in ("dart", "rf"):
            return f"boosting_type={model.boosting_type} has no prefixes"
        if {"early_stopping_round", "early_stopping_rounds", "num_iterations", "n_iter"} & set(model.get_params()):
            return "another parameter says how many trees there are"
        return None


def _cut(model: Any, n: int) -> None:
    model._n_estimators, model.__class__ = n, _CLASSES[type(model)]


FAMILIES = {kind.__name__: LightGBM("n_estimators", _cut) for kind in _CLASSES}
