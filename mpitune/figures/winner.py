"""What the best of several candidates is worth, from their scores on the same folds.

The choice prefers candidates that these samples flatter. The *corrected* score chooses on folds that are drawn with
replacement, and scores on those that were left out, over all draws or 1,000 of them: so no sample helps to choose what
it scores. It is the idea of I. Tsamardinos, E. Greasidou, G. Borboudakis (BBC-CV, Machine Learning 107, 2018) for folds
in place of samples, so scores alone are enough; R. J. Tibshirani, R. Tibshirani (Annals of Applied Statistics 3, 2009)
were the first to correct by folds. What a draw has chosen is compared with the winner on the same folds, so it does not
count which folds are hard. The gain over the default is corrected alike: else it would be called more than chance in a
fifth of searches where nothing can be learnt.

Intervals have the variance of C. Nadeau, Y. Bengio (Machine Learning 52, 2003), as that over folds is too small:
S. Bates, T. Hastie, R. Tibshirani (Journal of the American Statistical Association, 2023) say by how much. Repeats have
their samples in common, so they add no test samples: R. R. Bouckaert, E. Frank (PAKDD 2004).

Two scores are too low by their folds, so nothing is corrected: windows of a series train on a part of the samples, and
r2 divides by the variance of its fold.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from mpitune.errors import UsageError
from mpitune.figures.statistics import LEVEL, Interval
from mpitune.trial import COMPLETE

EXACT = 7  # folds up to which all draws are made
DRAWS = 1000
DRAWS_AT_ONCE = 10**6  # numbers
Params = Sequence[Mapping[str, Any]]
OVERLAP = "the splits have test samples in common: the correction is too small"
LEFT = "not corrected for the {} that the race left, so what is corrected is rather too good"
FEWER = "these are the candidates of the last iteration: that others left earlier is not corrected"
WINDOWS = "its score is not corrected, as windows train on a part of the samples, which makes scores rather too low"
OF_FOLDS = "its score is not corrected, as {} divides by the variance of its fold, which makes it too low"
TO_VARIANCE = "r2", "explained_variance", "d2_"  # scores that divide by what a fold has of variance
SHARES = (
    *("accuracy", "balanced_accuracy", "top_k", "f1", "precision", "recall", "jaccard", "roc_auc", "auc", "rand_score"),
    *("average_precision", "homogeneity", "completeness", "v_measure", "fowlkes_mallows", "normalized_mutual"),
    "fbeta",
)
OF_CHANCE = "matthews", "cohen_kappa", "adjusted_rand", "adjusted_mutual"  # 0 is chance, less is worse
BOUNDS: dict[tuple[str, ...], tuple[float, float]] = {  # by how the name of a score begins
    **{SHARES: (0.0, 1.0), OF_CHANCE: (-1.0, 1.0), TO_VARIANCE: (-math.inf, 1.0), ("neg_",): (-math.inf, 0.0)},
    **{("error",): (0.0, math.inf), ("",): (-math.inf, math.inf)},
}


class Winner:
    """The best of several candidates.

    Args:
        scores: float (n_candidates, n_folds); a candidate with a score that is not finite is left out.
        params: of each candidate; the default, which is the estimator as it is, has none.
        maximize: whether more is better.
        repeats: of the cross-validation; folds of one come one after the other.
        ratio: samples of a fold by those of its training where splits are not all of a cross-validation.
        kind: of such splits: "windows" of a series, "parts" that have no test sample in common, else "".
        name: of the score, as scikit-learn's "accuracy" or "r2". Intervals end at its bounds, see `BOUNDS`.
        level: of the intervals, and of the test of who is as good.
        taken: the candidate that was taken as the best, where others may be equal; None for the first of them.
        left: candidates that a race has left, whose scores are not all known.
        halving: whether others left in earlier iterations.
        careful: names to sort those that are as good by, as of `careful.simplest`; none to take the default if it will
            do; None to take the winner.

    Attributes:
        candidate: its number, the first of those with the best mean.
        score: its mean, which the choice has made better than it is.
        corrected: the mean that its choice is worth, never better than `score`; None where there is one fold. It is
            `score` where `not_corrected` says why.
        interval: about `corrected`; None where folds are fewer than three.
        as_good: numbers of the candidates that a paired test over the folds does not find worse, the best first.
        default_candidate, default: the number of the default and its mean; None where it is no candidate.
        gain, gain_interval: by how much the winner is better than the default, corrected for the choice.
        default_will_do: whether no gain is left by that.
        n_candidates: of how many it is the best.
        refitted: the number of the candidate that is taken in the end.
        not_corrected: why the bias is of the folds; "" where it is of the choice.
        notes: lines that the text has besides.

    Raises:
        UsageError: no candidate has all its scores, or the level or the ratio is none.
    """

    default: float | None = None
    corrected: float | None = None
    gain: float | None = None
    gain_interval: Interval | None = None
    default_will_do, not_corrected = False, ""

    def __init__(
        self,
        scores: np.ndarray,
        params: Params,
        maximize: bool = True,
        repeats: int = 1,
        ratio: float | None = None,
        kind: str = "",
        name: str = "",
        level: float = LEVEL,
        taken: int | None = None,
        left: int = 0,
        halving: bool = False,
        careful: Sequence[str] | None = None,
    ) -> None:
        whole, sign = np.flatnonzero(np.isfinite(scores).all(axis=1)), 1 if maximize else -1
        if not len(whole):
            raise UsageError("no candidate has a finite score on every fold")
        if not _between(level, 0, 1):
            raise UsageError(f"level={level!r}: give one between 0 and 1")
        if ratio is not None and not _between(ratio, 0, math.inf):
            raise UsageError(f"ratio={ratio!r}: give a number above 0")
        table = np.ascontiguousarray(sign * scores[whole])  # so means are scikit-learn's to the last digit
        means, k = table.mean(axis=1), table.shape[1]
        best = int(means.argmax() if taken is None else np.flatnonzero(whole == taken)[0])
        good, losses = means == means[best], table[best] - table
        self.scores, self.params, self.n_folds, self.name, self.level = scores, params, k, name, level
        self.notes = [OVERLAP] * (ratio is not None and not kind and k > 1)
        self.notes += [LEFT.format(left)] * (left > 0) + [FEWER] * halving
        self._ratio = 1 / max(1, k // repeats - 1) if ratio is None else ratio
        low, high = next(ends for begins, ends in BOUNDS.items() if name.lower().startswith(begins))
        beyond = not (low <= scores[whole].min() and scores[whole].max() <= high)  # so it is another score
        self._bounds = BOUNDS["",] if beyond else (low, high)
        self.n_candidates, self._n_whole, self._n_tied = len(params), len(whole), int(good.sum()) - 1
        self.candidate, self.score = int(whole[best]), float(sign * means[best])
        self._digits = ".4g" if 0 < np.abs(table[best]).max() < 0.1 else ".4f"
        flattery = 0.0
        if k > 1:
            parts = np.split(table, repeats if repeats < k else 1, axis=1)
            flattery = max(0.0, float(np.mean([flattered(part, best) for part in parts])))
            by_folds = OF_FOLDS.format(name) if flattery and name.lower().startswith(TO_VARIANCE) else ""
            self.not_corrected = WINDOWS if kind == "windows" else by_folds
            self.corrected = self.score - sign * (0.0 if self.not_corrected else flattery)
            good |= losses.mean(axis=1) <= self._reach(losses, level)
        self.interval = self.about(self.corrected, table[best])
        order = sorted(np.flatnonzero(good), key=lambda n: (n != best, -means[n], n))
        self.as_good = [int(whole[n]) for n in order]
        self.default_candidate = next((number for number in whole.tolist() if not params[number]), None)
        if self.default_candidate is not None:
            default = int(np.flatnonzero(whole == self.default_candidate)[0])
            self._compare(table[[n for n in order if n != default or n == best]] - table[default], flattery)
        self.refitted = self.candidate
        if careful:
            self.refitted = min(self.as_good, key=lambda n: [_rank(params[n], name) for name in careful])
        elif careful is not None and self.default_candidate is not None and self.default_will_do:
            self.refitted = self.default_candidate

    def _compare(self, gains: np.ndarray, flattery: float) -> None:
        """With the default, by the gain on each fold of all that are as good, (n, k), the winner first.

        The choice prefers a gain that is the same on all folds, too. So its variance is at least the median of these.
        """
        self.default = float(self.scores[self.default_candidate].mean())
        if self.n_folds > 1:
            self.gain = gain = float(gains[0].mean()) - flattery if gains[0].any() else 0.0
            self.default_will_do = gain <= 1e-12 * abs(self.score)  # but for rounding
            if self.n_folds > 2:
                halves = self._reach(gains, (1 + self.level) / 2)
                half = float(max(halves[0], np.median(halves)))
                self.gain_interval = Interval(gain - half, gain + half)

    def about(self, middle: float | None, values: np.ndarray) -> Interval | None:
        """The interval about it by these values of the score on each fold; None where folds are fewer than three."""
        if self.n_folds < 3 or middle is None:
            return None
        half = float(self._reach(values, (1 + self.level) / 2))
        return Interval(*(float(end) for end in np.clip((middle - half, middle + half), *self._bounds)))

    def _reach(self, values: np.ndarray, level: float) -> np.ndarray:
        """Student's quantile of a mean over folds, which are the last axis, with the corrected variance."""
        from scipy.special import stdtrit  # alone, as `scipy.stats` takes half a second more

        k = self.n_folds
        return np.asarray(stdtrit(k - 1, level) * np.sqrt((1 / k + self._ratio) * values.var(axis=-1, ddof=1)))

    def __str__(self) -> str:
        n, tied, d = self.n_candidates, self._n_tied, self._digits
        by, left_out = f" by {self.name}" * bool(self.name), f", {n - self._n_whole} left out" * (n > self._n_whole)
        lines = [f"best of {n}{by}{left_out}: {self._plain(self.candidate)}: {self.score:{d}}; {self.correction}"]
        same = f"; {tied} {'has' if tied == 1 else 'have'} the same score, the first was taken" * (tied > 0)
        if self.n_folds > 1:
            of = n if n == self._n_whole else f"the {self._n_whole} with all scores"
            lines.append(f"as good on these {self.n_folds} folds: {len(self.as_good)} of {of}{same}")
        if self.default is not None:
            lines.append(f"the default: {self.default:{d}}; {self._verdict(self.default)}")
        lines += [*filter(None, [self.not_corrected]), *self.notes]
        if (mean := self.scores[self.refitted].mean()) != self.scores[self.candidate].mean():
            lines.append(f"refitted is candidate {self.refitted}: {self._plain(self.refitted)}: {mean:{d}}")
        return "\n".join(lines)

    __repr__ = __str__  # what a notebook shows

    def _plain(self, number: int) -> dict[str, Any]:
        return {k: v.item() if isinstance(v, np.generic) else v for k, v in self.params[number].items()}

    @property
    def correction(self) -> str:
        """What its score is worth, in words."""
        if self.corrected is None:
            return "one fold says nothing of the choice"
        d = self._digits
        text = "not corrected" if self.not_corrected else f"corrected for the choice {self.corrected:{d}}"
        if self._n_whole == 1:
            text = "no choice to correct for" if self.n_candidates == 1 else "no other has all folds to correct it by"
        if (ends := self.interval) is None:
            return f"{text} (two folds: roughly, and without an interval)"
        return f"{text} ({100 * self.level:g} %: {ends.low:{d}} to {ends.high:{d}})"

    def _verdict(self, default: float) -> str:
        if self.default_candidate == self.candidate:
            return "it is the winner"
        if math.isclose(default, self.score, rel_tol=1e-12):
            return "it has the same score"
        d = self._digits
        text, ends = f"the winner is better by {abs(self.score - default):+{d}}", self.gain_interval
        if ends is None or self.gain is None:
            return f"{text}: folds are too few to say if by chance"
        text += f", corrected for the choice {self.gain:+{d}} +- {(ends.high - ends.low) / 2:{d}}"
        chance = "that is more than chance" if ends.low > 0 else "not shown to be more than chance"
        return f"{text}: {chance}"


def _between(value: Any, low: float, high: float) -> bool:
    return isinstance(value, numbers.Real) and low < float(value) < high


def _rank(params: Mapping[str, Any], order: str) -> tuple[int, float]:
    """A number, None, no value, in this order."""
    value = params.get(name := order.removeprefix("-"))
    if not isinstance(value, numbers.Real):
        return 1 + (name not in params), 0.0
    return 0, float(value) if name == order else -float(value)


def best_of(trials: Iterable[Any], losses: Callable[[Any], Any]) -> Any:
    """The best of a study, wherever it is shown: of the complete trials, the first of those of the lowest losses."""
    complete = (trial for trial in trials if trial.state == COMPLETE)
    return min(complete, key=lambda trial: (losses(trial), trial.number), default=None)


def front_of(trials: Iterable[Any], goals: Mapping[str, bool]) -> list[Any]:
    """The complete trials that no other is better than in one goal, True for maximized, and as good as in all.

    They are sorted by the first goal, the best first.
    """
    signs, front = {name: -1 if up else 1 for name, up in goals.items()}, list[tuple[tuple[float, ...], Any]]()
    valued = (trial for trial in trials if trial.state == COMPLETE and goals.keys() <= trial.values.keys())
    losses = ((tuple(sign * trial.values[name] for name, sign in signs.items()), trial) for trial in valued)
    for own, trial in sorted(losses, key=lambda pair: (pair[0], pair[1].number)):  # who is better comes earlier
        if all(own == other or any(map(operator.lt, own, other)) for other, _ in front):
            front.append((own, trial))
    return [trial for _, trial in front]


def least(losses: np.ndarray) -> int | None:
    """The first of the least mean of (n, folds) losses, by 12 decimals as the last bits are chance; None for none."""
    means = losses.mean(axis=1)
    means = np.where(np.isfinite(means), np.round(means, 12), np.inf)
    return int(means.argmin()) if np.isfinite(means).any() else None


def mean_of(folds: Sequence[float]) -> float:
    """The mean that `Winner` and scikit-learn compare by, to the last digit: a sum in order may have another one."""
    with np.errstate(invalid="ignore"):
        return float(np.mean(np.array(folds, np.float64)))


def winner_among(
    folds: Sequence[Sequence[float]], params: Params, maximize: bool, repeats: int = 1, *, taken: int, **how: Any
) -> Winner | None:
    """By the values of each on its folds, none of what cannot win; None of one candidate or one fold.

    For the rest see `Winner`.
    """
    k = max(map(len, folds), default=0)
    scores = np.array([values if len(values) == k else [math.nan] * k for values in folds])
    left = sum(0 < len(values) < k for values in folds)
    if k < 2 or len(folds) < 2 or not np.isfinite(scores[taken]).all():
        return None
    repeats = repeats if k % repeats == 0 < k - repeats else 1
    return Winner(scores, params, maximize, repeats, taken=taken, left=left, **how)


def flattered(scores: np.ndarray, winner: int) -> float:
    """How much better the winner is than what is chosen on folds drawn with replacement: the mean on those left out.

    Args:
        scores: float (n_candidates, n_folds), of which more is better, at least two folds.
        winner: its number.
    """
    drawn, weights = draws(scores.shape[1])
    size = max(1, DRAWS_AT_ONCE // len(scores))
    gaps = []
    for some in np.split(drawn, range(size, len(drawn), size)):
        sums, left = scores @ some.T, some == 0
        size = (np.abs(scores) @ some.T)[sums.argmax(axis=0), np.arange(len(some))]
        near = sums.max(axis=0) - 1e-12 * size  # those that differ from the best by rounding are equal to it
        best = (sums >= near).argmax(axis=0)
        gaps.append(((scores[winner] - scores[best]) * left).sum(axis=1) / left.sum(axis=1))
    return float(weights @ np.concatenate(gaps))


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
