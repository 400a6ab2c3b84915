"""A stage of a trial of Ray Tune in a worker: Ray's own Trainable, until it ends, is stopped or paused."""

from __future__ import annotations

import logging
import math
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from ray.air._internal.util import skip_exceptions
from ray.train._internal import session
from ray.tune import result as of_ray
from ray.tune.experiment import Trial as RayTrial
from ray.tune.schedulers import TrialScheduler
from ray.tune.trainable import FunctionTrainable
from ray.tune.utils import flatten_dict

from mpitune.errors import own_traceback
from mpitune.experiment import Data
from mpitune.optimize.plain import changed, plain, reading, whole
from mpitune.processes.pickles import read_call
from mpitune.processes.process import can_be_sent, packed, packed_error
from mpitune.ray import core
from mpitune.storage.records import Count, checked
from mpitune.trial import FAILED, Batch, Ending, Evaluation, Trial

FINISHED, STOPPED, PAUSED, RAISED = "finished", "stopped", "paused", "raised"  # how a stage ends
# By Ray, to results:
ADDED_BY_RAY = {
    *of_ray.AUTO_RESULT_KEYS, *of_ray.DEBUG_METRICS, of_ray.DONE, of_ray.SHOULD_CHECKPOINT, "experiment_tag",
}  # fmt: skip
Reported = list[tuple[dict[str, Any], str | None]]  # results, each with the name of its checkpoint


class _Metrics(Struct):  # of those that Ray adds, what it reckons with
    training_iteration: Count
    time_this_iter_s: float


class Kept(Struct):
    """What a worker says of a stage, as JSON. Anyone may have written a journal with it."""

    end: Literal["finished", "stopped", "paused", "raised"]
    results: list[tuple[_Metrics, Annotated[str, Meta(pattern="^checkpoint_[0-9]{6,}$")] | None]]  # it may be removed
    changed: list[str]
    refused: str


def read_kept(content: Any, number: int | None) -> dict[str, Any]:
    """The parts of a `Kept`, also of a trial whose worker has died, each time. Raises UsageError."""
    with reading("Ray", number):
        return checked({"end": RAISED, "results": [], "changed": [], "refused": "", **(whole(content) or {})}, Kept)


@dataclass(frozen=True)
class Stage:
    """What a worker is told of a stage."""

    trainable: str  # its name
    how: dict[str, Any]  # arguments of the trainable
    about: dict[str, Any]  # of Ray's trial: its id, its criteria to stop, how it is checkpointed
    checkpoint: Any  # what it goes on from
    limit: tuple[str, float] | None  # it is paused once this value of a result is reached
    scheduler: Any  # decides whether it is stopped, see `mpitune.ray.schedulers`

    def ends(self, trial: RayTrial, result: dict[str, Any], stoppers: list[Any]) -> str:
        """How it ends with this result; "" where it goes on."""
        flat = flatten_dict(result)
        if flat.get(of_ray.DONE):
            return FINISHED
        if any(stopper(trial.trial_id, result) for stopper in stoppers):
            return STOPPED
        rule = self.scheduler
        decision = TrialScheduler.CONTINUE if rule is None else rule.on_trial_result(None, trial, flat)
        if trial.should_stop(flat) or (
            decision == TrialScheduler.STOP and flat[rule._time_attr] >= getattr(rule, "_max_t", math.inf)
        ):
            return FINISHED
        if decision != TrialScheduler.CONTINUE:
            return STOPPED if decision == TrialScheduler.STOP else PAUSED
        return PAUSED if self.limit and flat.get(self.limit[0], -math.inf) >= self.limit[1] else ""


@dataclass
class InWorker:
    """Evaluates stages."""

    packed: bytes  # trainables by name, values of `ray.put`, and stoppers, without their large arrays
    take_over: Callable[[], None]  # lets studies within a trial run there
    keeps_worker = True
    _stages: dict[str, bytes] = field(default_factory=dict)

    def begin(self, data: Data) -> InWorker:
        """In the worker, which has the arrays."""
        self._data = data
        if not core.stands_in:  # else this is the script's process, or a trial's
            core.stand_in()
            self.take_over()
            for handler in logging.getLogger("ray").handlers:  # of before stderr was told from stdout
                vars(handler)["stream"] = sys.stderr
        return self

    def on_news(self, content: bytes) -> None:
        """Stages that come next."""
        self._stages.update(pickle.loads(content))

    def __call__(self, batch: Batch) -> Iterator[Evaluation]:
        for trial in batch:
            # Of a trial that this one is a part of:
            around, folder, values, refusals = session._session, os.getcwd(), core.values, core.refusals
            try:
                session._session, core.refusals = None, [] if refusals is None else refusals
                # Made anew: what a trial does to its globals is nothing to the next one, as in Ray.
                trainables, own, stoppers = read_call(self.packed, self._data)
                core.values = {**values, **own}
                yield _evaluated(trial, pickle.loads(self._stages[trial.key]), trainables, stoppers)
            finally:
                os.chdir(folder)
                session._session, core.values, core.refusals = around, values, refusals


def _evaluated(trial: Trial, stage: Stage, trainables: Mapping[str, Any], stoppers: list[Any]) -> Evaluation:
    results: Reported = []
    cause, raised = "", b""
    try:
        end = _run(stage, trainables[stage.trainable], stoppers, results)
    except Exception as error:
        error = skip_exceptions(error)
        end, cause, raised = RAISED, own_traceback(error), packed_error(error, own_traceback(error))
    names = sorted({name for metrics, _ in results for name in changed(metrics)})
    kept = {"end": end, "results": plain(results), "changed": names, "refused": next(iter(core.refusals or ()), "")}
    messages = packed((trial.key, raised, results if can_be_sent(results) else None))
    last = own_metrics(results[-1][0]) if results else {}
    steps = {int(r[of_ray.TRAINING_ITERATION]): own for r, _ in results if (own := own_metrics(r))}
    ending = Ending(FAILED if end == RAISED else "", cause, steps, for_door=kept)  # to Ray, what was stopped is whole
    return Evaluation(trial.key, {} if cause else last, messages=messages, ending=ending)


def _run(stage: Stage, kind: type, stoppers: list[Any], results: Reported) -> str:
    """Train, and collect the results. Returns how it ends."""
    trial, trainable = RayTrial("", stub=True, **stage.about), kind(**stage.how)
    try:
        if stage.checkpoint is not None:
            trainable.restore(stage.checkpoint)
        end = ""
        while not end:
            result = trainable.train()
            if of_ray.RESULT_DUPLICATE in result:
                return FINISHED
            end = stage.ends(trial, result, stoppers)
            own_part = {name: value for name, value in result.items() if name != "config"}
            results.append((own_part, None))  # saving may fail
            is_due = result.get(of_ray.SHOULD_CHECKPOINT, False)
            if not isinstance(trainable, FunctionTrainable):
                often = trial.checkpoint_freq and result[of_ray.TRAINING_ITERATION] % trial.checkpoint_freq == 0
                is_due = is_due or often or end == PAUSED or (end and trial.checkpoint_at_end)
            if is_due:
                results[-1] = own_part, Path(trainable.save().checkpoint.path).name
        return end
    finally:
        threads = session.get_session()
        trainable.stop()
        if threads is not None and threads.training_started:
            threads.training_thread.join()


def own_metrics(result: Mapping[str, Any]) -> dict[str, float]:
    """Numbers that a trainable reports, without those that Ray adds."""
    flat = flatten_dict({name: value for name, value in result.items() if name not in ADDED_BY_RAY})
    numbers = {name: float(v) for name, v in flat.items() if isinstance(v, Real) and not isinstance(v, bool)}
    return {name: value for name, value in numbers.items() if not math.isnan(value)}
