"""Which point of a grid is chosen."""

from __future__ import annotations

import numpy as np

from mpitune.figures.winner import least

Point = tuple[int, int]  # index of gamma, index of C
REFIT = "refit"  # key of the trial that fits the chosen point


def best_point(errors: np.ndarray) -> Point | None:
    """(gamma index, C index) of the least mean error over (folds, n_gamma, n_C); None when each has a failed fold.

    Of equal points the one with the smaller C wins, then the one with the smaller gamma.
    """
    folds, n_gamma, _ = errors.shape
    number = least(errors.T.reshape(-1, folds))
    return None if number is None else (number % n_gamma, number // n_gamma)
