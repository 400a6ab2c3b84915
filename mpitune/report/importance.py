"""The importance of each parameter: the loss when its values are shuffled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpitune.report.candidates import Candidate

FEWEST, MOST = 20, 2000  # candidates: of fewer a forest learns nothing, of more this many are enough
TREES, REPEATS = 100, 5


class Importance(NamedTuple):
    """Importance of the parameters, the greatest first.

    Attributes:
        shares: name -> (mean, standard deviation over repeats) of what R^2 loses when the parameter is shuffled.
        explained: R^2 of the forest on candidates that each tree has not seen.
        n: candidates used.
    """

    shares: dict[str, tuple[float, float]]
    explained: float
    n: int


def importance_of(candidates: Sequence[Candidate], names: Sequence[str]) -> Importance | None:
    """The importance of these parameters; None where there are too few candidates or nothing varies.

    All candidates have a value.

    It is that of the ranks of the values, so the scale of an error and infinite losses have no influence. A random
    forest learns them.
    """
    varied = [name for name in names if len({candidate.params.get(name) for candidate in candidates}) > 1]
    if len(candidates) < FEWEST or not varied or len({candidate.value for candidate in candidates}) < 2:
        return None
    columns = [_column([candidate.params.get(name) for candidate in candidates]) for name in varied]
    values = np.array([candidate.value for candidate in candidates], float)
    every = slice(None, None, -(-len(candidates) // MOST))
    means, spreads, explained = _of_forest(np.stack(columns, axis=1)[every], _ranks(values[every]))
    order = np.argsort(-means, kind="stable")
    return Importance({varied[n]: (float(means[n]), float(spreads[n])) for n in order}, explained, len(values[every]))


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
