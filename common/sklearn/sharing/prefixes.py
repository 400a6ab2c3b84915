"""Ensembles that grow one member after the other: the smaller one is the beginning of the larger.

Why the result is the single one. All draw the random numbers of their members one after the other from one stream that
begins at `random_state`. No member depends on how many follow: scikit-learn's `warm_start` relies on that too. So the
first n members of the largest ensemble are those of an ensemble of n, to the bit:

- bagging: the seeds of all members are drawn first, as one array, whose beginning does not depend on its length;
- AdaBoost: a round changes the weights of samples for the rounds after it alone; one that ends early does so in the
  same round for each n beyond it;
- gradient boosting, also with histograms: a stage is fitted to what the stages before it left over. Early stopping
  looks at the scores of stages so far; an n beyond the last stage has all.

With `random_state=None`, or a generator that is shared, single fits would draw other numbers each time, so there is
nothing to be equal to: nothing is shared. The out-of-bag score of bagging is computed for each number of members, by
scikit-learn's own function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_array

from common.sklearn.sharing.family import Family, Settings, SplitPart, valid

Computed = Callable[[Any, Any, Sequence[int]], Iterator[np.ndarray]]


class Answers:
    """What an ensemble says of some samples at the sizes of all candidates; computed when first asked for.

    Args:
        computed: gives (whole, X, sizes) -> an array for each size, all of one shape.
        whole: the largest ensemble.
        X: the samples, (n, n_features).
        sizes: numbers of members.
    """

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

    def _answers(self, X: Any) -> Answers | None:
        """Those for exactly these samples, None where they are not known."""
        return next((answers for answers in self._known if answers.X is X), None)


class Prefixes(Family):
    """Candidates that differ in the number of members.

    Args:
        number: the parameter's name.
        cut: makes a copy of a fitted ensemble, whose parameter is already set, smaller.
    """

    divides = True

    def __init__(self, number: str, cut: Callable[[Any, int], None]):
        self.number, self.cut = number, cut

    def shares(self, name: str) -> bool:
        return name == self.number

    def why_not(self, model: Any) -> str | None:
        if not isinstance(model.random_state, Integral):
            return "random_state is no integer, so that single fits would differ from each other"
        return None

    def right(self, model: Any, setting: Mapping[str, Any]) -> bool:
        """Whether a candidate can be fitted."""
        return valid(model, setting)

    def fit(self, model: Any, settings: Settings, part: SplitPart) -> list[Any]:
        sizes = [setting.get(self.number, getattr(model, self.number)) for setting in settings]
        right = [self.right(model, setting) for setting in settings]
        largest = max(size for size, fine in zip(sizes, right, strict=True) if fine)
        whole = clone(model).set_params(**{self.number: largest}).fit(part.X, part.y, **part.weights)
        made: list[Any] = []
        for size, fine in zip(sizes, right, strict=True):
            one = copy(whole) if fine else None
            if one is not None:
                setattr(one, self.number, size)
                self.cut(one, size)
            made.append(one)
        return made


class Rounds(Prefixes):
    """Candidates that differ in the rounds of a library that does not say which numbers are right."""

    def right(self, model: Any, setting: Mapping[str, Any]) -> bool:
        size = setting.get(self.number, getattr(model, self.number))
        return type(size) is int and size > 0


class BaggingPrefixes(Prefixes):
    """Candidates that differ in the number of members, which see samples drawn at random."""

    def __init__(self) -> None:
        super().__init__("n_estimators", _bagging)

    def fit(self, model: Any, settings: Settings, part: SplitPart) -> list[Any]:
        made = super().fit(model, settings, part)
        if model.oob_score:
            X = check_array(part.X, accept_sparse=("csr", "csc"), dtype=None, ensure_all_finite=False, ensure_2d=False)
            for one in filter(None, made):
                one._set_oob_score(X, one._validate_y(np.asarray(part.y)))
        return made


def _bagging(model: Any, n: int) -> None:
    model.estimators_, model.estimators_features_ = model.estimators_[:n], model.estimators_features_[:n]
    model._seeds = model._seeds[:n]


def _ada_boost(model: Any, n: int) -> None:
    model.estimators_ = model.estimators_[:n]
    model.estimator_weights_, model.estimator_errors_ = model.estimator_weights_[:n], model.estimator_errors_[:n]


def _gradient_boosting(model: Any, n: int) -> None:
    model.estimators_, model.train_score_ = model.estimators_[:n], model.train_score_[:n]
    model.n_estimators_ = len(model.estimators_)
    if hasattr(model, "oob_scores_"):
        model.oob_improvement_, model.oob_scores_ = model.oob_improvement_[:n], model.oob_scores_[:n]
        model.oob_score_ = model.oob_scores_[-1]


FAMILIES: dict[str, Family] = {}
for _kind in ("Classifier", "Regressor"):
    FAMILIES[f"Bagging{_kind}"] = BaggingPrefixes()
    FAMILIES[f"AdaBoost{_kind}"] = Prefixes("n_estimators", _ada_boost)
    FAMILIES[f"GradientBoosting{_kind}"] = Prefixes("n_estimators", _gradient_boosting)
