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
  trees that are there. So each must be known as one that changes rounds one by one.
"""

from __future__ import annotations

from copy import copy
from numbers import Integral
from typing import Any

from mpitune.sklearn.sharing.family import Family
from mpitune.sklearn.sharing.prefixes import Prefixes

_LIGHTGBM = frozenset(
    {
        "boosting_type", "class_weight", "colsample_bytree", "importance_type", "learning_rate", "max_depth",
        "min_child_samples", "min_child_weight", "min_split_gain", "n_estimators", "n_jobs", "num_leaves", "objective",
        "random_state", "reg_alpha", "reg_lambda", "subsample", "subsample_for_bin", "subsample_freq",
        # and further ones
        "bagging_fraction", "bagging_freq", "bagging_seed", "boost_from_average", "cat_l2", "cat_smooth",
        "data_random_seed", "deterministic", "extra_seed", "extra_trees", "feature_fraction",
        "feature_fraction_bynode", "feature_fraction_seed", "force_col_wise", "force_row_wise", "is_unbalance",
        "lambda_l1", "lambda_l2", "max_bin", "max_cat_threshold", "max_cat_to_onehot", "max_delta_step",
        "min_data_in_bin", "min_data_in_leaf", "min_data_per_group", "min_gain_to_split", "min_sum_hessian_in_leaf",
        "num_threads", "path_smooth", "scale_pos_weight", "seed", "sigmoid", "use_missing", "verbose", "verbosity",
        "zero_as_missing",
    }
)  # fmt: skip
_KEPT_BY_LIGHTGBM = (
    "_best_iteration", "_best_score", "_class_map", "_class_weight", "_classes", "_evals_result",
    "_fitted_with_feature_names", "_le", "_n_classes", "_n_features", "_n_features_in", "_objective", "fitted_",
)  # fmt: skip
_XGBOOST = frozenset(
    {
        "base_score", "booster", "callbacks", "colsample_bylevel", "colsample_bynode", "colsample_bytree", "device",
        "early_stopping_rounds", "enable_categorical", "eval_metric", "feature_types", "feature_weights", "gamma",
        "grow_policy", "importance_type", "interaction_constraints", "learning_rate", "max_bin", "max_cat_threshold",
        "max_cat_to_onehot", "max_delta_step", "max_depth", "max_leaves", "min_child_weight", "missing",
        "monotone_constraints", "multi_strategy", "n_estimators", "n_jobs", "num_parallel_tree", "objective",
        "random_state", "reg_alpha", "reg_lambda", "sampling_method", "scale_pos_weight", "subsample", "tree_method",
        "validate_parameters", "verbosity",
        # and further ones
        "alpha", "disable_default_eval_metric", "eta", "huber_slope", "lambda", "max_cached_hist_node",
        "min_split_loss", "nthread", "quantile_alpha", "seed_per_iteration", "tweedie_variance_power",
    }
)  # fmt: skip


class Rounds(Prefixes):
    """Candidates that differ in the rounds of a library that does not say which numbers are right."""

    def right(self, model: Any, setting: Any) -> bool:
        size = setting.get(self.number, getattr(model, self.number))
        return type(size) is int and size > 0

    def why_not(self, model: Any) -> str | None:
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
        if unknown := sorted(model.get_params().keys() - _LIGHTGBM):
            return f"what {', '.join(unknown)} does to the first trees is not known"
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
        if unknown := sorted(model.get_params().keys() - _XGBOOST):
            return f"what {', '.join(unknown)} does to the first rounds is not known"
        if model.device not in (None, "cpu"):
            return f"rounds on device={model.device} may add up in another order"
        return super().why_not(model)


FAMILIES: dict[str, Family] = {
    "LGBMClassifier": LightGBM(), "LGBMRegressor": LightGBM(), "XGBClassifier": XGBoost(), "XGBRegressor": XGBoost(),
}  # fmt: skip
