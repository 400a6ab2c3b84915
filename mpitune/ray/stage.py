"""A stage of a trial of Ray Tune in a worker: Ray's own Trainable, until it ends, is stopped or paused."""

from __future__ import annotations

import copy
import math
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

from ray.air._internal.util import skip_exceptions
from ray.train._internal import session
from ray.tune.experiment import Trial as RayTrial
from ray.tune.result import DEBUG_METRICS, DONE, RESULT_DUPLICATE, SHOULD_CHECKPOINT, TRAINING_ITERATION
from ray.tune.schedulers import TrialScheduler
from ray.tune.trainable import FunctionTrainable
from ray.tune.utils import flatten_dict

from mpitune.errors import own_traceback
from mpitune.experiment import Data
from mpitune.optimize.plain import plain
from mpitune.processes.pickles import read_call
from mpitune.processes.process import can_be_sent, packed, packed_error
from mpitune.ray import core
from mpitune.trial import FAILED, PRUNED, Batch, Ending, Evaluation, Trial

ADDED = {  # to results by Ray, beside what it names DEBUG_METRICS
    "config", DONE, SHOULD_CHECKPOINT, TRAINING_ITERATION, "time_this_iter_s", "time_total_s", "time_since_restore",
    "iterations_since_restore", "timesteps_since_restore", "experiment_tag", "checkpoint_dir_name",
}  # fmt: skip
FINISHED, STOPPED, PAUSED, RAISED = "finished", "stopped", "paused", "raised"  # how a stage ends
Event = tuple[int, str, str, Any]  # of the scheduler (0) or the stopper (1): method, trial, what it was told


@dataclass(frozen=True)
class Stage:
    """What a worker is told of a stage.

    Attributes:
        trainable: its name.
        how: arguments of the trainable.
        checkpoint: what it goes on from.
        criterion: at which values of a result it stops.
        frequency, at_end: when an object of a class saves a checkpoint.
        limit: it is paused once this value of a result is reached.
        known: of how many events its scheduler and stopper know.
    """

    trainable: str
    trial_id: str
    how: dict[str, Any]
    checkpoint: Any
    criterion: Mapping[str, float]
    frequency: int
    at_end: bool
    limit: tuple[str, float] | None
    known: int


class Named(RayTrial):
    """A trial that is only known by its id. A copy of a scheduler has the same ones."""

    def __init__(self, trial_id: str, **more: Any):
        super().__init__("", stub=True, trial_id=trial_id, **more)

    def __deepcopy__(self, memo: dict[int, Any]) -> Named:
        return self


class Deciding:
    """A scheduler and a stopper that have heard the first events of the study.

    A stage has a copy that knows what rank 0 did when it asked for it, and hears the stage's own results beside.
    """

    def __init__(self, begun: bytes):
        self._begun, self.events = begun, list[Event]()
        self._begin()

    def _begin(self) -> None:
        self._known, self._trials = 0, dict[str, RayTrial]()
        self._parts = pickle.loads(self._begun)

    def at(self, known: int) -> Deciding:
        """A copy that knows so many events."""
        if known < self._known:
            self._begin()
        for part, method, trial_id, told in self.events[self._known : known]:
            self._hear(part, method, trial_id, told)
        self._known = known
        other = copy.copy(self)
        other._parts, other._trials = copy.deepcopy((self._parts, self._trials))
        return other

    def get_live_trials(self) -> list[RayTrial]:
        """None, as those of other workers wait for nothing here."""
        return []

    def is_complete(self, result: dict[str, Any]) -> bool:
        """Whether a trial has with this result all that its scheduler allows."""
        scheduler = self._parts[0]
        return flatten_dict(result).get(getattr(scheduler, "_time_attr", ""), 0) >= getattr(
            scheduler, "_max_t", math.inf
        )

    def _hear(self, part: int, method: str, trial_id: str, told: Any) -> Any:
        if part:
            return self._parts[1](trial_id, told)
        if trial_id not in self._trials:
            self._trials[trial_id] = Named(trial_id)
        call = getattr(self._parts[0], method)
        return call(self, self._trials[trial_id], *(() if told is None else (told,)))

    def decision(self, trial_id: str, result: dict[str, Any]) -> str:
        """What becomes of the trial after this result."""
        scheduler, stopper = self._parts
        if stopper is not None and self._hear(1, "", trial_id, result):
            return TrialScheduler.STOP
        if scheduler is None:
            return TrialScheduler.CONTINUE
        return self._hear(0, "on_trial_result", trial_id, flatten_dict(result))


@dataclass
class InWorker:
    """Evaluates stages.

    Attributes:
        packed: trainables by name, and values of `ray.put`, without their large arrays.
        begun: the scheduler and the stopper, packed, before the first trial.
        take_over: lets studies within a trial run there.
    """

    packed: bytes
    begun: bytes
    take_over: Callable[[], None]
    keeps_worker = True
    _stages: dict[str, bytes] = field(default_factory=dict)

    def begin(self, data: Data) -> InWorker:
        """In the worker, which has the arrays."""
        self._data, self._deciding = data, Deciding(self.begun)
        if not core.stands_in:  # else this is the script's process, or a trial's
            core.stand_in(started=True)
            self.take_over()
        return self

    def on_news(self, content: bytes) -> None:
        """Stages that come next, and what was told since."""
        stages, events = pickle.loads(content)
        self._stages.update(stages)
        self._deciding.events += events

    def __call__(self, batch: Batch) -> Iterator[Evaluation]:
        for trial in batch:
            before, session._session, folder, values = session._session, None, os.getcwd(), dict(core.values)
            refusals = core.refusals
            core.refusals = [] if refusals is None else refusals
            try:
                # Made anew: what a trial does to its globals is nothing to the next one, as in Ray.
                self._trainables, own = read_call(self.packed, self._data)
                core.values.update(own)
                yield self._evaluated(trial, pickle.loads(self._stages[trial.key]))
            finally:
                os.chdir(folder)
                session._session = before  # of a trial that this one is a part of
                core.refusals = refusals
                core.values.clear()
                core.values.update(values)

    def _evaluated(self, trial: Trial, stage: Stage) -> Evaluation:
        results: list[tuple[dict[str, Any], str | None]] = []
        cause, raised = "", b""
        try:
            end = self._run(stage, results)
        except Exception as error:
            error = skip_exceptions(error)
            end, cause, raised = RAISED, own_traceback(error), packed_error(error, own_traceback(error))
        kept = {"end": end, "results": plain(results), "refused": next(iter(core.refusals or ()), "")}
        messages = packed((trial.key, raised, results if can_be_sent(results) else None))
        last = own_metrics(results[-1][0]) if results else {}
        steps = {int(r[TRAINING_ITERATION]): own for r, _ in results if (own := own_metrics(r))}
        state = {STOPPED: PRUNED, RAISED: FAILED}.get(end, "")
        if results and self._deciding.is_complete(results[-1][0]):
            state = ""
        return Evaluation(
            trial.key, {} if cause else last, messages=messages, ending=Ending(state, cause, steps, kept=kept)
        )

    def _run(self, stage: Stage, results: list[tuple[dict[str, Any], str | None]]) -> str:
        """Train, and collect the results, each with the name of its checkpoint. Returns how it ends."""
        own = Named(stage.trial_id, stopping_criterion=dict(stage.criterion))
        deciding = self._deciding.at(stage.known)
        trainable = self._trainables[stage.trainable](**stage.how)
        try:
            if stage.checkpoint is not None:
                trainable.restore(stage.checkpoint)
            end = ""
            while not end:
                result = trainable.train()
                if RESULT_DUPLICATE in result:
                    return FINISHED
                end = self._end(stage, own, result, deciding)
                own_part = {name: value for name, value in result.items() if name != "config"}
                results.append((own_part, None))  # saving may fail
                results[-1] = own_part, self._saved(trainable, stage, result, end)
            return end
        finally:
            threads = session.get_session()
            trainable.stop()
            if threads is not None:
                threads.training_thread.join()

    def _end(self, stage: Stage, own: RayTrial, result: dict[str, Any], deciding: Deciding) -> str:
        """How the stage ends with this result; "" where it goes on."""
        flat = flatten_dict(result)
        if flat.get(DONE):
            return FINISHED
        decision = deciding.decision(stage.trial_id, result)
        if own.should_stop(flat):
            return FINISHED
        if decision != TrialScheduler.CONTINUE:
            return STOPPED if decision == TrialScheduler.STOP else PAUSED
        return PAUSED if stage.limit and flat.get(stage.limit[0], -math.inf) >= stage.limit[1] else ""

    def _saved(self, trainable: Any, stage: Stage, result: dict[str, Any], end: str) -> str | None:
        if isinstance(trainable, FunctionTrainable):
            is_due = result.get(SHOULD_CHECKPOINT, False)
        else:
            often = stage.frequency and result[TRAINING_ITERATION] % stage.frequency == 0
            is_due = often or end == PAUSED or (end and stage.at_end)
        return Path(trainable.save().checkpoint.path).name if is_due else None


def own_metrics(result: Mapping[str, Any]) -> dict[str, float]:
    """Numbers that a trainable reports, without those that Ray adds."""
    flat = flatten_dict({n: v for n, v in result.items() if n not in DEBUG_METRICS and n not in ADDED})
    numbers = {n: float(v) for n, v in flat.items() if isinstance(v, Real) and not isinstance(v, bool)}
    return {n: v for n, v in numbers.items() if not math.isnan(v)}
