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
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from mpitune.errors import UsageError
from mpitune.figures.statistics import Interval

EXACT = 7  # folds up to which all draws are made
DRAWS = 1000
AT_ONCE = 10**6  # numbers
Params = Sequence[Mapping[str, Any]]
NO_CROSS_VALIDATION = (
    "the splits are not all of a cross-validation: where they have test samples in common, the correction is too small"
)


class Winner:
    """The best of several candidates.

    Args:
        scores: float (n_candidates, n_folds); a candidate with a score that is not finite is left out.
        params: of each candidate; the default, which is the estimator as it is, has none.
        maximize: whether more is better.
        repeats: of the cross-validation; folds of one come one after the other.
        ratio: samples of a fold by those of its training where splits are not all of a cross-validation.
        taken: the candidate that was taken as the best, where others may be equal; None for the first of them.

    Attributes:
        candidate: its number, the first of those with the best mean.
        score: its mean, which is too good.
        corrected: the mean that its choice is worth, `score` at most; None where there is one fold.
        interval: of 95 % about `corrected`; None where folds are fewer than three.
        as_good: numbers of the candidates that a paired test over the folds does not find worse, the best first.
        default_candidate, default: the number of the default and its mean; None where it is no candidate.
        gain, gain_interval: by how much the winner is better than the default, not corrected for the choice.
        default_will_do: whether the default's score reaches the corrected one.
        notes: lines that the text has besides.

    Raises:
        UsageError: no candidate has all its scores.
    """

    default: float | None = None
    gain: float | None = None
    gain_interval: Interval | None = None
    default_will_do = False

    def __init__(
        self,
        scores: np.ndarray,
        params: Params,
        maximize: bool = True,
        repeats: int = 1,
        ratio: float | None = None,
        taken: int | None = None,
    ) -> None:
        whole, sign = np.flatnonzero(np.isfinite(scores).all(axis=1)), 1 if maximize else -1
        if not len(whole):
            raise UsageError("no candidate has a finite score on every fold")
        table = np.ascontiguousarray(sign * scores[whole])  # so means are scikit-learn's to the last digit
        means, k = table.mean(axis=1), table.shape[1]
        best = int(means.argmax() if taken is None else np.flatnonzero(whole == taken)[0])
        good = means == means[best]
        self.scores, self.params, self.n_folds = scores, params, k
        self.notes = [] if ratio is None else [NO_CROSS_VALIDATION]
        self._ratio = 1 / max(1, k // repeats - 1) if ratio is None else ratio
        self._n_whole, self._n_tied = len(whole), int(good.sum()) - 1
        self.candidate, self.score = int(whole[best]), float(sign * means[best])
        self.corrected: float | None = None
        if k > 1:
            parts = np.split(table, repeats if repeats < k else 1, axis=1)
            again = np.mean([chosen_again(part) for part in parts]) if len(table) > 1 else means[best]
            self.corrected = float(sign * min(means[best], again))
            good |= self._as_good(table[best] - table)
        self.interval = self._interval(self.corrected, table[best])
        order = sorted(np.flatnonzero(good), key=lambda n: (n != best, -means[n], n))
        self.as_good = [int(whole[n]) for n in order]
        self.default_candidate = next((number for number in whole.tolist() if not params[number]), None)
        if self.default_candidate is not None:
            gains = table[best] - table[whole == self.default_candidate][0]
            self.default, self.gain = float(scores[self.default_candidate].mean()), float(gains.mean())
            self.gain_interval = self._interval(self.gain, gains)
            self.default_will_do = self.corrected is not None and sign * (self.default - self.corrected) >= 0

    def half_of(self, values: np.ndarray) -> float | None:
        """Half of the 95 % interval of their mean; None where folds are fewer than three."""
        return None if self.n_folds < 3 else float(self._reach(values, 0.975))

    def _as_good(self, losses: np.ndarray) -> np.ndarray:
        """Which candidates a one-sided paired t-test does not find worse, by what each loses on each fold, (n, k)."""
        return np.asarray(losses.mean(axis=1) <= self._reach(losses, 0.95))

    def _reach(self, values: np.ndarray, level: float) -> np.ndarray:
        """Student's quantile of a mean over folds, which are the last axis, with the corrected variance."""
        from scipy.special import stdtrit  # alone, as `scipy.stats` takes half a second more

        k = self.n_folds
        return np.asarray(stdtrit(k - 1, level) * np.sqrt((1 / k + self._ratio) * values.var(axis=-1, ddof=1)))

    def _interval(self, middle: float | None, values: np.ndarray) -> Interval | None:
        half = self.half_of(values)
        return None if half is None or middle is None else Interval(middle - half, middle + half)

    def __str__(self) -> str:
        n, tied = len(self.params), self._n_tied
        left_out = f", {n - self._n_whole} left out" * (n > self._n_whole)
        chosen = {k: v.item() if isinstance(v, np.generic) else v for k, v in self.params[self.candidate].items()}
        lines = [f"best of {n}{left_out}: {chosen}: {self.score:.4f}; {self.correction}"]
        same = f"; {tied} {'has' if tied == 1 else 'have'} the same score, the first was taken" * (tied > 0)
        if self.n_folds > 1:
            lines.append(f"as good on these {self.n_folds} folds: {len(self.as_good)} of {n}{same}")
        if self.default is not None:
            lines.append(f"the default: {self.default:.4f}; {self._verdict}")
        return "\n".join(lines + self.notes)

    __repr__ = __str__  # what a notebook shows

    @property
    def correction(self) -> str:
        """What its score is worth, in words."""
        if self.corrected is None:
            return "one fold says nothing of the choice"
        text = f"corrected for the choice {self.corrected:.4f}"
        if self._n_whole == 1:
            text = "no choice to correct for" if len(self.params) == 1 else "no other has all folds to correct it by"
        if (ends := self.interval) is None:
            return f"{text} (two folds: roughly, and without an interval)"
        return f"{text} (95 %: {ends.low:.4f} to {ends.high:.4f})"

    @property
    def _verdict(self) -> str:
        if self.default_candidate == self.candidate:
            return "it is the winner"
        text, ends = f"the winner is better by {self.gain:+.4f}", self.gain_interval
        if ends is None:
            return f"{text}: folds are too few to say if by chance"
        chance = "no more than" if self.default_will_do else "more than" if ends.low > 0 else "within"
        return f"{text} +- {(ends.high - ends.low) / 2:.4f}: that is {chance} chance"


def mean_of(folds: Sequence[float]) -> float:
    """The mean that `Winner` and scikit-learn compare by, to the last digit: a sum in order may have another one."""
    with np.errstate(invalid="ignore"):
        return float(np.mean(np.array(folds, np.float64)))


def winner_among(
    folds: Sequence[Sequence[float]], params: Params, maximize: bool, repeats: int = 1, *, taken: int, **how: Any
) -> Winner | None:
    """By the values of each on its folds, none of what is incomplete; None of one candidate or one fold.

    For the rest see `Winner`.
    """
    k = max(map(len, folds), default=0)
    scores = np.array([values if len(values) == k else [math.nan] * k for values in folds])
    if k < 2 or len(folds) < 2 or not np.isfinite(scores[taken]).all():
        return None
    return Winner(scores, params, maximize, repeats if k % repeats == 0 < k - repeats else 1, taken=taken, **how)


def chosen_again(scores: np.ndarray) -> float:
    """The mean score, on folds left out, of what is chosen on folds drawn with replacement.

    Args:
        scores: float (n_candidates, n_folds), of which more is better, at least two folds.
    """
    drawn, weights = draws(scores.shape[1])
    size = max(1, AT_ONCE // len(scores))
    found = []
    for some in np.split(drawn, range(size, len(drawn), size)):
        sums, left = scores @ some.T, some == 0
        size = (np.abs(scores) @ some.T)[sums.argmax(axis=0), np.arange(len(some))]
        near = sums.max(axis=0) - 1e-12 * size  # those that differ from the best by rounding are equal to it
        best = (sums >= near).argmax(axis=0)
        found.append((scores[best] * left).sum(axis=1) / left.sum(axis=1))
    return float(weights @ np.concatenate(found))


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
