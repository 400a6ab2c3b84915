"""The search that a sweep is, whatever runs its trials."""

from __future__ import annotations

from typing import Any

from mpitune.optimize.search import search
from mpitune.optimize.search_study import SearchStudy
from mpitune.options import RunOptions
from mpitune.storage.trials import TrialRecord
from mpitune.sweeps.reading import Own, Read
from mpitune.trial import COMPLETE


def searched(read: Read, objective: Any, n_trials: int | None, own: Own, options: RunOptions) -> SearchStudy:
    """The study of what `read` says, with these keys of our own. Raises what `search` does."""
    sweep, space, _, strategy = read
    metric = sweep.metric
    sign, target = -1 if metric.goal == "maximize" else 1, metric.target

    def reached(study: SearchStudy, trial: TrialRecord) -> bool:
        return target is not None and trial.state == COMPLETE and sign * trial.values[metric.name] <= sign * target

    return search(
        objective, space, strategy=strategy, n_trials=n_trials,
        minimize=metric.name if sign > 0 else (), maximize=metric.name if sign < 0 else (),
        seed=own.seed, window=own.window, timeout=own.timeout, trial_timeout=own.trial_timeout,
        devices=own.devices, nodes=own.nodes, callbacks=[] if target is None else [reached], options=options,
    )  # fmt: skip
