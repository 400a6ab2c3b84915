"""What the best of several candidates is worth, from their scores on the same folds.

The best score is too high, as it is the best: the choice prefers candidates that these samples flatter. The *corrected*
score chooses on folds that are drawn with replacement, and scores on those that were left out, over all draws or 1,000
of them: so no sample helps to choose what it scores. It is the idea of I. Tsamardinos, E. Greasidou, G. Borboudakis
(BBC-CV, Machine Learning 107, 2018) for folds in place of samples, so scores alone are enough; R. J. Tibshirani,
R. Tibshirani (Annals of Applied Statistics 3, 2009) were the first to correct by folds.

Its interval has the variance of C. Nadeau, Y. Bengio (Machine Learning 52, 2003), as that over folds is too small:
S. Bates, T. Hastie, R. Tibshirani (Journal of the American Statistical Association, 2023) say by how much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from mpitune.figures.statistics import Interval, as_good, standard_error

EXACT = 7  # folds up to which all draws are made
DRAWS = 1000
AT_ONCE = 10**6  # numbers


@dataclass(frozen=True)
class Winner:
    """The best of several candidates.

    Args:
        scores: float (n_candidates, n_folds); a candidate with a score that is not finite is left out.
        params: of each candidate; the default has none.
        maximize: whether more is better.
        repeats: of the cross-validation; folds of one come one after the other.
        ratio: samples of a fold by those of its training, 1 / (folds of a repeat - 1) if None.
        note: what the text says besides.

    Raises:
        ValueError: no candidate has all its scores.
    """

    scores: np.ndarray
    params: Sequence[Mapping[str, Any]]
    maximize: bool = True
    repeats: int = 1
    ratio: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if not len(self._whole):
            raise ValueError("no candidate has a finite score on every fold")

    @cached_property
    def _whole(self) -> np.ndarray:
        """Numbers of the candidates with all scores."""
        return np.flatnonzero(np.isfinite(self.scores).all(axis=1))

    @cached_property
    def _table(self) -> np.ndarray:
        """Their scores, of which more is better."""
        table = np.asarray(self.scores, float)[self._whole]
        return table if self.maximize else -table

    @cached_property
    def _best(self) -> int:
        return int(first_best(self._table.mean(axis=1)[:, None])[0])

    @property
    def n_folds(self) -> int:
        return int(self._table.shape[1])

    def half_of(self, values: np.ndarray) -> float | None:
        """Half of the 95 % interval of their mean; None where folds are fewer than three."""
        from scipy.special import stdtrit

        k = self.n_folds
        return None if k < 3 else float(stdtrit(k - 1, 0.975) * standard_error(values, self._ratio))

    @property
    def _ratio(self) -> float:
        return 1 / max(1, self.n_folds // self.repeats - 1) if self.ratio is None else self.ratio

    def _said(self, value: float) -> float:
        return value if self.maximize else -value

    @property
    def candidate(self) -> int:
        """Its number."""
        return int(self._whole[self._best])

    @property
    def score(self) -> float:
        """Its mean score, which is too good."""
        return self._said(float(self._table[self._best].mean()))

    @cached_property
    def corrected(self) -> float | None:
        """The mean score that its choice is worth, `score` at most; None where there is one fold."""
        best = float(self._table[self._best].mean())
        if len(self._table) == 1 or self.n_folds < 2:
            return self._said(best) if self.n_folds > 1 else None
        parts = np.split(self._table, self.repeats if self.repeats < self.n_folds else 1, axis=1)
        return self._said(min(best, float(np.mean([chosen_again(part) for part in parts]))))

    @property
    def interval(self) -> Interval | None:
        """The 95 % interval about the corrected score; None where folds are fewer than three."""
        half = self.half_of(self._table[self._best])
        return (
            None if half is None or self.corrected is None else Interval(self.corrected - half, self.corrected + half)
        )

    @cached_property
    def as_good(self) -> list[int]:
        """Numbers of the candidates that a paired test over the folds does not find worse, the best first."""
        means = self._table.mean(axis=1)
        good = means >= means[self._best]
        if self.n_folds > 1:
            good |= as_good(-self._table.T, self._best, "simplest", self._ratio)
        order = sorted(np.flatnonzero(good), key=lambda n: (n != self._best, -means[n], n))
        return [int(self._whole[n]) for n in order]

    @cached_property
    def default_candidate(self) -> int | None:
        """The number of the candidate without parameters, which is the estimator as it is."""
        return next((int(number) for number in self._whole if not self.params[number]), None)

    @cached_property
    def _gains(self) -> np.ndarray | None:
        """By how much the winner is better than the default on each fold."""
        if self.default_candidate is None:
            return None
        return np.asarray(self._table[self._best] - self._table[self._whole == self.default_candidate][0])

    @property
    def default(self) -> float | None:
        """The default's mean score."""
        return None if self.default_candidate is None else float(np.mean(self.scores[self.default_candidate]))

    @property
    def gain(self) -> float | None:
        """By how much the winner's score is better than the default's."""
        return None if self._gains is None else float(self._gains.mean())

    @property
    def gain_interval(self) -> Interval | None:
        """Its 95 % interval, without a correction for the choice."""
        if self._gains is None or (half := self.half_of(self._gains)) is None:
            return None
        return Interval(float(self._gains.mean()) - half, float(self._gains.mean()) + half)

    @property
    def default_will_do(self) -> bool:
        """Whether the default's score reaches the corrected one."""
        if self.default is None or self.corrected is None:
            return False
        return self._said(self.default) >= self._said(self.corrected)

    def __str__(self) -> str:
        n, whole = len(self.params), len(self._whole)
        some = f", {n - whole} left out" * (n > whole)
        lines = [f"best of {n}{some}: {dict(self.params[self.candidate])}: {self.score:.4f}" + self._correction()]
        tied = int((self._table.mean(axis=1) >= self._table[self._best].mean()).sum()) - 1
        same = f"; {tied} {'has' if tied == 1 else 'have'} the same score, the first was taken" * (tied > 0)
        lines.append(f"as good on these {self.n_folds} folds: {len(self.as_good)} of {n}{same}")
        if self.default is not None and self.gain is not None:
            lines.append(f"the default: {self.default:.4f}; {self._verdict(self.gain)}")
        return "\n".join([*lines, self.note] if self.note else lines)

    def _correction(self) -> str:
        if self.corrected is None:
            return "; one fold says nothing of the choice"
        text = "; no choice to correct for" if len(self._whole) == 1 else "; corrected for the choice "
        text += f"{self.corrected:.4f}" * (len(self._whole) > 1)
        if (ends := self.interval) is None:
            return f"{text} (two folds: roughly, and without an interval)"
        return f"{text} (95 %: {ends.low:.4f} to {ends.high:.4f})"

    def _verdict(self, gain: float) -> str:
        if self.default_candidate == self.candidate:
            return "it is the winner"
        text, ends = f"the winner is better by {gain:+.4f}", self.gain_interval
        if ends is None:
            return f"{text}: folds are too few to say if by chance"
        text += f" +- {(ends.high - ends.low) / 2:.4f}"
        if self.default_will_do:
            return f"{text}: that is no more than chance"
        return f"{text}: that is {'more than' if ends.low > 0 else 'within'} chance"


def chosen_again(scores: np.ndarray) -> float:
    """The mean score, on folds left out, of what is chosen on folds drawn with replacement.

    Args:
        scores: float (n_candidates, n_folds), of which more is better, at least two folds.
    """
    drawn, weights = draws(scores.shape[1])
    size = max(1, AT_ONCE // len(scores))
    found = np.empty(len(drawn))
    for begin in range(0, len(drawn), size):
        some = drawn[begin : begin + size]
        best = first_best(scores @ some.T)
        left = some == 0
        found[begin : begin + size] = (scores[best] * left).sum(axis=1) / left.sum(axis=1)
    return float(weights @ found)


def first_best(scores: np.ndarray) -> np.ndarray:
    """The first best row of each column; those that differ by rounding are equal, on any processor."""
    near = 1e-12 * np.abs(scores).max(axis=0)
    return np.asarray((scores >= scores.max(axis=0) - near).argmax(axis=0))


def draws(k: int) -> tuple[np.ndarray, np.ndarray]:
    """How often each of k folds is drawn, (n, k), and the weight of each draw: of those that leave a fold out."""
    if k <= EXACT:
        counts = np.array([np.bincount(one, minlength=k) for one in combinations_with_replacement(range(k), k)])
        weights = np.array([1 / math.prod(map(math.factorial, count)) for count in counts.tolist()])
    else:
        counts = np.random.default_rng(0).multinomial(k, np.full(k, 1 / k), DRAWS)
        weights = np.ones(DRAWS)
    some = (counts == 0).any(axis=1)
    return counts[some], weights[some] / weights[some].sum()
