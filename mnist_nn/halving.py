"""Successive halving: all parameter sets are trained a little, and only the best of them further.

Source: K. Jamieson and A. Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization",
AISTATS 2016. The resource is epochs, beginning with one, and the last rung is the whole training.
"""

from __future__ import annotations

import numpy as np


def rungs(n_sets: int, epochs: int, eta: int) -> list[tuple[int, int]]:
    """(sets that take part, epochs they may train for) of every rung; with at most eta sets there is one.

    From rung to rung there are eta times fewer sets (rounded up) and eta times more epochs.
    """
    found, limit = [], 1
    while n_sets > eta and limit < epochs:
        found.append((n_sets, limit))
        n_sets, limit = -(-n_sets // eta), limit * eta
    return [*found, (n_sets, epochs)]


def leading(losses: np.ndarray, n: int) -> list[int]:
    """The parameter sets of the lowest mean loss, the first of equal ones.

    Args:
        losses: (n_sets, folds). A set with a fold that failed (NaN) or diverged (inf) does not take part.
        n: parameter sets at most.

    Returns:
        Their numbers, ascending.
    """
    means = losses.mean(axis=1)
    order = np.argsort(means, kind="stable")
    return sorted(int(number) for number in order[np.isfinite(means[order])][:n])


def best_set(losses: np.ndarray) -> int | None:
    """The parameter set of the lowest mean loss, see `leading`; None when there is none."""
    return next(iter(leading(losses, 1)), None)
