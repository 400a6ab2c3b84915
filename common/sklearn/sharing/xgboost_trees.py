"""XGBoost: a model of n rounds is the beginning of a larger one.

Why the result is the single one. A round depends on those before it only, and its random choices are the next numbers
of one stream that begins at `random_state` (0 where that is None), so the first n rounds of a longer training are
those of one of n, with the same number of threads. XGBoost itself cuts them (the same as its `iteration_range`). Not
so for `booster="dart"`, which changes earlier trees, and "gblinear", whose rounds change one model. With early
stopping the number of rounds depends on samples that are given to `fit`, which shares nothing then.
"""

from __future__ import annotations

from copy import copy
from typing import Any

from sklearn.base import clone

from common.sklearn.sharing.family import Settings, SplitPart
from common.sklearn.sharing.prefixes import Prefixes


class XGBoost(Prefixes):
    """Candidates that differ in the number of rounds."""

    def why_not(self, model: Any) -> str | None:
        if model.booster not in (None, "gbtree"):
            return f"booster={model.booster} has no prefixes"
        if model.early_stopping_rounds is not None or model.callbacks is not None:
            return "early stopping or a callback may end it at any round"
        return None

    def fit(self, model: Any, settings: Settings, part: SplitPart) -> list[Any]:
        if not all(type(s[self.number]) is int and s[self.number] > 0 for s in settings):
            raise ValueError("a number of rounds is no positive integer")
        sizes = [setting[self.number] for setting in settings]
        whole = clone(model).set_params(n_estimators=max(sizes)).fit(part.X, part.y, **part.weights)
        made = []
        for size in sizes:
            one = copy(whole)
            one._Booster = whole.get_booster()[:size]
            one.n_estimators = size
            made.append(one)
        return made


FAMILIES = {name: XGBoost("n_estimators", lambda model, n: None) for name in ("XGBClassifier", "XGBRegressor")}
