"""How much each parameter matters: permutation importance of a random forest that was fitted to the candidates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from common.report.study import Candidate

FEWEST, MOST = 20, 2000  # candidates: of fewer a forest learns nothing, of more this many are enough
TREES, REPEATS = 100, 5


class Importance(NamedTuple):
    """Importance of the parameters, the greatest first.

    Attributes:
        shares: name -> (mean, standard deviation over repeats) of what the forest's R^2 loses when the parameter is
            shuffled.
        explained: R^2 of the forest on candidates that each tree has not seen.
        n: candidates used.
    """

    shares: dict[str, tuple[float, float]]
    explained: float
    n: int


def importance_of(candidates: Sequence[Candidate], names: Sequence[str]) -> Importance | None:
    """The importance of these parameters; None where there are too few candidates or nothing varies.

    The forest is fitted to the ranks of the values, so that neither the scale of an error nor an infinite loss
    matters. Source: L. Breiman, "Random forests", Machine Learning 45, 2001; scikit-learn's forest and permutation.
    """
    valued = [one for one in candidates if one.value is not None and not math.isnan(one.value)]
    varied = [name for name in names if len({one.params.get(name) for one in valued}) > 1]
    if len(valued) < FEWEST or not varied or len({one.value for one in valued}) < 2:
        return None
    valued = valued[:: -(-len(valued) // MOST)]
    x = np.stack([_column([one.params.get(name) for one in valued]) for name in varied], axis=1)
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance

    values = np.array([one.value for one in valued], float)
    ranks = np.unique(values, return_inverse=True)[1].astype(float)
    forest = RandomForestRegressor(TREES, oob_score=True, random_state=0, min_samples_leaf=2, n_jobs=1).fit(x, ranks)
    found = permutation_importance(forest, x, ranks, n_repeats=REPEATS, random_state=0, n_jobs=1)
    order = np.argsort(-found.importances_mean, kind="stable")
    return Importance(
        {varied[n]: (float(found.importances_mean[n]), float(found.importances_std[n])) for n in order},
        float(forest.oob_score_),
        len(valued),
    )


def _column(values: Sequence[object]) -> np.ndarray:
    """Numbers as they are; texts, and what only some candidates have, as the number of each different one."""
    if all(isinstance(value, int | float) for value in values):
        return np.array(values, float)
    order = {value: n for n, value in enumerate(sorted(set(map(str, values))))}
    return np.array([order[str(value)] for value in values], float)
