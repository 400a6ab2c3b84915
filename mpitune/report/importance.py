"""The importance of each parameter: the loss when its values are shuffled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpitune.report.candidates import Candidate

FEWEST_TRIALS, MOST_TRIALS = 20, 2000  # candidates: of fewer a forest learns nothing, of more this many are enough
TREES, REPEATS = 100, 5


class Importance(NamedTuple):
    """Importance of the parameters, the greatest first.

    Attributes:
        shares: name -> (mean, standard deviation over repeats) of what R^2 loses when the parameter is shuffled.
        explained: R^2 of the forest on candidates that each tree has not seen; None for a whole grid, which needs no
            forest.
        n: candidates used.
    """

    shares: dict[str, tuple[float, float]]
    explained: float | None
    n: int


def importance_of(candidates: Sequence[Candidate], names: Sequence[str]) -> Importance | None:
    """The importance of these parameters; None where there are too few candidates or nothing varies.

    All candidates have a value.

    It is that of the ranks of the values, so the scale of an error and infinite losses have no influence. A whole grid
    has the value of every shuffled candidate, so what shuffling loses is computed from the grid itself. Otherwise a
    random forest learns the candidates.
    """
    varied = [name for name in names if len({candidate.params.get(name) for candidate in candidates}) > 1]
    if len(candidates) < FEWEST_TRIALS or not varied or len({candidate.value for candidate in candidates}) < 2:
        return None
    columns = [_column([candidate.params.get(name) for candidate in candidates]) for name in varied]
    values = np.array([candidate.value for candidate in candidates], float)
    levels = [np.unique(column, return_inverse=True)[1] for column in columns]
    shape = tuple(int(level.max()) + 1 for level in levels)
    if math.prod(shape) == len(candidates) == len(set(zip(*levels, strict=True))):
        grid = np.empty(shape)
        grid[tuple(levels)] = _ranks(values)
        means, spreads, explained = _of_grid(grid), np.zeros(len(varied)), None
    else:
        every = slice(None, None, -(-len(candidates) // MOST_TRIALS))
        means, spreads, explained = _of_forest(np.stack(columns, axis=1)[every], _ranks(values[every]))
        candidates = candidates[every]
    order = np.argsort(-means, kind="stable")
    return Importance({varied[n]: (float(means[n]), float(spreads[n])) for n in order}, explained, len(candidates))


def _of_grid(ranks: np.ndarray) -> np.ndarray:
    """What shuffling each parameter loses of R^2, float64 (n_parameters,): twice its total share of the variance.

    Source: M. J. W. Jansen, "Analysis of variance designs for model output", Computer Physics Communications 117, 1999.

    Args:
        ranks: of each point of the grid, one axis for each parameter.
    """
    return np.array([2 * ranks.var(axis=axis).mean() for axis in range(ranks.ndim)]) / ranks.var()


def _of_forest(x: np.ndarray, ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """What shuffling each parameter loses of the R^2 of a forest, its deviation, and R^2 on what a tree has not seen.

    Source: L. Breiman, "Random forests", Machine Learning 45, 2001; scikit-learn's forest and permutation.

    Args:
        x: float64 (n, n_parameters), the candidates.
        ranks: float64 (n,).
    """
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance

    forest = RandomForestRegressor(TREES, oob_score=True, random_state=0, min_samples_leaf=2, n_jobs=1).fit(x, ranks)
    lost = permutation_importance(forest, x, ranks, n_repeats=REPEATS, random_state=0, n_jobs=1)
    return lost.importances_mean, lost.importances_std, float(forest.oob_score_)


def _ranks(values: np.ndarray) -> np.ndarray:
    return np.unique(values, return_inverse=True)[1].astype(float)


def _column(values: Sequence[object]) -> np.ndarray:
    """Numbers as they are; texts, and what only some candidates have, as the number of each different one."""
    if all(isinstance(value, int | float) for value in values):
        return np.array(values, float)
    order = {value: n for n, value in enumerate(sorted(set(map(str, values))))}
    return np.array([order[str(value)] for value in values], float)
