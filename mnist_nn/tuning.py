"""Which parameter sets a bootstrap sample tries, and their cross-validation.

Random ones depend on the sample and the number of the set alone. Optuna's TPE proposes sets by the losses of earlier
ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpitune.optimize.spaces import Float, Int, Space
from mpitune.optimize.strategies import strategy_of
from mpitune.optimize.strategies.base import Feedback, Problem, TrialScheduler
from mpitune.trial import Batch, Parameter, Result, seed_of

HYPERPARAMETERS = ("n_conv_layer", "kernel_size", "n_hidden_layer", "learning_rate", "momentum")
STRATEGIES = ("random", "tpe")
ROUND = 8  # sets that TPE proposes at a time; with all their folds, and those of other samples, that keeps devices busy
Batches = Callable[[int], list[Batch]]  # from the number of a set, one for each fold
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
        """HYPERPARAMETERS of a set of this sample; of TPE, it must have been proposed."""
        if self._strategy == "tpe":
            return self._proposed[sample, number]
        random = np.random.default_rng(seed_of(self._seed, f"{sample}/t{number}"))
        drawn: dict[str, Parameter] = {}
        for name, (low, high) in self._ranges._asdict().items():
            if isinstance(low, int):
                drawn[name] = int(random.integers(low, high, endpoint=True))
            else:
                drawn[name] = float(10 ** random.uniform(math.log10(low), math.log10(high)))
        return drawn

    def proposed(self, sample: str, folds: int, batches: Batches) -> Losses:
        """The cross-validation of sets that TPE proposes."""
        scheduler, space = tpe(self._seed, sample, self._n, self._ranges)
        losses = np.full((self._n, folds), np.nan)
        while segments := scheduler.ask(ROUND):
            self._proposed.update({(sample, segment.number): space.given(segment.point) for segment in segments})
            results = yield [batch for segment in segments for batch in batches(segment.number)]
            of_sets = np.reshape([result.value("loss") for result in results], (-1, folds))
            for segment, of_set in zip(segments, of_sets, strict=True):
                losses[segment.number], loss = of_set, float(of_set.mean())
                scheduler.tell(segment, Feedback(None if np.isnan(loss) else (loss,)))
        return losses


def tpe(seed: int, sample: str, n: int, ranges: Ranges) -> tuple[TrialScheduler, Space]:
    """What proposes n sets for a sample, and their space. Raises UsageError where Optuna is missing."""
    space = Space({name: _between(low, high) for name, (low, high) in ranges._asdict().items()})
    own_seed = int(seed_of(seed, sample).generate_state(1)[0])
    (scheduler,) = strategy_of("tpe").begin(Problem(space, {"loss": False}, own_seed, n, round_size=ROUND))
    return scheduler, space


def _between(low: Any, high: Any) -> Any:
    if low == high:
        return low
    return Int(low, high) if isinstance(low, int) else Float(low, high, log=True)


def all_folds(n: int, folds: int, batches: Batches) -> Losses:
    """Every fold of every one of n sets, in one round."""
    results = yield [batch for tuning in range(n) for batch in batches(tuning)]
    return np.array([result.value("loss") for result in results]).reshape(n, folds)


def best_set(losses: np.ndarray) -> int | None:
    """The parameter set of the lowest mean of (n_sets, folds) losses, the first of equal ones; None for none."""
    means = losses.mean(axis=1)
    finite = np.flatnonzero(np.isfinite(means))
    return int(finite[np.argmin(means[finite])]) if len(finite) else None
