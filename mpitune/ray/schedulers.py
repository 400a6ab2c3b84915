"""Schedulers of Ray, which decide by numbers: on rank 0, and in the worker that runs a stage of a trial.

One that stops trials decides there by what rank 0 knew as it asked for the stage: Ray's own, with what the results of
others amount to in place of them. One that pauses trials says beforehand after how much, and hears of that on rank 0.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from ray.tune import schedulers as of_ray
from ray.tune.experiment import Trial as RayTrial
from ray.tune.schedulers import TrialScheduler

from mpitune.errors import UsageError, named

SUPPORTED = (
    "FIFOScheduler", "AsyncHyperBandScheduler", "HyperBandScheduler", "MedianStoppingRule", "PopulationBasedTraining",
    "PB2",
)  # fmt: skip
TIMES = "time_total_s", "time_this_iter_s", "time_since_restore", "timestamp"


def require_possible(scheduler: TrialScheduler) -> None:
    """Raise UsageError for one that is not here, or decides by the clock."""
    name, attribute = type(scheduler).__name__, getattr(scheduler, "_time_attr", "")
    if name not in SUPPORTED:
        raise UsageError(f"scheduler {name} is not here: give one of {named(SUPPORTED)}")
    if attribute in TIMES:
        raise UsageError(
            f"{name}(time_attr={attribute!r}) decides by the clock, which differs from run to run: "
            'give time_attr="training_iteration"'
        )


class Decided:
    """A scheduler on rank 0 that hears what its copies in workers have decided: that counts."""

    def __init__(self, own: TrialScheduler):
        self._own, self.counts = own, TrialScheduler.CONTINUE

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def on_trial_result(self, controller: Any, trial: RayTrial, result: dict[str, Any]) -> str:
        """What counts, not what is known now."""
        self._own.on_trial_result(controller, trial, result)
        if self.counts != TrialScheduler.PAUSE and isinstance(self._own, of_ray.MedianStoppingRule):
            self._own._stopped_trials.discard(trial)  # else it takes no more results
        return self.counts


class _Medians(of_ray.MedianStoppingRule):
    """With the medians of others at each time, in place of their results."""

    def __init__(self, rule: of_ray.MedianStoppingRule, trial: RayTrial):
        how = {"time_attr": rule._time_attr, "metric": rule._metric, "mode": rule._mode, "hard_stop": rule._hard_stop}
        super().__init__(**how, grace_period=rule._grace_period, min_samples_required=1)
        times = {result[rule._time_attr] for results in rule._results.values() for result in results}
        self._medians: list[tuple[float, float]] = []
        for time in sorted(time for time in times if time >= rule._grace_period):
            means = [rule._running_mean(other, time) for other in rule._trials_beyond_time(time) if other is not trial]
            means = [mean for mean in means if np.isfinite(mean)]
            self._medians.append((time, np.median(means) if len(means) >= rule._min_samples_required else np.nan))

    def _trials_beyond_time(self, time: float) -> list[Any]:
        return [*self._results, None]  # itself, and what stands for the others

    def _running_mean(self, trial: Any, time: float) -> float:
        return next((median for known, median in reversed(self._medians) if known <= time), np.nan)

    def _on_insufficient_samples(self, *about: Any) -> str:
        return str(TrialScheduler.CONTINUE)


def in_worker(scheduler: TrialScheduler, trial: RayTrial) -> TrialScheduler | None:
    """A copy that decides whether a stage of this trial is stopped; None where it needs none."""
    if isinstance(scheduler, of_ray.AsyncHyperBandScheduler):
        bracket = copy.copy(scheduler._trial_info[trial.trial_id])

        def amounting(recorded: dict[str, float]) -> dict[str, float]:
            if trial.trial_id in recorded:  # it has failed later, and begins anew
                return {trial.trial_id: recorded[trial.trial_id]}
            return {"": bracket.cutoff(recorded)} if recorded else {}

        bracket._rungs = [(time, amounting(recorded)) for time, recorded in bracket._rungs]
        own = copy.copy(scheduler)
        own._brackets, own._trial_info = [bracket], {trial.trial_id: bracket}
        return own
    if isinstance(scheduler, of_ray.MedianStoppingRule) and trial not in scheduler._stopped_trials:
        return _Medians(scheduler, trial)
    return None


def limit(scheduler: TrialScheduler, trial: RayTrial) -> tuple[str, float] | None:
    """After how much of what it will pause a trial; None where it does not."""
    if isinstance(scheduler, of_ray.PopulationBasedTraining):
        last = scheduler._trial_state[trial].last_perturbation_time
        return scheduler._time_attr, max(last + scheduler._perturbation_interval, scheduler._burn_in_period)
    if isinstance(scheduler, of_ray.HyperBandScheduler):
        bracket = scheduler._trial_info[trial][0]
        return (scheduler._time_attr, bracket._cumul_r) if bracket._halves or bracket.stop_last_trials else None
    return None
