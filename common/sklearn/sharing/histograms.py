"""Histogram gradient boosting: prefixes (`prefixes.py`), whose predictions are those of one ensemble on its way.

Why the result is the single one. A prediction begins with the baseline, and each iteration adds what its trees say. So
the sums of the largest ensemble after n iterations are those of an ensemble of n, to the bit: scikit-learn's own
`staged_predict` rests on the same.
"""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from common.sklearn.sharing.family import Settings, SplitPart
from common.sklearn.sharing.prefixes import Prefixes


class _Stages:
    """What the first n iterations say of some samples X, for all sizes; computed when first asked for."""

    def __init__(self, whole: Any, X: Any, sizes: Collection[int]):
        self.X, self._whole, self._sizes = X, whole, set(sizes)
        self._sums: dict[int, np.ndarray] = {}

    def of(self, n: int) -> np.ndarray:
        if not self._sums:
            for number, raw in enumerate(self._whole._staged_raw_predict(self.X), 1):
                if number in self._sizes:
                    self._sums[number] = raw
        return self._sums[n].copy(order="K")


class _KnowsStages:
    """An ensemble that answers for samples of which the sums are known."""

    _known: tuple[_Stages, ...] = ()

    def _raw_predict(self, X: Any, n_threads: int | None = None) -> Any:
        for sums in self._known:
            if sums.X is X:
                return sums.of(self.n_iter_)  # type: ignore[attr-defined]
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
        known = tuple(_Stages(whole, X, [one.n_iter_ for one in fitted]) for X in part.asked)
        for one in fitted:
            one._known, one.__class__ = known, _CLASSES[type(one)]
        return made


def _cut(model: Any, n: int) -> None:
    """Scores have one value more than there are iterations: that of the beginning."""
    model._predictors = model._predictors[:n]
    model.train_score_, model.validation_score_ = model.train_score_[: n + 1], model.validation_score_[: n + 1]


FAMILIES = {kind.__name__: Histograms() for kind in _CLASSES}
