"""What evaluates a trial in a worker: a function, a generator, or an object that is set up once.

def objective(trial):                       # values, or one number where there is one objective
    return {"loss": train(trial.params["lr"])}

def objective(trial):                       # one that reports its values after each step can be stopped there
    for epoch in range(1, 101):
        ...
        trial.report({"loss": loss}, step=epoch)

def objective(trial):                       # so can a generator, which yields them
    state = load(trial.folder) if trial.start else new(trial.params)
    for step in range(state.step, 100):     # steps begin at 0 or at 1, and grow
        ...
        save(state, trial.folder)
        yield {"step": step, "loss": loss}

def objective(trials):                      # a list of them, with `together=`: it returns as many values
    return [{"loss": loss} for loss in train([trial.params["lr"] for trial in trials])]

class Objective:                            # setup runs once in each worker
    keeps_worker = True                     # after an exception, which ends a worker on a GPU if this is not said
    def setup(self, device): self.images = load().to(device)
    def __call__(self, trial): ...
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from types import GeneratorType
from typing import Any, cast

import numpy as np

from mpitune.devices.choose import hosts_here
from mpitune.engine import seeding
from mpitune.experiment import WorkerContext
from mpitune.optimize.attempts import AttemptFolder
from mpitune.optimize.steps import StepLog, Steps, TrialStopped, is_stop
from mpitune.optimize.strategies.base import Problem, number_of, trial_of
from mpitune.optimize.values import InvalidReturnValue, NoValue, as_json, values_of
from mpitune.processes.keeper import scratch_folder
from mpitune.trial import PLAIN, Batch, Ending, Evaluation, Trial, halves, seed_of


@dataclass(frozen=True)
class ObjectiveTrial:
    """What an objective is given.

    Attributes:
        params: Its parameters by name, with the constants of the space.
        device: "cpu" or "cuda".
        start: Steps that were done before; its folder has the checkpoint that it saved then.
        until: Steps after which it will be stopped, 0 where it runs to its end.
        user_attrs: What was said by `set_user_attr`.
    """

    params: Mapping[str, Any]
    device: str
    start: int
    until: int
    _trial: Trial  # which has the parameters as a journal holds them
    _study_seed: int
    _attempt: AttemptFolder
    _read: set[str] = field(default_factory=set)  # what results depend on beside the parameters, see `Evaluation.read`
    user_attrs: dict[str, Any] = field(default_factory=dict)
    _begin: Callable[[ObjectiveTrial], Any] | None = None  # what takes in its reports, as `Steps` does

    def __getstate__(self) -> dict[str, Any]:
        self._read.add("seed")  # a copy may be asked for it in another process, where reports are not heard
        return {name: value for name, value in vars(self).items() if name != "_steps"} | {"_begin": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    @property
    def number(self) -> int:
        """Of the trial, from 0."""
        self._read.add("number")
        return number_of(self._trial)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the nodes that it has to itself with `nodes=`, this one first; else empty."""
        return hosts_here()

    @property
    def limits(self) -> Sequence[tuple[int, float]]:
        """What its strategy says of when to stop, see `Segment.limits`."""
        return self._trial.segment.limits

    @cached_property
    def seed(self) -> int:
        """For its random numbers: made of the study's seed and the trial alone."""
        self._read.add("seed")
        return int(seed_of(self._study_seed, f"objective/{number_of(self._trial)}").generate_state(1)[0])

    @cached_property
    def folder(self) -> Path:
        """This attempt's own folder, with what earlier stages and attempts left. It is made when first asked for."""
        self._read.add("folder")
        return Path.cwd() if self._attempt is None else self._attempt.make()

    def set_user_attr(self, name: str, value: Any) -> None:
        """Say more of the trial than its values: for `study.trials`.

        The study keeps it as JSON: a tuple becomes a list. NaN, which JSON does not have, fails the trial.
        """
        self.user_attrs[name] = as_json(name, value)

    @cached_property
    def _steps(self) -> Any:
        assert self._begin is not None
        return self._begin(self)

    def report(self, values: Any, step: int | None = None) -> None:
        """Say the values after a step. A strategy that stops trials early decides by them.

        Args:
            values: By name, or one number where there is one objective.
            step: Its number, from 0 or 1; by default one more than before.

        Raises:
            TrialStopped: The stage is over, and perhaps the trial is pruned. A later stage calls the objective again,
                with the same `folder`.
        """
        if self._begin is None:
            return
        self._steps.add(values, step)
        if self._steps.is_over:
            raise TrialStopped(f"trial {number_of(self._trial)} has all the steps of its stage")


_running: ObjectiveTrial | None = None


def current_trial() -> ObjectiveTrial:
    """The trial that this process evaluates, for code that is not given one, such as a callback of a trainer.

    Outside of a search it has no parameters, its folder is the current one, and what is reported goes nowhere, so that
    a script need not know how it is run. So it is in an objective of a list of trials, but reports are refused there.

    Example:
        >>> from mpitune import current_trial
        >>> current_trial().report({"loss": 0.5}, step=1)
        >>> dict(current_trial().params)
        {}
    """
    return _running or _nobody()


def _nobody(begin: Callable[[ObjectiveTrial], Any] | None = None) -> ObjectiveTrial:
    return ObjectiveTrial({}, "cpu", 0, 0, trial_of(0, {}), 0, cast(Any, None), _begin=begin)


@contextmanager
def as_current(trial: ObjectiveTrial) -> Iterator[None]:
    """While this lasts, it is the `current_trial`."""
    global _running
    _running, before = trial, _running
    try:
        yield
    finally:
        _running = before


class TrialEvaluator:
    """Evaluates the batches of a search in a worker.

    Args:
        folder: of all trials' folders.
        job: see `AttemptFolder`.
    """

    def __init__(self, objective: Any, problem: Problem, folder: Path, job: str, worker: WorkerContext):
        if isinstance(objective, type):
            objective = objective()
        if callable(setup := getattr(objective, "setup", None)):
            setup(worker.device)
        if hasattr(objective, "keeps_worker"):
            self.keeps_worker = bool(objective.keeps_worker)
        self._stops_itself = getattr(objective, "staged", False)  # as a command does
        self._call: Callable[[Any], Any] = objective  # of an `ObjectiveTrial`, or of a list of them
        self._problem, self._worker, self._folder = problem, worker, folder
        self._job, self._anew = job, getattr(objective, "anew", ())
        self._names = list(problem.objectives)
        self._drawn = seeding.drawn()  # by the setup, which all trials depend on then

    def __call__(self, batch: Batch) -> Iterator[Evaluation]:
        for trial in batch:
            try:
                yield self._result(trial)
            except InvalidReturnValue as invalid:
                yield invalid.failure(trial.key)

    def _result(self, trial: Trial) -> Evaluation:
        own_trial = self._trial_for(trial, self._begun)
        with as_current(own_trial):
            values = self._values(own_trial)
        own_trial._attempt.finish()
        if isinstance(values, Evaluation):
            return values
        steps: Steps | None = vars(own_trial).get("_steps")
        ending = PLAIN if steps is None else Ending(steps=steps.of_stage)
        read = self._reads([own_trial])
        return Evaluation(trial.key, values, read=read, user_attrs=own_trial.user_attrs, ending=ending)

    def _reads(self, trials: Collection[ObjectiveTrial]) -> tuple[str, ...]:
        """See `Evaluation.read`. What an attempt has read that died is not known."""
        unseen = seeding.drawn() or self._drawn or any(trial._attempt.goes_on for trial in trials)
        return tuple(sorted({*["seed"][:unseen]}.union(*(trial._read for trial in trials))))

    def _trial_for(self, trial: Trial, begin: Callable[[ObjectiveTrial], Any]) -> ObjectiveTrial:
        return ObjectiveTrial(
            self._problem.space.params_of(trial.params), self._worker.device,
            trial.segment.start, trial.segment.until, trial, self._problem.seed,
            AttemptFolder(trial, self._folder, self._job, self._anew),
            _begin=begin,
        )  # fmt: skip

    def _begun(self, trial: ObjectiveTrial) -> Steps:
        log = StepLog(trial._attempt.path)
        return Steps(self._names, trial._trial.segment, log, self._worker, trial.user_attrs)

    def _values(self, trial: ObjectiveTrial) -> Any:
        """What the objective returns, or the values of its steps."""
        returned = None
        try:
            if not trial.until or self._stops_itself or not trial._steps.is_over:  # else an attempt before has said all
                returned = self._call(trial)
            if isinstance(returned, GeneratorType):
                generator, returned = returned, None
                while not trial._steps.is_over and (yielded := next(generator, generator)) is not generator:
                    trial._steps.add(yielded)
        except Exception as error:
            steps = vars(trial).get("_steps")
            if steps is None or not (steps.refused or is_stop(error)):
                raise
        if isinstance(returned, Evaluation):
            return returned
        steps = vars(trial).get("_steps")
        if steps is None:
            return values_of(returned, self._names)
        return steps.values(None if returned is None or steps.is_over else values_of(returned, self._names))


class GroupEvaluator(TrialEvaluator):
    """Evaluates each batch by one call of an objective that takes a list, always of `together` trials.

    A trial has the place that its batch says. Each place without one has a copy of the first trial, whose values are
    dropped: what a group computes may have other bits if its width is another.
    """

    def __call__(self, batch: Batch) -> Iterator[Evaluation]:
        try:
            placed = {trial.segment.place or 0: self._trial_for(trial, _no_steps) for trial in batch}
            assert len(placed) == len(batch)
            returned = self._returned(placed)
        except InvalidReturnValue as invalid:
            if isinstance(invalid, NoValue) and len(batch) > 1:  # one of them has said NaN
                for part in halves(batch):
                    yield from self(part)
            else:
                yield from (invalid.failure(trial.key) for trial in batch)
            return
        read = self._reads(placed.values())
        for (place, trial), key in zip(placed.items(), (trial.key for trial in batch), strict=True):
            try:
                values = values_of(returned[place], self._names)
                trial._attempt.finish()
                yield Evaluation(key, values, read=read, user_attrs=trial.user_attrs)
            except InvalidReturnValue as invalid:
                yield invalid.failure(key)

    def _returned(self, placed: Mapping[int, ObjectiveTrial]) -> Sequence[Any]:
        """What the objective returns for trials at these places, and copies at the others.

        Raises InvalidReturnValue for anything but as many values, and where it has sorted its list.
        """
        n, first = self._problem.together, next(iter(placed.values()))
        with TemporaryDirectory(dir=scratch_folder(), prefix="copies-") as scratch, as_current(_nobody(_no_steps)):
            folders = [AttemptFolder(first._trial, Path(scratch, str(place))) for place in range(n)]
            trials = [placed.get(n) or replace(first, _attempt=own, user_attrs={}) for n, own in enumerate(folders)]
            returned = self._call(passed := list(trials))
        if any(trial is not other for trial, other in zip(trials, passed, strict=True)):
            raise InvalidReturnValue("it changed the order of its list, which says whose a value is: sort a copy")
        what = f"a {type(returned).__name__}"
        if isinstance(returned, np.ndarray) and returned.ndim:
            returned = list(returned)
        if isinstance(returned, list | tuple):
            if len(returned) == n:
                return returned
            what = f"{len(returned)} values for {n} trials"
        raise InvalidReturnValue(f"it returned {what}: return a list of {n} with what each trial has, in their order")


def _no_steps(trial: ObjectiveTrial) -> Any:
    raise InvalidReturnValue(
        "it reports steps, but trials that train together are evaluated whole: return their values"
    )
