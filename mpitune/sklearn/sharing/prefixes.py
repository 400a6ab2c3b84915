"""Ensembles that grow one member after the other: the smaller one is the beginning of the larger.

Why the result is the single one. All draw the random numbers of their members one after the other from one stream that
begins at `random_state`. No member depends on how many follow: scikit-learn's `warm_start` relies on that too. So the
first n members of the largest ensemble are bitwise those of an ensemble of n:

- bagging: the seeds of all members are drawn first, as one array, whose beginning does not depend on its length;
- AdaBoost: a round changes the weights of samples for the rounds after it alone; one that ends early does so in the
  same round for each n beyond it;
- forests: a tree depends on its seed alone, and seeds are drawn one after the other;
- gradient boosting, also with histograms: a stage is fitted to what the stages before it left over. Early stopping
  looks at the scores of stages so far; an n beyond the last stage has all.

A forest adds up the predictions of its trees in their order, and divides by their number. Gradient boosting with
histograms begins with its baseline and adds what each iteration says. So the sum of a large ensemble after n members
is that of an ensemble of n, and these two share sums, too. (With `n_jobs` above 1 the trees of a forest are added in
the order in which they end, so results differ by rounding from run to run: then nothing is known.)

With `random_state=None`, or a generator that is shared, single fits would draw other numbers each time, so there is
nothing to be equal to: nothing is shared. The same holds for a model within it that may be another at each fit
(`chance.py`). The out-of-bag score of bagging is computed for each number of members, by scikit-learn's own function; a
forest with one grows by scikit-learn's own `warm_start`, which computes it at each size.

A smaller ensemble is a whole model: whatever a scorer asks, it computes with its own members. So each attribute of the
fitted ensemble must be known as one that is the same at all sizes, or be made anew. With another one, which a library
may add, all candidates are fitted alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from numbers import Integral
from types import MethodType
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.utils import check_array

from mpitune.sklearn.sharing.chance import why_unsure
from mpitune.sklearn.sharing.family import Family, Settings, SplitPart, valid

_ALWAYS = frozenset(
    {
        "n_features_in_", "feature_names_in_", "classes_", "n_classes_", "estimator", "estimator_", "estimator_params",
        "_metadata_request",
    }
)  # fmt: skip
_OUT_OF_BAG = ("oob_score_", "oob_decision_function_", "oob_prediction_")  # computed anew for each size
Computed = Callable[[Any, Any, Sequence[int]], Iterator[np.ndarray]]  # of (whole, X, sizes), an array for each size


class Answers:
    """What the whole ensemble says of samples X at the sizes of all candidates; computed when first asked for."""

    def __init__(self, computed: Computed, whole: Any, X: Any, sizes: Iterable[int]):
        self.X, self._computed, self._whole, self._sizes = X, computed, whole, sorted(set(sizes))
        self._of_size: dict[int, np.ndarray] = {}

    def of(self, n: int) -> np.ndarray:
        """The array of size n, which all candidates of this size share."""
        if not self._of_size:
            self._of_size = dict(zip(self._sizes, self._computed(self._whole, self.X, self._sizes), strict=True))
        return self._of_size[n]


class KnowsAnswers:
    """An ensemble that knows answers for some samples."""

    _known: tuple[Answers, ...] = ()

    def _answer(self, X: Any, n: int) -> np.ndarray | None:
        """That of n members for exactly these samples, None where it is not known."""
        return next((answers.of(n) for answers in self._known if answers.X is X), None)


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
        return why_unsure(model, drawn="estimator" in model.get_params(deep=False))

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


class BaggingPrefixes(Prefixes):
    """Candidates that differ in the number of members, which see samples drawn at random."""

    def __init__(self) -> None:
        kept = ("_max_features", "_max_samples", "_n_samples", "_sample_weight")
        super().__init__("n_estimators", _bagging, (*kept, *_OUT_OF_BAG))

    def fit(self, model: Any, settings: Settings, part: SplitPart) -> list[Any]:
        made = super().fit(model, settings, part)
        if model.oob_score:
            X = check_array(part.X, accept_sparse=("csr", "csc"), dtype=None, ensure_all_finite=False, ensure_2d=False)
            for prefix in filter(None, made):
                prefix._set_oob_score(X, prefix._validate_y(np.asarray(part.y)))
        return made


def _bagging(whole: Any, n: int) -> dict[str, Any]:
    return {name: getattr(whole, name)[:n] for name in ("estimators_", "estimators_features_", "_seeds")}


def _ada_boost(whole: Any, n: int) -> dict[str, Any]:
    return {name: getattr(whole, name)[:n] for name in ("estimators_", "estimator_weights_", "estimator_errors_")}


def _gradient_boosting(whole: Any, n: int) -> dict[str, Any]:
    several = ("estimators_", "train_score_", "oob_improvement_", "oob_scores_")
    own = {name: getattr(whole, name)[:n] for name in several if hasattr(whole, name)}
    own["n_estimators_"] = len(own["estimators_"])
    if "oob_scores_" in own:
        own["oob_score_"] = own["oob_scores_"][-1]
    return own


class _KnowsSums(KnowsAnswers):
    """A forest that knows the sums of its trees' predictions."""

    def _mean(self, X: Any) -> np.ndarray | None:
        n = len(self.estimators_)  # type: ignore[attr-defined]
        sums = None if self.n_outputs_ > 1 else self._answer(X, n)  # type: ignore[attr-defined]
        return None if sums is None else sums / n


class _ForestClassifier(_KnowsSums):
    def predict_proba(self, X: Any) -> Any:
        mean = self._mean(X)
        return super().predict_proba(X) if mean is None else mean  # type: ignore[misc]


class _ForestRegressor(_KnowsSums):
    def predict(self, X: Any) -> Any:
        mean = self._mean(X)
        return super().predict(X) if mean is None else mean  # type: ignore[misc]


class _Histograms(KnowsAnswers):
    def _raw_predict(self, X: Any, n_threads: int | None = None) -> Any:
        if (sums := self._answer(X, self.n_iter_)) is not None:  # type: ignore[attr-defined]
            return sums.copy(order="K")
        return super()._raw_predict(X, n_threads)  # type: ignore[misc]


def _knowing(knows: type, kind: type) -> type:
    """A class of scikit-learn whose models know answers; its name is known here, so that they can be pickled."""
    name = f"PrefixOf{kind.__name__}"
    globals()[name] = made = type(name, (knows, kind), {"__module__": __name__})
    return made


_KNOWING: dict[type, type] = {
    RandomForestClassifier: _knowing(_ForestClassifier, RandomForestClassifier),
    ExtraTreesClassifier: _knowing(_ForestClassifier, ExtraTreesClassifier),
    RandomForestRegressor: _knowing(_ForestRegressor, RandomForestRegressor),
    ExtraTreesRegressor: _knowing(_ForestRegressor, ExtraTreesRegressor),
    HistGradientBoostingClassifier: _knowing(_Histograms, HistGradientBoostingClassifier),
    HistGradientBoostingRegressor: _knowing(_Histograms, HistGradientBoostingRegressor),
}


def _know(computed: Computed, sizes: Mapping[Any, int], part: SplitPart) -> None:
    """Let fitted ensembles, each with its number of members, know what the largest of them says of `part.asked`."""
    whole = copy(max(sizes, key=lambda ensemble: sizes[ensemble]))
    known = tuple(Answers(computed, whole, X, sizes.values()) for X in part.asked)
    for ensemble in sizes:
        ensemble._known, ensemble.__class__ = known, _KNOWING[type(ensemble)]


def _first_trees(whole: Any, n: int) -> dict[str, Any]:
    return {"estimators_": whole.estimators_[:n]}


class Forests(Prefixes):
    """Candidates that differ in the number of trees."""

    def __init__(self) -> None:
        kept = ("_n_samples", "_n_samples_bootstrap", "_sample_weight", "n_outputs_", "class_weight", *_OUT_OF_BAG)
        super().__init__("n_estimators", _first_trees, kept)

    def why_not(self, model: Any) -> str | None:
        if model.oob_score and model.class_weight in ("balanced", "balanced_subsample"):
            return "with balanced classes a forest with an out-of-bag score does not grow"
        return super().why_not(model)

    def fit(self, model: Any, settings: Settings, part: SplitPart) -> list[Any]:
        made = self._grown(model, settings, part) if model.oob_score else super().fit(model, settings, part)
        if model.n_jobs in (None, 1):
            _know(_sums_of_trees, {forest: forest.n_estimators for forest in made if forest is not None}, part)
        return made

    def _grown(self, model: Any, settings: Settings, part: SplitPart) -> list[Any]:
        right = {
            place: setting.get("n_estimators", model.n_estimators)
            for place, setting in enumerate(settings)
            if self.right(model, setting)
        }
        whole, at = clone(model).set_params(warm_start=True), {}
        for n in sorted(set(right.values())):
            whole.set_params(n_estimators=n).fit(part.X, part.y, **part.weights)
            at[n] = self.smaller(whole, n).set_params(warm_start=model.warm_start)
        return [copy(at[right[place]]) if place in right else None for place in range(len(settings))]


def _sums_of_trees(whole: Any, X: Any, sizes: Sequence[int]) -> Iterator[np.ndarray]:
    X = whole._validate_X_predict(X)
    total: np.ndarray | float = 0.0
    for n, tree in enumerate(whole.estimators_, 1):
        total = total + getattr(tree, "predict_proba", tree.predict)(X, check_input=False)
        if n in sizes:
            yield np.asarray(total)


class Histograms(Prefixes):
    """Candidates that differ in the number of iterations."""

    def __init__(self) -> None:
        kept = (
            "_baseline_prediction", "_bin_mapper", "_feature_subsample_rng", "_is_categorical_remapped",
            "_label_encoder", "_loss", "_n_features", "_preprocessor", "_random_seed", "_scorer",
            "_use_validation_data", "do_early_stopping_", "is_categorical_", "n_trees_per_iteration_",
            "_fitted_with_sw",
        )  # fmt: skip
        super().__init__("max_iter", _iterations, kept)

    def fit(self, model: Any, settings: Settings, part: SplitPart) -> list[Any]:
        made = super().fit(model, settings, part)
        _know(_sums_of_iterations, {model: model.n_iter_ for model in made if model is not None}, part)
        return made


def _sums_of_iterations(whole: Any, X: Any, sizes: Sequence[int]) -> Iterator[np.ndarray]:
    return (sums for n, sums in enumerate(whole._staged_raw_predict(X), 1) if n in sizes)


def _iterations(whole: Any, n: int) -> dict[str, Any]:
    """Scores have one value more than there are iterations: that of the beginning."""
    scores = {name: getattr(whole, name)[: n + 1] for name in ("train_score_", "validation_score_")}
    return {"_predictors": whole._predictors[:n], **scores}


_BOOSTING = ("_loss", "_rng", "alpha", "init_", "max_features_", "n_trees_per_iteration_")
FAMILIES: dict[str, Family] = {}
for _kind in ("Classifier", "Regressor"):
    FAMILIES[f"Bagging{_kind}"] = BaggingPrefixes()
    FAMILIES[f"AdaBoost{_kind}"] = Prefixes("n_estimators", _ada_boost, ())
    FAMILIES[f"GradientBoosting{_kind}"] = Prefixes("n_estimators", _gradient_boosting, _BOOSTING)
    FAMILIES[f"RandomForest{_kind}"] = FAMILIES[f"ExtraTrees{_kind}"] = Forests()
    FAMILIES[f"HistGradientBoosting{_kind}"] = Histograms()
