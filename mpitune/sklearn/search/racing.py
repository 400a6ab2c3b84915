"""Folds raced by a paired test: a candidate is dropped when the folds that are left would hardly let it win.

All candidates are evaluated on the same folds, one fold after the other, so what makes a fold hard cancels in the
differences to the leader. After m of k folds the sum of the other k - m differences is predicted: with mean d and
standard deviation s of the m differences it lies around (k - m) d with standard deviation
s sqrt((k - m) + (k - m)^2 / m), a Student t if differences are normal. A candidate whose sum over all folds would then
fall below zero with probability p is dropped if the p of all that were dropped together stay below 1 - confidence. So
the winner should be that of all folds with at least that probability; docs/search.md says what was measured.

With two or three folds s says little by itself. It is moderated by those of the other candidates: G. K. Smyth, "Linear
models and empirical Bayes methods", Statistical Applications in Genetics and Molecular Biology 3, 2004. The differences
have the leader's folds in common, so C candidates give s at most (m - 1) (C - 1) / 2 degrees of freedom. The first test
is after 1 + k / 5 folds, and after 3 of 4 or 5. And folds come in an order that their number alone decides, since those
of sorted data differ. So the probability is one over data sets: where one fold decides, as the first one of a series
that trains on few samples, it may be that of 50 % or less for this data set, and its order is always the same.

Each look is a round in which slots wait for the last. Looks at 1, 2, 4 ... times the first number of folds are few.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping

import numpy as np


class Race:
    """Which candidates (by number) to evaluate on which folds; see `next_folds`.

    Args:
        together: a name for each candidate; those of one name are dropped together, and those of None never.
    """

    def __init__(
        self,
        candidates: Iterable[int],
        folds: int,
        *,
        confidence: float = 0.95,
        repeats: int = 1,
        together: Mapping[int, Hashable] | None = None,
    ):
        self._losses: dict[int, list[float]] = {number: [] for number in candidates}
        self._together = together or {}
        self._folds, self._first = folds, min(max(1 + math.ceil(folds / 5), min(3, folds - 1)), folds)
        rng, each = np.random.default_rng(folds), folds // repeats
        self.order = [int(each * n + fold) for n in rng.permutation(repeats) for fold in rng.permutation(each)]
        self._left = 1 - confidence  # the chance to lose the winner that may still be taken
        self._fold = 0

    def kept(self) -> set[int]:
        """The candidates that are not dropped."""
        return set(self._losses)

    def next_folds(self) -> list[tuple[int, int]]:
        """(candidate, fold) of all to evaluate next, once the results of those before are told; none at the end."""
        if self._fold == self._folds:
            return []
        if self._fold >= self._first:
            self._drop()
        to = min(max(self._first, 2 * self._fold), self._folds)
        pairs = [(number, fold) for fold in self.order[self._fold : to] for number in self._losses]
        self._fold = to
        return pairs

    def tell(self, candidate: int, loss: float | None) -> None:
        """The loss of a candidate on its next fold; None where that has failed, so that it cannot win."""
        if loss is None:
            self._losses.pop(candidate, None)
        elif candidate in self._losses:
            self._losses[candidate].append(loss)

    def _drop(self) -> None:
        """Drop those that lose with certainty enough, the surest first."""
        numbers = list(self._losses)
        if len(numbers) < 2:
            return
        chances = winning(np.array([self._losses[number] for number in numbers]), self._folds)
        groups: dict[Hashable, list[int]] = {}
        of: dict[Hashable, float] = {}
        for number, chance in zip(numbers, chances.tolist(), strict=True):
            name = self._together.get(number, number)
            groups.setdefault(name, []).append(number)
            of[name] = of.get(name, math.inf if name is None else 0.0) + chance
        for name in sorted(of, key=lambda name: (of[name], -groups[name][0])):  # the first of equal ones would win
            if of[name] > self._left:
                break
            self._left -= of[name]
            for number in groups[name]:
                del self._losses[number]


def winning(losses: np.ndarray, folds: int) -> np.ndarray:
    """The chance of each candidate to be better than the present leader once all folds are known: 1 for the leader.

    Losses are (candidates, m) of the m folds so far, 2 <= m < folds. A candidate that diverged has infinity, and 0.
    """
    from scipy import stats

    m, left = losses.shape[1], folds - losses.shape[1]
    means = losses.mean(axis=1)
    leader = int(np.argmin(means))
    finite = np.isfinite(means)
    chances = np.zeros(len(losses))
    chances[leader] = 1.0
    finite[leader] = False
    if not finite.any() or not np.isfinite(means[leader]):
        return chances if np.isfinite(means[leader]) else np.ones(len(losses))
    differences = losses[finite] - losses[leader]
    differences[np.abs(differences) <= 1e-12 * np.abs(losses[leader]).max()] = 0.0  # rounding makes nobody lose
    variances, degrees = moderated(differences.var(axis=1, ddof=1), m - 1)
    degrees = min(degrees, max(1.0, len(differences) / 2) * (m - 1))
    expected = differences.sum(axis=1) + left * differences.mean(axis=1)
    deviation = np.sqrt(variances * (left + left**2 / m))
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(deviation > 0, expected / deviation, np.where(expected > 0, np.inf, 0.0))
    chances[finite] = stats.t.sf(t, degrees)
    return chances


def moderated(variances: np.ndarray, degrees: int) -> tuple[np.ndarray, float]:
    """Sample variances, (n,), drawn towards their common prior, and the degrees of freedom that they then have.

    These are infinite where all are estimates of one.
    """
    from scipy.optimize import brentq
    from scipy.special import digamma, polygamma

    positive = variances[variances > 0]
    if len(positive) < 3:
        return variances, float(degrees)
    e = np.log(positive) - digamma(degrees / 2) + math.log(degrees / 2)
    excess = float(e.var(ddof=1) - polygamma(1, degrees / 2))
    if excess <= 0:
        return np.full_like(variances, math.exp(e.mean())), math.inf
    half = brentq(lambda x: float(polygamma(1, x)) - excess, 1e-6, 1e8) if excess > 1e-8 else 1e8
    prior, prior_degrees = math.exp(e.mean() + float(digamma(half)) - math.log(half)), 2 * half
    return (prior_degrees * prior + degrees * variances) / (prior_degrees + degrees), prior_degrees + degrees
