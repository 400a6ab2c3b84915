"""Which parameter sets a bootstrap sample tries, and their cross-validation.

Random ones depend on the sample and the number of the set alone. Points of a low-discrepancy sequence are known
beforehand, too. Others are proposed by the losses of those before: by Optuna's TPE, or by Hyperband, which trains most
sets for a few epochs only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from mnist_nn.keys import EPOCH_LIMIT
from mpitune.optimize.spaces import Float, Int, Space
from mpitune.optimize.strategies import strategy_of
from mpitune.optimize.strategies.base import Feedback, Problem, Strategy
from mpitune.optimize.strategies.halving import Hyperband
from mpitune.optimize.strategies.plain import Points
from mpitune.optimize.strategies.racing import Race
from mpitune.trial import Batch, Parameter, Result, seed_of

HYPERPARAMETERS = ("n_conv_layer", "kernel_size", "n_hidden_layer", "learning_rate", "momentum")
EVEN, ADAPTIVE = "sobol", ("tpe", "hyperband")
STRATEGIES = ("random", EVEN, *ADAPTIVE)
ROUND = 8  # sets that TPE proposes at a time; with all their folds, and those of other samples, that keeps devices busy
# (tuning, limit, folds) -> the batches of the set of this number on these folds, trained for so many epochs at most.
Batches = Callable[[int, int, np.ndarray], list[Batch]]
# Returns losses float64 (sets, folds): inf where a training diverged, NaN where it failed.
Losses = Generator[Sequence[Batch], list[Result], np.ndarray]


class Ranges(NamedTuple):
    """What HYPERPARAMETERS are drawn from, ends included: numbers evenly, rate and momentum by their logarithm."""

    n_conv_layer: tuple[int, int] = (1, 999)
    kernel_size: tuple[int, int] = (2, 10)
    n_hidden_layer: tuple[int, int] = (1, 1999)
    learning_rate: tuple[float, float] = (1e-5, 1e-1)
    momentum: tuple[float, float] = (1e-2, 1.0)


class ParameterSets:
    """The parameter sets of all bootstrap samples of a study, at most n of each."""

    def __init__(self, strategy: str, *, seed: int, n: int, ranges: Ranges) -> None:
        self._strategy, self._seed, self._n, self._ranges = strategy, seed, n, ranges
        self._proposed: dict[tuple[str, int], Mapping[str, Parameter]] = {}

    def params(self, sample: str, number: int) -> Mapping[str, Parameter]:
        """HYPERPARAMETERS of a set of this sample; of an adaptive strategy, it must have been proposed."""
        if self._strategy in ADAPTIVE:
            return self._proposed[sample, number]
        if self._strategy == EVEN:
            return _even(self._strategy, self._seed, sample, self._n, self._ranges)[number]
        random = np.random.default_rng(seed_of(self._seed, f"{sample}/t{number}"))
        drawn: dict[str, Parameter] = {}
        for name, (low, high) in self._ranges._asdict().items():
            if isinstance(low, int):
                drawn[name] = int(random.integers(low, high, endpoint=True))
            else:
                drawn[name] = float(10 ** random.uniform(math.log10(low), math.log10(high)))
        return drawn

    def proposed(self, sample: str, folds: int, epochs: int, batches: Batches) -> Losses:
        """The cross-validation of sets proposed by the losses of those before; NaN where one was stopped early."""
        problem = _problem(self._seed, sample, self._n, self._ranges)
        schedulers = chosen_strategy(self._strategy, epochs).begin(problem)
        shape = self._n, folds
        losses, ended, whole = np.full(shape, np.nan), np.zeros(shape, bool), np.zeros(self._n, bool)
        while asked := [(scheduler, segment) for scheduler in schedulers for segment in scheduler.ask(ROUND)]:
            round_ = []
            for _, segment in asked:
                self._proposed[sample, segment.number] = problem.space.given(segment.point)
                left = np.flatnonzero(~ended[segment.number])  # what has ended by itself is not trained again
                round_ += batches(segment.number, segment.until or epochs, left)
            results = (yield round_) if round_ else []
            for trial, result in zip((trial for batch in round_ for trial in batch), results, strict=True):
                at = int(trial.params["tuning"]), int(trial.params["fold"])
                limit = int(trial.params.get(EPOCH_LIMIT, epochs))
                losses[at], ended[at] = result.value("loss"), not result.value("epochs") >= limit
            for scheduler, segment in asked:
                loss = float(losses[segment.number].mean())
                whole[segment.number] |= segment.last
                scheduler.tell(segment, Feedback(None if np.isnan(loss) else (loss,), {segment.until or epochs: loss}))
        losses[~whole] = np.nan
        return losses


def chosen_strategy(strategy: str, epochs: int) -> Strategy:
    """The strategy that proposes sets; raises UsageError where Optuna is missing that it needs."""
    chosen = strategy_of(Hyperband(max_steps=epochs) if strategy == "hyperband" else strategy)
    chosen.begin(_problem(0, "", 1, Ranges()))
    return chosen


@lru_cache(maxsize=16)
def _even(strategy: str, seed: int, sample: str, n: int, ranges: Ranges) -> Sequence[Mapping[str, Parameter]]:
    """The first n sets of a bootstrap sample, of a low-discrepancy sequence."""
    problem = _problem(seed, sample, n, ranges)
    points = Points(strategy_of(strategy).draws(problem), problem)  # type: ignore[attr-defined]
    return [problem.space.given(point) for _, point in points.rest()]


def _problem(seed: int, sample: str, n: int, ranges: Ranges) -> Problem:
    space = Space({name: _between(low, high) for name, (low, high) in ranges._asdict().items()})
    own_seed = int(seed_of(seed, sample).generate_state(1)[0])
    return Problem(space, {"loss": False}, own_seed, n, window=ROUND, staged=True)


def _between(low: Any, high: Any) -> Any:
    if low == high:
        return low
    return Int(low, high) if isinstance(low, int) else Float(low, high, log=True)


def all_folds(shape: tuple[int, int], epochs: int, batches: Batches) -> Losses:
    """Every fold of every set, in one round."""
    folds = np.arange(shape[1])
    results = yield [batch for tuning in range(shape[0]) for batch in batches(tuning, epochs, folds)]
    return np.array([result.value("loss") for result in results]).reshape(shape)


def raced(shape: tuple[int, int], epochs: int, batches: Batches) -> Losses:
    """Fold after fold, without the sets that would hardly win; NaN where a training failed or was left out."""
    losses, race = np.full(shape, np.nan), Race(range(shape[0]), shape[1])
    while pairs := race.next_folds():
        folds: dict[int, list[int]] = {}
        for tuning, fold in pairs:
            folds.setdefault(tuning, []).append(fold)
        asked = [batch for tuning, those in folds.items() for batch in batches(tuning, epochs, np.array(those))]
        results = yield asked
        for trial, result in zip((trial for batch in asked for trial in batch), results, strict=True):
            tuning = int(trial.params["tuning"])
            losses[tuning, int(trial.params["fold"])] = result.value("loss")
            race.tell(tuning, None if result.failed else result.value("loss"))
    return losses


def best_set(losses: np.ndarray) -> int | None:
    """The parameter set of the lowest mean of (n_sets, folds) losses, the first of equal ones; None for none."""
    means = losses.mean(axis=1)
    finite = np.flatnonzero(np.isfinite(means))
    return int(finite[np.argmin(means[finite])]) if len(finite) else None
