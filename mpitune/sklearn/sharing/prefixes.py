"""Ensembles that grow one member after the other: the smaller one is the beginning of the larger.

Why the result is the single one. All draw the random numbers of their members one after the other from one stream that
begins at `random_state`. No member depends on how many follow: scikit-learn's `warm_start` relies on that too. So the
first n members of the largest ensemble are bitwise those of an ensemble of n:

- forests: a tree depends on its seed alone, and seeds are drawn one after the other;
- gradient boosting, also with histograms: a stage is fitted to what the stages before it left over. Early stopping
  looks at the scores of stages so far; an n beyond the last stage has all.

With `random_state=None`, or a generator that is shared, single fits would draw other numbers each time, so there is
nothing to be equal to: nothing is shared. The same holds where a function or a model within may do at each fit what
it likes. An out-of-bag score is another one at each size.

A smaller ensemble is a whole model: whatever a scorer asks, it computes with its own members. So each attribute of the
fitted ensemble must be known as one that is the same at all sizes, or be made anew. With another one, which a library
may add, all candidates are fitted alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from numbers import Integral
from types import MethodType
from typing import Any

from sklearn.base import clone

from mpitune.sklearn.sharing.family import Family, Settings, SplitPart, valid

_ALWAYS = frozenset(
    {
        "n_features_in_", "feature_names_in_", "classes_", "n_classes_", "estimator", "estimator_", "estimator_params",
        "_metadata_request",
    }
)  # fmt: skip


class Prefixes(Family):
    """Candidates that differ in the number of members.

    Args:
        number: the parameter's name.
        cut: a function with a name that pickle finds: what the first n members of a fitted one have of their own.
        kept: names of the other attributes that `fit` may set, which are the same at all sizes.
    """

    def __init__(self, number: str, cut: Callable[[Any, int], dict[str, Any]], kept: Iterable[str]):
        self.number, self.cut, self.kept = number, cut, _ALWAYS.union(kept)

    def shares(self, name: str) -> bool:
        return name == self.number

    def why_not(self, model: Any) -> str | None:
        if not isinstance(model.random_state, Integral):
            return "random_state is no integer, so that single fits would differ from each other"
        if getattr(model, "oob_score", False):
            return "its out-of-bag score is another one at each size"
        for name, value in model.get_params(deep=False).items():
            if hasattr(value, "fit") or callable(value):
                return f"{name} is a model or a function: its fits may differ"
        return None

    def right(self, model: Any, setting: Mapping[str, Any]) -> bool:
        """Whether a candidate can be fitted."""
        return not isinstance(setting.get(self.number), bool) and valid(model, setting)

    def fit(self, model: Any, settings: Settings, part: SplitPart) -> list[Any]:
        sizes = [setting.get(self.number, getattr(model, self.number)) for setting in settings]
        right = [self.right(model, setting) for setting in settings]
        largest = max(size for size, fine in zip(sizes, right, strict=True) if fine)
        whole = clone(model).set_params(**{self.number: largest}).fit(part.X, part.y, **part.weights)
        return [self.smaller(whole, size) if fine else None for size, fine in zip(sizes, right, strict=True)]

    def smaller(self, whole: Any, n: int) -> Any:
        """The model of the first n members. Raises TypeError if the ensemble has an attribute that is not known."""
        for name, value in list(vars(whole).items()):  # the class's own method, which is bound to this ensemble
            if isinstance(value, MethodType) and value.__func__ is getattr(type(whole), name, None):
                delattr(whole, name)
        own = self.cut(whole, n)
        if unknown := vars(whole).keys() - whole.get_params(deep=False).keys() - own.keys() - self.kept:
            raise TypeError(f"nobody knows what {', '.join(sorted(unknown))} should be in a smaller ensemble")
        prefix = copy(whole)
        vars(prefix).update(own, **{self.number: n})
        return prefix


def _gradient_boosting(whole: Any, n: int) -> dict[str, Any]:
    several = ("estimators_", "train_score_", "oob_improvement_", "oob_scores_")
    own = {name: getattr(whole, name)[:n] for name in several if hasattr(whole, name)}
    own["n_estimators_"] = len(own["estimators_"])
    if "oob_scores_" in own:
        own["oob_score_"] = own["oob_scores_"][-1]
    return own


def _first_trees(whole: Any, n: int) -> dict[str, Any]:
    return {"estimators_": whole.estimators_[:n]}


def _iterations(whole: Any, n: int) -> dict[str, Any]:
    """Scores have one value more than there are iterations: that of the beginning."""
    scores = {name: getattr(whole, name)[: n + 1] for name in ("train_score_", "validation_score_")}
    return {"_predictors": whole._predictors[:n], **scores}


_HISTOGRAMS = (
    "_baseline_prediction", "_bin_mapper", "_feature_subsample_rng", "_is_categorical_remapped", "_label_encoder",
    "_loss", "_n_features", "_preprocessor", "_random_seed", "_scorer", "_use_validation_data", "do_early_stopping_",
    "is_categorical_", "n_trees_per_iteration_", "_fitted_with_sw",
)  # fmt: skip
_FOREST = ("_n_samples", "_n_samples_bootstrap", "_sample_weight", "n_outputs_", "class_weight")
_BOOSTING = ("_loss", "_rng", "alpha", "init_", "max_features_", "n_trees_per_iteration_")
FAMILIES: dict[str, Family] = {}
for _kind in ("Classifier", "Regressor"):
    FAMILIES[f"GradientBoosting{_kind}"] = Prefixes("n_estimators", _gradient_boosting, _BOOSTING)
    for _forest in ("RandomForest", "ExtraTrees"):
        FAMILIES[f"{_forest}{_kind}"] = Prefixes("n_estimators", _first_trees, _FOREST)
    FAMILIES[f"HistGradientBoosting{_kind}"] = Prefixes("max_iter", _iterations, _HISTOGRAMS)
