"""Which parameter sets a bootstrap sample tries, other than the random ones.

Points of a low-discrepancy sequence are known beforehand (`sets`). Others are proposed by the losses of those before
(`proposed`): by Optuna's TPE, or by Hyperband, which trains most sets for a few epochs only.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import lru_cache

import numpy as np

from common.spaces import Float, Int, Space
from common.strategies.base import Problem, Strategy, Told
from common.strategies.halving import Hyperband
from common.strategies.names import strategy_of
from common.strategies.whole import Points
from common.trial import Batch, Parameter, Result, seed_of
from mnist_nn.keys import EPOCH_LIMIT

EVEN, ADAPTIVE = ("sobol", "halton"), ("tpe", "hyperband")
STRATEGIES = ("random", *EVEN, *ADAPTIVE)
ROUND = 8  # sets that TPE proposes at a time; with all their folds, and those of other samples, that keeps devices busy
Most = tuple[int, int, int]  # the largest number of channels, side of the kernel, and number of hidden units


@lru_cache(maxsize=16)
def sets(strategy: str, seed: int, sample: str, n: int, most: Most) -> Sequence[Mapping[str, Parameter]]:
    """The first n parameter sets of a bootstrap sample.

    Args:
        strategy: "sobol" or "halton".
        seed: of the study.
        sample: name of the bootstrap sample.
        n: how many.
        most: largest values.
    """
    problem = _problem(seed, sample, n, most)
    points = Points(strategy_of(strategy).draws(problem), problem)  # type: ignore[attr-defined]
    return [problem.space.given(point) for _, point in points.rest()]


def chosen_strategy(strategy: str, epochs: int) -> Strategy:
    """The strategy that proposes sets; raises UsageError where Optuna is missing that it needs."""
    chosen = strategy_of(Hyperband(max_steps=epochs) if strategy == "hyperband" else strategy)
    chosen.begin(_problem(0, "", 1, (2, 3, 2)))
    return chosen


def proposed(
    strategy: Strategy,
    seed: int,
    sample: str,
    shape: tuple[int, int],
    most: Most,
    epochs: int,
    batches: Callable[[int, Mapping[str, Parameter], int, np.ndarray], list[Batch]],
) -> Generator[Sequence[Batch], list[Result], np.ndarray]:
    """The search of a sample whose sets are proposed by the losses of those before.

    Args:
        strategy: of `chosen_strategy`.
        seed: of the study.
        sample: name of the bootstrap sample.
        shape: (most sets, folds).
        most: largest values.
        epochs: of a whole training.
        batches: of a set with this number and these parameters, for so many epochs at most, of these folds.

    Returns:
        Losses float64 (sets, folds): inf where a training diverged, NaN where it failed or its set was stopped early.
    """
    problem = _problem(seed, sample, shape[0], most)
    proposers = strategy.begin(problem)
    losses, ended, whole = np.full(shape, np.nan), np.zeros(shape, bool), np.zeros(shape[0], bool)
    while asked := [(proposer, piece) for proposer in proposers for piece in proposer.ask(ROUND)]:
        round_ = [
            batch
            for _, piece in asked
            for batch in batches(
                piece.number, problem.space.given(piece.point), piece.until or epochs,
                np.flatnonzero(~ended[piece.number]),
            )
        ]  # fmt: skip
        results = (yield round_) if round_ else []  # what has ended by itself is not trained again
        for trial, result in zip((trial for batch in round_ for trial in batch), results, strict=True):
            at = int(trial.params["tuning"]), int(trial.params["fold"])
            limit = int(trial.params.get(EPOCH_LIMIT, epochs))
            losses[at], ended[at] = result.value("loss"), not result.value("epochs") >= limit
        for proposer, piece in asked:
            loss = float(losses[piece.number].mean())
            whole[piece.number] |= piece.last
            proposer.tell(piece, Told(None if np.isnan(loss) else (loss,), {piece.until or epochs: loss}))
    losses[~whole] = np.nan
    return losses


def _problem(seed: int, sample: str, n: int, most: Most) -> Problem:
    channels, kernel, hidden = most
    space = Space(
        {
            "n_conv_layer": _up_to(1, channels),
            "kernel_size": _up_to(2, kernel),
            "n_hidden_layer": _up_to(1, hidden),
            "learning_rate": Float(1e-5, 1e-1, log=True),
            "momentum": Float(1e-2, 1.0, log=True),
        }
    )
    own_seed = int(seed_of(seed, sample).generate_state(1)[0])
    return Problem(space, {"loss": False}, own_seed, n, batch=ROUND, staged=True)


def _up_to(low: int, high: int) -> Int | int:
    return Int(low, high) if low < high else low
