"""The experiment that a search is for the engine."""

from __future__ import annotations

import numbers
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mpitune.earlier.points import Carried
from mpitune.earlier.studies import Earlier
from mpitune.errors import UsageError, printable_lines
from mpitune.experiment import Data, Experiment, Objective, WorkerContext
from mpitune.limit import SearchLimit
from mpitune.optimize.attempts import AttemptFolder
from mpitune.optimize.commands import Command
from mpitune.optimize.objectives import GroupEvaluator, TrialEvaluator
from mpitune.optimize.search_study import SearchStudy
from mpitune.optimize.spaces import Point, Space
from mpitune.optimize.spaces.parameters import shown
from mpitune.optimize.strategies.base import Feedback, Problem, Strategy, TrialScheduler, number_of
from mpitune.optimize.strategies.plain import Sampling
from mpitune.optimize.strategies.population import PopulationBased
from mpitune.optimize.values import InvalidReturnValue, refuse_faults, require_same_names
from mpitune.optimize.window import Proposed, rounds
from mpitune.port import Matching, Reporting, Scheduling
from mpitune.settings import window_of
from mpitune.storage.trials import TrialRecord, records
from mpitune.trial import Batch, Evaluation, Fault, Gang, Outcome, Result, Rounds, Trial

SELECTS = {"selects": True}  # a field that only decides which trials there are, see `Carried`
Callback = Callable[[SearchStudy, TrialRecord], bool | None]
Alike = Callable[[Mapping[str, Any]], Hashable]  # of a trial's parameters: those that are equal train together


@dataclass(frozen=True)
class WorkersPart:
    """What the workers need: it is all that is sent to them."""

    objective: Any
    problem: Problem
    folder: Path  # of all trials' folders
    job: str = ""  # see `AttemptFolder`


@dataclass(frozen=True)
class LeadersPart:
    """What rank 0 needs."""

    strategy: Strategy
    callbacks: tuple[Callback, ...]
    limit: SearchLimit
    results: Path | None
    gang_of: Callable[[Mapping[str, Any]], Gang] | None  # of the parameters; None where each trial has one device
    alike: Alike | None = None  # None: all are alike
    carried: list[Carried] = field(default_factory=list)  # one, where there are earlier studies
    reported: list[SearchStudy] = field(default_factory=list)  # one, once it has ended with a folder


@dataclass(frozen=True)
class Tuning(Experiment):
    """The study of a search. `task` and `plan` have everything that is not for the journal's header."""

    kind = "search"

    space: tuple[str, ...] = field(metadata=SELECTS)
    strategy: str = field(metadata=SELECTS)
    objectives: tuple[str, ...] = field(metadata=SELECTS)
    seed: int = field(metadata=SELECTS)
    window: int | None = field(metadata=SELECTS)  # None where trials do not depend on it
    enqueued: tuple[str, ...] = field(metadata=SELECTS)
    task: WorkersPart = field(metadata={"changes_results": False})
    plan: LeadersPart | None = field(metadata={"changes_results": False})
    together: int | None = field(default=None, metadata=SELECTS)  # trials of a group, None for none

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "plan": None}

    def objective(self, worker: WorkerContext) -> Objective:
        problem = self.task.problem
        kind = GroupEvaluator if problem.together else TrialEvaluator
        return kind(self.task.objective, problem, self.task.folder, self.task.job, worker)

    def called(self) -> Mapping[str, Any]:
        objective = self.task.objective
        if isinstance(objective, Command):
            return objective.called()
        things = [*self.task.problem.space.things(), self.plan and self.plan.strategy]
        alike = None if self.plan is None else self.plan.alike
        return {"space": things, **({} if alike is None else {"alike": alike}), "objective": objective}

    def matching(self, earlier: Sequence[Earlier]) -> Matching:
        assert self.plan is not None
        folder, uses = self.task.folder, not isinstance(self.plan.strategy, PopulationBased)

        def go_on(trial: Trial, old: Path) -> None:
            if not (folder / f"t{number_of(trial):06}").exists():
                AttemptFolder(trial, folder, self.task.job, like=old).finish()

        self.plan.carried[:] = [Carried(self.task.problem, earlier, uses, go_on)]
        return self.plan.carried[0]

    def _known(self) -> Iterator[tuple[Point, Feedback, bool]]:
        """Trials of earlier studies, see `Problem.known`."""
        for each in self.plan.carried if self.plan is not None else ():
            for point, result, again, pruned in each.known():
                yield dict(point), Feedback.of(result, self.task.problem, pruned), again

    def searches(self) -> Iterable[Rounds]:
        assert self.plan is not None
        problem = replace(self.task.problem, known=self._known)
        source = _SchedulerSource(self.plan.strategy.begin(problem), problem, self.plan)
        return [rounds(source, problem.window)]

    def scheduling(self) -> Scheduling:
        problem, plan = self.task.problem, self.plan
        whole = plan is not None and isinstance(plan.strategy, Sampling)
        return Scheduling(
            n_trials=problem.n_trials if whole else None, gang=self._gang, preload=(__name__,),
            prints_plainly=getattr(self.task.objective, "prints_plainly", False),
        )  # fmt: skip

    def on_results(self, results: Iterable[Result]) -> str:
        return "" if self.plan is None else self.plan.limit.ended_by()

    def reporting(self) -> Reporting:
        return Reporting(files=("trials.csv",))

    def _gang(self, trial: Trial) -> Gang | None:
        if self.plan is None or self.plan.gang_of is None:
            return None
        return self.plan.gang_of(self.task.problem.space.params_of(trial.params))

    def examine(self, trial: Trial, evaluation: Evaluation, kept: Evaluation | None) -> None:
        """An objective that returns what it must not ends the search; one without a value in its first trial."""
        refuse_faults(evaluation)
        failure, segment = evaluation, trial.segment
        if not evaluation.failed and kept is not None:
            try:
                require_same_names(evaluation.values, kept.values)
            except InvalidReturnValue as invalid:
                failure = invalid.failure(trial.key)
        first = segment.number == 0 and not segment.stage
        if failure.ending.fault is Fault.OBJECTIVE or (failure.ending.fault is Fault.NO_VALUE and first):
            raise UsageError(f"{failure.error} (trial {segment.number})")

    def study(self, outcomes: Sequence[Outcome], folder: Path | None) -> SearchStudy:
        if self.plan is not None and self.plan.reported:
            return self.plan.reported[0]
        problem = self.task.problem
        trials, settings = records(outcomes, problem.space.params_of), vars(self)
        return SearchStudy(trials, problem.objectives, folder, window_of({"kind": self.kind, "settings": settings}))

    def report(self, outcomes: Sequence[Outcome], conclusions: Sequence[Any], data: Data, folder: Path) -> None:
        assert self.plan is not None
        self.plan.reported[:] = [study := self.study(outcomes, folder)]
        study.write(folder / "trials.csv")
        print(printable_lines(study.report()))
        if (by := self.plan.limit.reached) and not all(conclusions):
            print(f"stopped by {by}: the same call continues it")


class _SchedulerSource:
    """A scheduler, as the loop of the window asks and tells it, and what the callbacks of the search hear."""

    is_cut = False  # the engine knows a search's time

    def __init__(self, scheduler: TrialScheduler, problem: Problem, plan: LeadersPart):
        self._scheduler, self._problem, self._plan = scheduler, problem, plan
        self.least = 0 if scheduler.at_once else problem.together or 1
        self._numbers = Counter[str]()  # how many trials of each kind were asked for
        self._n_open, self._stages = 0, dict[int, list[Outcome]]()  # of trials that may go on, by their numbers
        self._study = SearchStudy([], problem.objectives, plan.results)
        self._records: dict[int, TrialRecord] = {}
        self._stop = False  # said by a callback

    def ask(self, most: int) -> list[Proposed]:
        least = self.least if self._problem.together and self.least else most
        trials = [] if self._stop else self._scheduler.ask(least)
        self._n_open += len(trials)
        if not self._n_open:  # it has ended, and what was pruned goes on no more
            for number in sorted(self._stages):
                self._call_back(number)
        costs = ((batch, batch[0].segment) for batch in self._groups(trials))
        return [Proposed(batch, max(1, first.until - first.start)) for batch, first in costs]

    def tell(self, proposed: Proposed, results: Sequence[Result]) -> bool:
        for trial, result in zip(proposed.batch, results, strict=True):
            self._scheduler.tell(trial, Feedback.of(result, self._problem))
            self._n_open -= 1
            if self._plan.callbacks:
                self._stages.setdefault(number_of(trial), []).append(Outcome(trial, result))
                if trial.segment.last or result.failed:
                    self._call_back(number_of(trial))
        # Of whole trials that were all asked for, the study is as if no later one had run.
        return self._stop and not self.least and proposed.batch[0].segment.stage is None

    def _call_back(self, number: int) -> None:
        """Tell the callbacks of a trial that has ended."""
        (self._records[number],) = records(self._stages.pop(number), self._problem.space.params_of)
        self._study.trials = list(self._records.values())
        for callback in self._plan.callbacks:
            self._stop |= bool(callback(self._study, self._records[number]))

    def _groups(self, trials: Sequence[Trial]) -> list[Batch]:
        """Trials as they are evaluated: those that are alike, `together` at most; without groups each by itself.

        The place of a trial follows from how many of its kind were asked for before it, since bits may depend on it.
        """
        together = self._problem.together
        if not together:
            return [(trial,) for trial in trials]
        groups, filling = list[list[Trial]](), dict[str, list[Trial]]()
        for trial in trials:
            kind = self._kind(trial)
            if len(filling.get(kind, ())) in (0, together):
                groups.append([])
                filling[kind] = groups[-1]
            segment = trial.segment._replace(place=self._numbers[kind] % together)
            filling[kind].append(Trial(trial.key, trial.params, segment))
            self._numbers[kind] += 1
        return [tuple(group) for group in groups]

    def _kind(self, trial: Trial) -> str:
        """What `alike` says of a trial, as a text in which 1, 1.0, True and "1" differ."""
        if self._plan.alike is None:
            return ""
        fix = f"for trial {number_of(trial)}: give a number, a text or a tuple of them for all parameters"
        try:
            kind = self._plan.alike(self._problem.space.params_of(trial.params))
        except Exception as error:
            raise UsageError(f"alike raised {error!r} {fix}") from error
        if not _is_plain(kind):
            raise UsageError(f"alike returned a {type(kind).__name__} {fix}")
        return repr(kind)


def _is_plain(kind: Any) -> bool:
    """Whether it is a number, a text, None or a tuple of them."""
    return all(map(_is_plain, kind)) if isinstance(kind, tuple) else isinstance(kind, str | numbers.Number | None)


def problem_of(
    space: Any,
    *,
    n_trials: int | None,
    minimize: str | Sequence[str],
    maximize: str | Sequence[str],
    seed: int,
    enqueue: Iterable[Mapping[str, Any]] = (),
    staged: bool = False,
) -> Problem:
    """What is searched, from the arguments of `search` of the same names. Raises UsageError for one of no use."""
    names = []
    for many, up in ((minimize, False), (maximize, True)):
        some = [many] if isinstance(many, str) else many
        if not isinstance(some, Sequence) or not all(isinstance(name, str) and name for name in some):
            raise UsageError(f"{'maximize' if up else 'minimize'}={many!r}: give the name of a value, or several names")
        names += [(name, up) for name in some]
    if not names:
        raise UsageError('say what is searched for: minimize="loss" or maximize="accuracy"')
    twice = next((name for name, _ in names if [other for other, _ in names].count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{twice} is named twice in minimize and maximize: keep one")
    require_whole("n_trials", n_trials, 1)
    require_whole("seed", seed, 0)
    several = isinstance(enqueue, Iterable) and not isinstance(enqueue, Mapping)
    points: tuple[Any, ...] = tuple(enqueue) if several else (None,)
    if not all(isinstance(point, Mapping) for point in points):
        raise UsageError(f"enqueue={shown(enqueue)}: give a list of points, each with its parameters by name")
    space = space if isinstance(space, Space) else Space(space)
    return Problem(space, dict(names), int(seed), None if n_trials is None else int(n_trials), 1, staged, points)


def require_whole(name: str, value: Any, low: int) -> None:
    """Raise UsageError unless the argument of that name is None or a whole number of at least `low`."""
    if value is not None and (not isinstance(value, numbers.Integral) or value < low):
        raise UsageError(f"{name}={value!r}: give a whole number of at least {low}")


def described(objectives: Mapping[str, bool]) -> tuple[str, ...]:
    """For the journal's header."""
    return tuple(f"{'max' if up else 'min'}imize {name}" for name, up in objectives.items())
