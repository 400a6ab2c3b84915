"""LightGBM and XGBoost: a model of n rounds is the beginning of a larger one.

Why the result is the single one. Random choices of LightGBM come from seeds of the round (fixed where `random_state` is
None); those of XGBoost are the next numbers of one stream, which begins at `random_state` (0 for None). A round depends
only on those before it. So the first n rounds of a longer training are a training of n rounds, with the same number of
threads, on processors. The libraries themselves cut a model to its first n rounds (XGBoost by its `iteration_range`):
it predicts bitwise the same, whatever method is asked.

- LightGBM drops a round without a split, and training goes on. Then the first n are not a training of n. So the largest
  model must have kept as many rounds as it was asked for.
- "dart" changes earlier trees, "rf" of LightGBM divides by the number of trees, and the rounds of "gblinear" change one
  model: they share nothing. Nor does early stopping of XGBoost: it depends on samples given to `fit`.
- Both take any further parameter, also one that says in another word how many rounds there are, or one that changes
  trees that are there. So parameters must be arguments of the class, by their names there.
"""

from __future__ import annotations

from copy import copy
from numbers import Integral
from typing import Any

from mpitune.sklearn.sharing.family import Family
from mpitune.sklearn.sharing.prefixes import Prefixes

# What both take beside the arguments of their classes, and what changes no tree.
_PLAIN = {
    "deterministic", "force_col_wise", "force_row_wise", "nthread", "num_threads", "verbose", "verbosity",
}  # fmt: skip
_KEPT_BY_LIGHTGBM = (
    "_best_iteration", "_best_score", "_class_map", "_class_weight", "_classes", "_evals_result",
    "_fitted_with_feature_names", "_le", "_n_classes", "_n_features", "_n_features_in", "_objective", "fitted_",
)  # fmt: skip


class Rounds(Prefixes):
    """Candidates that differ in the rounds of a library that does not say which numbers are right."""

    def right(self, model: Any, setting: Any) -> bool:
        size = setting.get(self.number, getattr(model, self.number))
        return type(size) is int and size > 0

    def why_not(self, model: Any) -> str | None:
        if unknown := sorted(model.get_params().keys() - type(model)().get_params().keys() - _PLAIN):
            return f"what {', '.join(unknown)} does to the first trees is not known"
        if not isinstance(model.random_state, Integral | None):
            return "random_state is no integer, so that single fits would differ from each other"
        return "its objective is a function" if callable(model.objective) else None


class LightGBM(Rounds):
    """Candidates that differ in the number of trees."""

    def __init__(self) -> None:
        super().__init__("n_estimators", _first_trees, _KEPT_BY_LIGHTGBM)

    def why_not(self, model: Any) -> str | None:
        if model.boosting_type not in ("gbdt", "goss"):
            return f"boosting_type={model.boosting_type} has no prefixes"
        return super().why_not(model)

    def smaller(self, whole: Any, n: int) -> Any:
        if (kept := whole.booster_.current_iteration()) != whole.n_estimators:
            raise ValueError(f"{kept} of {whole.n_estimators} iterations made a split, the others were dropped")
        return super().smaller(whole, n)


def _first_trees(whole: Any, n: int) -> dict[str, Any]:
    booster = whole.booster_
    if n < booster.current_iteration():
        smaller = type(booster)(model_str=booster.model_to_string(num_iteration=n))
        smaller.best_iteration, smaller.best_score = booster.best_iteration, copy(booster.best_score)
        booster = smaller
    return {"_Booster": booster, "_other_params": {**whole._other_params, "n_estimators": n}}


def _first_rounds(whole: Any, n: int) -> dict[str, Any]:
    return {"_Booster": whole.get_booster()[:n]}


class XGBoost(Rounds):
    """Candidates that differ in the number of rounds."""

    def __init__(self) -> None:
        super().__init__("n_estimators", _first_rounds, ("kwargs",))

    def why_not(self, model: Any) -> str | None:
        if model.booster not in (None, "gbtree"):
            return f"booster={model.booster} has no prefixes"
        if model.early_stopping_rounds is not None or model.callbacks is not None:
            return "early stopping or a callback may end it at any round"
        if model.device not in (None, "cpu"):
            return f"rounds on device={model.device} may add up in another order"
        return super().why_not(model)


FAMILIES: dict[str, Family] = {
    "LGBMClassifier": LightGBM(), "LGBMRegressor": LightGBM(), "XGBClassifier": XGBoost(), "XGBRegressor": XGBoost(),
}  # fmt: skip
