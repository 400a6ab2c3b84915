"""XGBoost: a model of n rounds is the beginning of a larger one.

Why the result is the single one. A round depends on those before it only, and its random choices are the next numbers
of one stream that begins at `random_state` (0 where that is None), so the first n rounds of a longer training are
those of one of n, with the same number of threads. XGBoost itself cuts them (the same as its `iteration_range`). Not
so for `booster="dart"`, which changes earlier trees, and "gblinear", whose rounds change one model. With early
stopping the number of rounds depends on samples that are given to `fit`, which shares nothing then.
"""

from __future__ import annotations

from typing import Any

from common.sklearn.sharing.prefixes import Rounds


class XGBoost(Rounds):
    """Candidates that differ in the number of rounds."""

    def why_not(self, model: Any) -> str | None:
        if model.booster not in (None, "gbtree"):
            return f"booster={model.booster} has no prefixes"
        if model.early_stopping_rounds is not None or model.callbacks is not None:
            return "early stopping or a callback may end it at any round"
        return None


def _cut(model: Any, n: int) -> None:
    model._Booster = model.get_booster()[:n]


FAMILIES = {name: XGBoost("n_estimators", _cut) for name in ("XGBClassifier", "XGBRegressor")}
