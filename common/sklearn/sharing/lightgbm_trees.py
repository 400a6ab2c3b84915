"""LightGBM: a model of n trees is the beginning of a larger one.

Why the result is the single one. LightGBM's random choices come from seeds of the iteration (fixed where
`random_state` is None), and an iteration depends on those before it only, so the first n iterations of a longer
training are those of one of n, with the same number of threads. They are written as LightGBM writes a model, with all
digits, and read again. Not so for `boosting_type="dart"`, which changes earlier trees, and "rf", which divides by the
number of trees.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import lightgbm
from sklearn.base import clone

from common.sklearn.sharing.family import Settings, SplitPart
from common.sklearn.sharing.prefixes import Prefixes


class LightGBM(Prefixes):
    """Candidates that differ in the number of trees."""

    def why_not(self, model: Any) -> str | None:
        if model.boosting_type in ("dart", "rf"):
            return f"boosting_type={model.boosting_type} has no prefixes"
        if {"early_stopping_round", "early_stopping_rounds", "num_iterations", "n_iter"} & set(model.get_params()):
            return "another parameter says how many trees there are"
        return None

    def fit(self, model: Any, settings: Settings, part: SplitPart) -> list[Any]:
        if not all(type(s[self.number]) is int and s[self.number] > 0 for s in settings):
            raise ValueError("a number of trees is no positive integer")
        sizes = [setting[self.number] for setting in settings]
        whole = clone(model).set_params(n_estimators=max(sizes)).fit(part.X, part.y, **part.weights)
        made = []
        for size in sizes:
            one = copy(whole)
            one._Booster = lightgbm.Booster(model_str=whole.booster_.model_to_string(num_iteration=size))
            one.n_estimators, one._n_estimators = size, size
            made.append(one)
        return made


FAMILIES = {name: LightGBM("n_estimators", lambda model, n: None) for name in ("LGBMClassifier", "LGBMRegressor")}
