"""LightGBM: a model of n trees is the beginning of a larger one.

Why the result is the single one. LightGBM's random choices come from seeds of the iteration (fixed where `random_state`
is None), and an iteration depends only on those before it. So the first n iterations of a longer training are a
training of n, with the same number of threads. LightGBM itself writes and reads a model of the first n iterations: it
predicts the same to the bit, whatever method is asked.

- An iteration without a split is dropped, and training goes on. Then the first n are not a training of n. So the
  largest model must have kept as many iterations as it was asked for.
- The types of boosting "dart", which changes earlier trees, and "rf", which divides by the number of trees, share
  nothing.
- LightGBM takes any further parameter, also one that says in another word how many iterations there are. So each must
  be known as one that changes iterations one by one.
"""

from __future__ import annotations

from copy import copy
from numbers import Integral
from typing import Any

from lightgbm import Booster, LGBMModel

from mpitune.sklearn.sharing.prefixes import Rounds

_OWN = frozenset(
    {
        "boosting_type", "class_weight", "colsample_bytree", "importance_type", "learning_rate", "max_depth",
        "min_child_samples", "min_child_weight", "min_split_gain", "n_estimators", "n_jobs", "num_leaves", "objective",
        "random_state", "reg_alpha", "reg_lambda", "subsample", "subsample_for_bin", "subsample_freq",
    }
)  # fmt: skip
_FURTHER = frozenset(
    {
        "bagging_fraction", "bagging_freq", "bagging_seed", "boost_from_average", "cat_l2", "cat_smooth",
        "data_random_seed", "deterministic", "extra_seed", "extra_trees", "feature_fraction",
        "feature_fraction_bynode", "feature_fraction_seed", "force_col_wise", "force_row_wise", "is_unbalance",
        "lambda_l1", "lambda_l2", "max_bin", "max_cat_threshold", "max_cat_to_onehot", "max_delta_step",
        "min_data_in_bin", "min_data_in_leaf", "min_data_per_group", "min_gain_to_split", "min_sum_hessian_in_leaf",
        "num_threads", "path_smooth", "scale_pos_weight", "seed", "sigmoid", "use_missing", "verbose", "verbosity",
        "zero_as_missing",
    }
)  # fmt: skip
_KEPT = (
    "_best_iteration", "_best_score", "_class_map", "_class_weight", "_classes", "_evals_result",
    "_fitted_with_feature_names", "_le", "_n_classes", "_n_features", "_n_features_in", "_objective", "fitted_",
)  # fmt: skip


class LightGBM(Rounds):
    """Candidates that differ in the number of trees."""

    def why_not(self, model: Any) -> str | None:
        if model.boosting_type not in ("gbdt", "goss"):
            return f"boosting_type={model.boosting_type} has no prefixes"
        if unknown := sorted(model.get_params().keys() - _OWN - _FURTHER):
            return f"what {', '.join(unknown)} does to the first trees is not known"
        if not isinstance(model.random_state, Integral | None):
            return "random_state is no integer, so that single fits would differ from each other"
        return "its objective is a function" if callable(model.objective) else None

    def smaller(self, whole: Any, n: int) -> Any:
        if (kept := whole.booster_.current_iteration()) != whole.n_estimators:
            raise ValueError(f"{kept} of {whole.n_estimators} iterations made a split, the others were dropped")
        return super().smaller(whole, n)


def _cut(whole: LGBMModel, n: int) -> dict[str, Any]:
    booster = whole.booster_
    if n < booster.current_iteration():
        smaller = Booster(model_str=booster.model_to_string(num_iteration=n))
        smaller.best_iteration, smaller.best_score = booster.best_iteration, copy(booster.best_score)
        booster = smaller
    return {"_Booster": booster, "_other_params": {**whole._other_params, "n_estimators": n}}


FAMILIES = {f"LGBM{kind}": LightGBM("n_estimators", _cut, _KEPT) for kind in ("Classifier", "Regressor")}
