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

from mpitune.sklearn.sharing.family import Settings, SplitPart
from mpitune.sklearn.sharing.prefixes import Answers, KnowsAnswers, Prefixes


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


_KEPT = (
    "_baseline_prediction", "_bin_mapper", "_feature_subsample_rng", "_is_categorical_remapped", "_label_encoder",
    "_loss", "_n_features", "_preprocessor", "_random_seed", "_scorer", "_use_validation_data", "do_early_stopping_",
    "is_categorical_", "n_trees_per_iteration_", "_fitted_with_sw",
)  # fmt: skip


class Histograms(Prefixes):
    """Candidates that differ in the number of iterations."""

    def __init__(self) -> None:
        super().__init__("max_iter", _cut, _KEPT)

    def fit(self, model: Any, settings: Settings, part: SplitPart) -> list[Any]:
        made = super().fit(model, settings, part)
        fitted = [ensemble for ensemble in made if ensemble is not None]
        whole = copy(max(fitted, key=lambda ensemble: ensemble.n_iter_))
        known = tuple(Answers(_sums, whole, X, [ensemble.n_iter_ for ensemble in fitted]) for X in part.asked)
        for ensemble in fitted:
            ensemble._known, ensemble.__class__ = known, _CLASSES[type(ensemble)]
        return made


def _sums(whole: Any, X: Any, sizes: Sequence[int]) -> Iterator[np.ndarray]:
    return (sums for n, sums in enumerate(whole._staged_raw_predict(X), 1) if n in sizes)


def _cut(whole: Any, n: int) -> dict[str, Any]:
    """Scores have one value more than there are iterations: that of the beginning."""
    scores = {name: getattr(whole, name)[: n + 1] for name in ("train_score_", "validation_score_")}
    return {"_predictors": whole._predictors[:n], **scores}


FAMILIES = {kind.__name__: Histograms() for kind in _CLASSES}
