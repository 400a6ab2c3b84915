"""The points of one grid search: the keys of its trials, its errors, and which point is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mpitune.figures.winner import least
from mpitune.trial import Parameter, Result, Segment, Trial

Point = tuple[int, int]  # index of gamma, index of C
REFIT = "refit"  # key of the trial that fits the chosen point


@dataclass(frozen=True, eq=False)
class TuningGrid:
    """All points of a search on all of its folds.

    Attributes:
        penalties: C, float64 (n,), ascending.
        gammas: float64 (n,), ascending.
        folds: of the cross-validation.
    """

    penalties: np.ndarray
    gammas: np.ndarray
    folds: int

    def key(self, g: int, c: int, fold: int) -> str:
        width = max(2, len(str(len(self.gammas) - 1)))
        return f"g{g:0{width}}/c{c:0{width}}/f{fold}"

    def trial(self, g: int, c: int, fold: int) -> Trial:
        return Trial(self.key(g, c, fold), self.params((g, c)), Segment(fold=fold))

    def refit(self, point: Point) -> Trial:
        """The chosen point fitted to all training images."""
        return Trial(REFIT, self.params(point))

    def params(self, point: Point) -> dict[str, Parameter]:
        g, c = point
        return {"C": float(self.penalties[c]), "gamma": float(self.gammas[g])}

    def errors(self, results: Mapping[str, Result]) -> np.ndarray:
        """float64 (folds, n_gamma, n_C); NaN where a trial failed or has no result."""
        errors = np.full((self.folds, len(self.gammas), len(self.penalties)), np.nan)
        for fold, g, c in np.ndindex(errors.shape):
            result = results.get(self.key(g, c, fold))
            if result is not None:
                errors[fold, g, c] = result.value("error")
        return errors


def best_point(errors: np.ndarray) -> Point | None:
    """(gamma index, C index) of the least mean error over (folds, n_gamma, n_C); None when each has a failed fold.

    Of equal points the one with the smaller C wins, then the one with the smaller gamma.
    """
    folds, n_gamma, _ = errors.shape
    number = least(errors.T.reshape(-1, folds))
    return None if number is None else (number % n_gamma, number // n_gamma)
