"""The cross-validation of one sample's parameter sets that are all known beforehand.

Each way asks for batches by `batches(tuning, limit, folds)`: those of the set with this number, trained for so many
epochs at most, on these folds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import numpy as np

from mnist_nn.halving import leading
from mpitune.optimize.strategies.racing import Race
from mpitune.trial import Batch, Result

Batches = Callable[[int, int, np.ndarray], list[Batch]]
Losses = Generator[Sequence[Batch], list[Result], np.ndarray]


def climbed(shape: tuple[int, int], ladder: Sequence[tuple[int, int]], batches: Batches) -> Losses:
    """Every fold of the sets of each rung, a round for each rung.

    A training that ended by itself on a lower rung is not repeated. Others begin again: keeping the weights of all
    trainings of a rung would take 8 bytes for each weight.

    Args:
        shape: (parameter sets, folds).
        ladder: (sets that take part, epochs they may train for) of each rung, see `rungs`.
        batches: see above.

    Returns:
        Losses float64 (sets, folds): inf where a training diverged, NaN where it failed or missed the last rung.
    """
    losses, ended = np.zeros(shape), np.zeros(shape, bool)
    for n_sets, limit in ladder:
        sets = leading(losses, n_sets)
        losses[np.delete(np.arange(shape[0]), sets)] = np.nan
        asked = [batch for tuning in sets for batch in batches(tuning, limit, np.flatnonzero(~ended[tuning]))]
        if not asked:
            continue
        results = yield asked
        for trial, result in zip((trial for batch in asked for trial in batch), results, strict=True):
            at = int(trial.params["tuning"]), int(trial.params["fold"])
            losses[at], ended[at] = result.value("loss"), not result.value("epochs") >= limit
    return losses


def raced(shape: tuple[int, int], epochs: int, batches: Batches) -> Losses:
    """Fold after fold, without the sets that would hardly win.

    Args:
        shape: (parameter sets, folds).
        epochs: of a whole training.
        batches: see above.

    Returns:
        Losses float64 (sets, folds): inf where a training diverged, NaN where it failed or was left out.
    """
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
