"""XGBoost: a model of n rounds is the beginning of a larger one.

Why the result is the single one. A round depends only on those before it. Its random choices are the next numbers of
one stream, which begins at `random_state` (0 for None). So the first n rounds of a longer training are a training of n
rounds, with the same number of threads, on processors. XGBoost itself cuts them (as its `iteration_range` does), and
has a booster of them, whatever method is asked. Two boosters share nothing: "dart" changes earlier trees, and the
rounds of "gblinear" change one model. With early stopping nothing is shared: the number of rounds depends on samples
given to `fit`. XGBoost takes any further parameter, also one that changes trees that are there. So each must be known
as one that changes rounds one by one.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

from mpitune.sklearn.sharing.prefixes import Rounds

_OWN = frozenset(
    {
        "base_score", "booster", "callbacks", "colsample_bylevel", "colsample_bynode", "colsample_bytree", "device",
        "early_stopping_rounds", "enable_categorical", "eval_metric", "feature_types", "feature_weights", "gamma",
        "grow_policy", "importance_type", "interaction_constraints", "learning_rate", "max_bin", "max_cat_threshold",
        "max_cat_to_onehot", "max_delta_step", "max_depth", "max_leaves", "min_child_weight", "missing",
        "monotone_constraints", "multi_strategy", "n_estimators", "n_jobs", "num_parallel_tree", "objective",
        "random_state", "reg_alpha", "reg_lambda", "sampling_method", "scale_pos_weight", "subsample", "tree_method",
        "validate_parameters", "verbosity",
    }
)  # fmt: skip
_FURTHER = frozenset(
    {
        "alpha", "disable_default_eval_metric", "eta", "huber_slope", "lambda", "max_cached_hist_node",
        "min_split_loss", "nthread", "quantile_alpha", "seed_per_iteration", "tweedie_variance_power",
    }
)  # fmt: skip


class XGBoost(Rounds):
    """Candidates that differ in the number of rounds."""

    def why_not(self, model: Any) -> str | None:
        if model.booster not in (None, "gbtree"):
            return f"booster={model.booster} has no prefixes"
        if model.early_stopping_rounds is not None or model.callbacks is not None:
            return "early stopping or a callback may end it at any round"
        if not isinstance(model.random_state, Integral | None):
            return "random_state is no integer, so that single fits would differ from each other"
        if unknown := sorted(model.get_params().keys() - _OWN - _FURTHER):
            return f"what {', '.join(unknown)} does to the first rounds is not known"
        if model.device not in (None, "cpu"):
            return f"rounds on device={model.device} may add up in another order"
        return "its objective is a function" if callable(model.objective) else None


def _cut(whole: Any, n: int) -> dict[str, Any]:
    return {"_Booster": whole.get_booster()[:n]}


FAMILIES = {name: XGBoost("n_estimators", _cut, ("kwargs",)) for name in ("XGBClassifier", "XGBRegressor")}
