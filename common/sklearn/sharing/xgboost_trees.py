"""XGBoost: a model of n rounds is the beginning of a larger one.

Why the result is the single one. A round depends only on those before it. Its random choices are the next numbers of
one stream, which begins at `random_state` (0 for None). So the first n rounds of a longer training are a training of n
rounds, with the same number of threads. XGBoost itself cuts them (as its `iteration_range` does). Two boosters share
nothing: "dart" changes earlier trees, and the rounds of "gblinear" change one model. With early stopping nothing is
shared: the number of rounds depends on samples given to `fit`.
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
