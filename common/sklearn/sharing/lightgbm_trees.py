"""LightGBM: a model of n trees is the beginning of a larger one.

Why the result is the single one. LightGBM's random choices come from seeds of the iteration (fixed where `random_state`
is None), and an iteration depends only on those before it. So the first n iterations of a longer training are a
training of n, with the same number of threads. A smaller model is the larger one, told to predict with its first
iterations. Two types of boosting share nothing: "dart" changes earlier trees, and "rf" divides by the number of trees.

A scorer that asks for classes of validation samples has them from scores that are added up from one size to the next,
so each tree is asked once. These sums are rounded in another way than LightGBM's. So where the best two classes are
closer than a billionth, LightGBM is asked for this size alone. Probabilities and numbers are always LightGBM's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from itertools import pairwise
from typing import Any

import numpy as np
from lightgbm import LGBMClassifier, LGBMRegressor

from common.sklearn.sharing.family import Settings, SplitPart
from common.sklearn.sharing.prefixes import Answers, KnowsAnswers, Rounds

_CLOSE = 1e-9  # difference of two scores, relative above 1, from which on rounding cannot decide
_QUIET = {"verbose", "verbosity"}  # parameters that change no prediction


class PrefixOfLGBMClassifier(KnowsAnswers, LGBMClassifier):
    """The first trees of a model."""

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The accuracy; where it is plain, without scikit-learn's checks, which take as long as the prediction."""
        known = self._answers(X) is not None
        if known and sample_weight is None and type(y) is np.ndarray and y.ndim == 1 and y.dtype.kind in "biu":
            return float((self.predict(X) == y).mean())
        return float(super().score(X, y, sample_weight))

    def predict(self, X: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        scores = self._answers(X)
        if scores is None or kwargs:
            return super().predict(X, **kwargs)
        best, doubtful = _best(scores.of(self.n_estimators))
        classes = self.classes_[best]
        if doubtful.any():
            classes[doubtful] = super().predict(X)[doubtful]
        return classes

    def predict_proba(self, X: Any, num_iteration: int | None = None, **kwargs: Any) -> Any:  # type: ignore[override]
        return super().predict_proba(X, num_iteration=num_iteration or self.n_estimators, **kwargs)


class PrefixOfLGBMRegressor(LGBMRegressor):
    """The first trees of a model."""

    def predict(self, X: Any, num_iteration: int | None = None, **kwargs: Any) -> Any:  # type: ignore[override]
        return super().predict(X, num_iteration=num_iteration or self.n_estimators, **kwargs)


_CLASSES: dict[type, type] = {LGBMClassifier: PrefixOfLGBMClassifier, LGBMRegressor: PrefixOfLGBMRegressor}


class LightGBM(Rounds):
    """Candidates that differ in the number of trees."""

    def why_not(self, model: Any) -> str | None:
        if model.boosting_type in ("dart", "rf"):
            return f"boosting_type={model.boosting_type} has no prefixes"
        if {"early_stopping_round", "early_stopping_rounds", "num_iterations", "n_iter"} & set(model.get_params()):
            return "another parameter says how many trees there are"
        return None

    def fit(self, model: Any, settings: Settings, part: SplitPart) -> list[Any]:
        made = super().fit(model, settings, part)
        fitted = [one for one in made if isinstance(one, PrefixOfLGBMClassifier)]
        others = set(model.get_params()) - set(LGBMClassifier._get_param_names()) - _QUIET
        if fitted and not others and model.objective in (None, "binary", "multiclass"):
            whole = copy(max(fitted, key=lambda one: one.n_estimators))
            whole.__class__ = LGBMClassifier
            known = tuple(Answers(_scores, whole, X, [one.n_estimators for one in fitted]) for X in part.asked)
            for one in fitted:
                one._known = known
        return made


def _scores(whole: Any, X: Any, sizes: Sequence[int]) -> Iterator[np.ndarray]:
    total: np.ndarray | float = 0.0
    for begin, size in pairwise([0, *sizes]):
        total = total + whole.predict(X, raw_score=True, start_iteration=begin, num_iteration=size - begin)
        yield np.asarray(total)


def _best(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The number of the best class of each sample, and whether another one is as good up to rounding.

    Args:
        scores: (n, n_classes), or (n,) of the second of two classes.
    """
    if scores.ndim == 1:
        return (scores > 0).astype(np.intp), np.abs(scores) <= _CLOSE
    second, best = np.partition(scores, -2, axis=1)[:, -2:].T
    return scores.argmax(axis=1), ~(best - second > _CLOSE * np.maximum(np.abs(best), 1.0))


def _cut(model: Any, n: int) -> None:
    model._n_estimators, model.__class__ = n, _CLASSES[type(model)]


FAMILIES = {kind.__name__: LightGBM("n_estimators", _cut) for kind in _CLASSES}
