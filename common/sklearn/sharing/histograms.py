"""Histogram gradient boosting: prefixes (`prefixes.py`), whose predictions are those of one ensemble on its way.

Why the result is the single one. A prediction begins with the baseline, and each iteration adds what its trees say. So
the sums of the largest ensemble after n iterations are those of an ensemble of n, to the bit: scikit-learn's own
`staged_predict` rests on the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from common.sklearn.sharing.family import Settings, SplitPart
from common.sklearn.sharing.prefixes import Answers, KnowsAnswers, Prefixes


class _KnowsStages(KnowsAnswers):
    def _raw_predict(self, X: Any, n_threads: int | None = None) -> Any:
        if (sums := self._answers(X)) is not None:
            return sums.of(self.n_iter_).copy(order="K")  # type: ignore[attr-defined]
        return super()._raw_predict(X, n_threads)  # type: ignore[misc]


class PrefixOfHistogramsClassifier(_KnowsStages, HistGradientBoostingClassifier):
    """The first iterations of an ensemble."""


class PrefixOfHistogramsRegressor(_KnowsStages, HistGradientBoostingRegressor):
    """The first iterations of an ensemble."""


_CLASSES: dict[type, type] = {
    HistGradientBoostingClassifier: PrefixOfHistogramsClassifier,
    HistGradientBoostingRegressor: PrefixOfHistogramsRegressor,
}


class Histograms(Prefixes):
    """Candidates that differ in the number of iterations."""

    def __init__(self) -> None:
        super().__init__("max_iter", _cut)

    def fit(self, model: Any, settings: Settings, part: SplitPart) -> list[Any]:
        made = super().fit(model, settings, part)
        fitted = [one for one in made if one is not None]
        whole = copy(max(fitted, key=lambda one: one.n_iter_))
        known = tuple(Answers(_sums, whole, X, [one.n_iter_ for one in fitted]) for X in part.asked)
        for one in fitted:
            one._known, one.__class__ = known, _CLASSES[type(one)]
        return made


def _sums(whole: Any, X: Any, sizes: Sequence[int]) -> Iterator[np.ndarray]:
    return (sums for n, sums in enumerate(whole._staged_raw_predict(X), 1) if n in sizes)


def _cut(model: Any, n: int) -> None:
    """Scores have one value more than there are iterations: that of the beginning."""
    model._predictors = model._predictors[:n]
    model.train_score_, model.validation_score_ = model.train_score_[: n + 1], model.validation_score_[: n + 1]


FAMILIES = {kind.__name__: Histograms() for kind in _CLASSES}
