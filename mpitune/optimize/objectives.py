"""What evaluates a trial in a worker: a function, a generator, or an object that is set up once.

def objective(trial):                       # values, or one number where there is one objective
    return {"loss": train(trial.params["lr"])}

def objective(trial):                       # a generator yields its values after each step: it can be stopped
    state = load(trial.folder) if trial.start else new(trial.params)
    for step in range(state.step, 100):     # steps begin at 0 or at 1, and grow
        ...
        save(state, trial.folder)
        yield {"step": step, "loss": loss}

class Objective:                            # setup runs once in each worker
    keeps_worker = True                     # after an exception, which ends a worker on a GPU if this is not said
    def setup(self, device): self.images = load().to(device)
    def __call__(self, trial): ...
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import numbers
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import GeneratorType
from typing import Any

import numpy as np

from mpitune.devices.choose import hosts_here
from mpitune.experiment import WorkerContext
from mpitune.optimize.strategies.base import Problem, TrialSegment
from mpitune.storage.files import copy_folder, make_folder, read_at_most, regular_file, remove_folder
from mpitune.trial import Batch, Evaluation, Trial, seed_of

# How the error of a trial begins whose objective returns what it must not: the search ends. Without a value it
# does so only in the first trial; later a training may have diverged, or a program have been killed.
FIX_PREFIX = "correct the objective: "
NO_VALUE = "no value: "
NUMBER, NAMED = (float, numbers.Real), (dict, Mapping)  # the usual class first, which is found fastest
STEPS = "steps.jsonl"  # in a trial's folder: the values that it has yielded
MOST_OF_STEPS = 64 << 20  # bytes of it


class InvalidReturnValue(Exception):
    """An objective returned something wrong; the text says what to return."""

    prefix = FIX_PREFIX


class NoValue(InvalidReturnValue):
    """An objective without a value in this trial, which another trial may have."""

    prefix = NO_VALUE


@dataclass(frozen=True)
class ObjectiveTrial:
    """What an objective is given.

    Attributes:
        params: Its parameters by name, with the constants of the space.
        device: "cpu" or "cuda".
        start: Steps that were done before; its folder has the checkpoint that it saved then.
        until: Steps after which it will be stopped, 0 where it runs to its end.
        fold: The fold to evaluate where folds are raced, else -1.
        user_attrs: What was said by `set_user_attr`.
    """

    params: Mapping[str, Any]
    device: str
    start: int
    until: int
    fold: int
    _segment: TrialSegment  # which has the parameters as a journal holds them
    _study_seed: int
    _folders: Path  # of all trials
    _read: set[str] = field(default_factory=set)  # what results depend on beside the parameters, see `Evaluation.read`
    user_attrs: dict[str, Any] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        self._read.add("seed")  # a copy may be asked for it in another process
        return vars(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    @property
    def number(self) -> int:
        """Of the trial, from 0."""
        self._read.add("number")
        return self._segment.number

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the nodes that it has to itself with `nodes=`, this one first; else empty."""
        return hosts_here()

    @property
    def stop(self) -> str:
        """What its strategy says of when to stop, see `TrialSegment.stop`."""
        return self._segment.stop

    @cached_property
    def seed(self) -> int:
        """For its random numbers: made of the study's seed and the trial alone."""
        self._read.add("seed")
        return int(seed_of(self._study_seed, f"objective/{self._segment.number}").generate_state(1)[0])

    @cached_property
    def folder(self) -> Path:
        """The trial's own folder, kept across its stages, a retry and a restart. It is made when first asked for."""
        self._read.add("folder")
        folder = folder_of(self._segment, self._folders)
        make_folder(folder)
        return folder

    def set_user_attr(self, name: str, value: Any) -> None:
        """Say more of the trial than its values: for `constraints_func` of a sampler of Optuna, for `study.trials`.

        The study keeps it as JSON: a tuple becomes a list. NaN, which JSON does not have, fails the trial.
        """
        self.user_attrs[name] = as_json(name, value)


def as_json(name: str, value: Any) -> Any:
    """A user attribute as a journal gives it back. Raises InvalidReturnValue, NoValue where it is not finite."""
    try:
        return json.loads(json.dumps({str(name): value}, allow_nan=False, default=np.generic.item))[name]
    except (TypeError, ValueError, OverflowError, RecursionError, KeyError) as error:
        why = f"it gave {value!r:.100} as user attribute {name!r:.100}: give JSON, as texts, finite numbers and lists"
        raise (NoValue if isinstance(error, ValueError) else InvalidReturnValue)(why) from error


def values_of(returned: Any, names: Sequence[str]) -> dict[str, float]:
    """What an objective has returned by name: at least the values of these names.

    Raises InvalidReturnValue, NoValue where one is NaN.
    """
    if isinstance(returned, NUMBER) and len(names) == 1:
        returned = {names[0]: returned}
    if not isinstance(returned, NAMED):
        what = "None" if returned is None else f"a {type(returned).__name__}"
        raise InvalidReturnValue(f"it returned {what}: return {_example(names)}")
    for name in names:
        if name not in returned:
            there = ", ".join(map(str, returned)) or "{}"
            raise InvalidReturnValue(f"it returned {there} without {name}: return {_example(names)}")
    values = {}
    for name, value in returned.items():
        if not isinstance(name, str) or "@" in name:
            raise InvalidReturnValue(f"it returned a value called {name!r}: give it a name without @")
        if not isinstance(value, NUMBER):
            fix = f"give a number, such as float({name})"
            raise InvalidReturnValue(f"it returned a {type(value).__name__} as {name}: {fix}")
        try:
            number = float(value)
        except OverflowError:
            number = math.nan
        if math.isnan(number):
            said = "NaN" if value != value else "a number above all floats"
            raise NoValue(f"it returned {said} as {name}: give float('inf') where a training has diverged")
        values[name] = number
    return values


def _example(names: Sequence[str]) -> str:
    return "{" + ", ".join(f"{name!r}: ..." for name in names) + "}"


def require_same_names(values: Mapping[str, float], before: Mapping[str, float]) -> None:
    """Raise InvalidReturnValue unless two trials have the same values by name."""
    new, old = (sorted(name for name in some if "@" not in name) for some in (values, before))
    if new != old:
        raise InvalidReturnValue(
            f"it returned {', '.join(new)}, before {', '.join(old)}: return the same names in each trial"
        )


class TrialEvaluator:
    """Evaluates the batches of a search in a worker. folder: of all trials' folders."""

    def __init__(self, objective: Any, problem: Problem, folder: Path, worker: WorkerContext):
        if isinstance(objective, type):
            objective = objective()
        if callable(setup := getattr(objective, "setup", None)):
            setup(worker.device)
        if hasattr(objective, "keeps_worker"):
            self.keeps_worker = bool(objective.keeps_worker)
        self._call: Callable[[ObjectiveTrial], Any] = objective
        self._problem, self._worker, self._folder = problem, worker, folder
        self._names = list(problem.objectives)

    def __call__(self, batch: Batch) -> Iterator[Evaluation]:
        for trial in batch:
            try:
                yield self._result(trial)
            except InvalidReturnValue as invalid:
                yield Evaluation(trial.key, error=f"{invalid.prefix}{invalid}")

    def _result(self, trial: Trial) -> Evaluation:
        segment = TrialSegment.of(trial)
        if segment.parent:
            folder_of(segment, self._folder)  # also where the objective does not ask for it: later trials may
        given = ObjectiveTrial(
            self._problem.space.given(segment.point), self._worker.device,
            segment.start, segment.until, segment.fold, segment, self._problem.seed, self._folder,
        )  # fmt: skip
        returned = self._call(given)
        if isinstance(returned, Evaluation):
            return returned
        stepped = isinstance(returned, GeneratorType)
        values = self._stepped(returned, segment, given.user_attrs) if stepped else values_of(returned, self._names)
        return Evaluation(trial.key, values, read=tuple(sorted(given._read)), user_attrs=given.user_attrs)

    def _stepped(self, generator: Iterator[Any], segment: TrialSegment, user_attrs: dict[str, Any]) -> dict[str, float]:
        """The last values of a generator, and those of each step since `start` as name@step."""
        kept = StepLog(folder_of(segment, self._folder))
        user_attrs.update(kept.user_attrs)
        before = int(0 in kept.steps)  # 1 where steps begin at 0: step n is then the one after n others
        steps = {n: values for n, values in kept.steps.items() if not segment.until or n + before <= segment.until}
        known = max(steps, default=-1) + before
        done, last = known if segment.until and known >= segment.until else 0, None
        while not (segment.until and done >= segment.until):
            try:
                yielded = next(generator)
            except StopIteration:
                break
            values = values_of(yielded, self._names)
            if "step" not in values and kept.is_used and segment.until:
                raise InvalidReturnValue(
                    "it keeps checkpoints, so it must say where it is: yield {'step': ..., ...}, from 0 or 1"
                )
            last = _step(values.pop("step", 1 if last is None else last + 1), last)
            before = before or int(last == 0)
            steps[last] = values
            kept.add(last, values, user_attrs)
            done = last + before
            self._worker.report_step(done, segment.until)
        if last is None and not done and kept.is_used and (kept.steps or segment.start or segment.number):
            raise NoValue("it yielded nothing more: its checkpoint is at its end, where it may have failed before")
        if not steps:
            raise InvalidReturnValue("it yielded nothing: yield its values after each step")
        end = max(steps)
        if end + before < segment.until:
            fix = f"give max_steps={end + before}"
            if segment.start and not before and end == segment.until - 1:
                fix += ", or begin at step 1 (only checkpoints in trial.folder show that steps begin at 0)"
            raise InvalidReturnValue(
                f"it ended after {end + before} steps, before the {segment.until} of its strategy: {fix}"
            )
        new = {f"{name}@{n}": v for n in sorted(steps) if n + before > segment.start for name, v in steps[n].items()}
        return {**steps[end], **new}


def _step(value: float, last: int | None) -> int:
    """A step that a generator has yielded, after step `last`. Raises InvalidReturnValue."""
    if not (value >= 0 and float(value).is_integer()) or (last is not None and value <= last):
        which = f"{value:g}" if last is None else f"{value:g} after step {last}"
        raise InvalidReturnValue(f"it yielded step {which}: yield whole numbers that begin at 0 or 1 and grow")
    return int(value)


class StepLog:
    """What a trial has yielded so far, in its folder if it has one."""

    def __init__(self, folder: Path):
        self._path = folder / STEPS
        self._unwritten: list[str] = []
        self.steps: dict[int, dict[str, float]] = {}
        self.user_attrs: dict[str, Any] = {}
        try:
            content = read_at_most(self._path, MOST_OF_STEPS)
        except FileNotFoundError:
            return
        for line in content.splitlines():
            try:
                n, values, *more = json.loads(line)
                self.steps[int(n)] = {name: float(value) for name, value in values.items()}
                self.user_attrs.update(*more)
            except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
                break  # what a crash left of the last line

    @property
    def is_used(self) -> bool:
        """Whether the trial has asked for its folder."""
        return self._path.parent.exists()

    def add(self, n: int, values: Mapping[str, float], user_attrs: Mapping[str, Any]) -> None:
        self._unwritten.append(json.dumps([n, values, user_attrs] if user_attrs else [n, values]) + "\n")
        if self.is_used:  # perhaps first asked for in a later step
            with open(regular_file(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "a") as file:
                file.writelines(self._unwritten)
            self._unwritten.clear()


def folder_of(segment: TrialSegment, trials: Path) -> Path:
    """The folder of a segment, which begins with a copy of its parent's where it has one."""
    if not segment.parent:
        return trials / f"t{segment.number:06}"
    own, parent = _of_stage(segment.key, trials), _of_stage(segment.parent, trials)
    remove_folder(_of_stage(f"t{segment.number:06}/{(segment.stage or 0) - 2}", trials))  # all have their copies
    if not own.exists() and parent.exists():
        how_counted = json.dumps([0, {}]) + "\n" if 0 in StepLog(parent).steps else ""
        copy_folder(parent, own, {STEPS: how_counted})
    return own


def _of_stage(key: str, trials: Path) -> Path:
    """The folder of a stage whose checkpoint may be handed on; the first has that of its trial."""
    return trials / key.removesuffix("/0").replace("/", "-")


def is_staged(objective: Any) -> bool:
    """Whether an objective can be stopped after some steps: it is a generator, or says itself that it can."""
    while isinstance(objective, functools.partial):
        objective = objective.func
    if hasattr(objective, "staged"):
        return bool(objective.staged)
    if isinstance(objective, type) or not inspect.isroutine(objective):
        return inspect.isgeneratorfunction(getattr(objective, "__call__", None))  # noqa: B004
    return inspect.isgeneratorfunction(objective)
