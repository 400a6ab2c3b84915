"""Trials that go on only while they lead: successive halving, Hyperband, ASHA.

A trial is evaluated in stages of growing length, and goes on from the checkpoint of the stage before. An objective that
keeps none is trained from its beginning in each stage, which costs at most eta / (eta - 1) times as much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mpitune.errors import UsageError
from mpitune.optimize.strategies.base import Feedback, Problem, Sampler, Strategy, TrialScheduler, number_of, trial_of
from mpitune.optimize.strategies.plain import Points, Sampling
from mpitune.trial import Trial


@dataclass(frozen=True)
class Staged(Strategy):
    """The common part of the strategies that stop trials early.

    Attributes:
        max_steps: Steps of a whole trial.
        min_steps: Steps of the first stage.
        eta: From stage to stage a trial has eta times as many steps.
        sampler: Draws the points: a name, or a strategy that evaluates whole trials, such as `TPE()`.
    """

    max_steps: int
    min_steps: int = 1
    eta: int = 3
    sampler: Any = "random"

    def __post_init__(self) -> None:
        if not 1 <= self.min_steps <= self.max_steps:
            raise UsageError(f"{self}: give 1 <= min_steps <= max_steps")
        if self.eta < 2:
            raise UsageError(f"{self}: give an eta of at least 2")

    def rungs(self) -> list[int]:
        """Steps at the end of each stage, the last of them max_steps."""
        ends = [self.min_steps]
        while ends[-1] * self.eta < self.max_steps:
            ends.append(ends[-1] * self.eta)
        return ends if ends[-1] == self.max_steps else [*ends, self.max_steps]

    def points(self, problem: Problem) -> Points:
        """The trials to begin; raises UsageError where the strategy does not fit."""
        problem.requires(type(self).__name__, staged=True)
        return Points(self.draws(problem), problem, staged=True)

    def draws(self, problem: Problem) -> Sampler:
        """What draws their points."""
        if not isinstance(self.sampler, Sampling):
            raise UsageError(f"{type(self).__name__}: its sampler draws points, such as 'random' or 'tpe'")
        drawn: Sampler = self.sampler.draws(problem)
        return drawn


@dataclass(frozen=True)
class Halving(Staged):
    """Successive halving: after each stage the best third (1 / eta) of the trials goes on.

    Source: K. Jamieson and A. Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization",
    AISTATS 2016.
    """

    def describe(self, problem: Problem) -> str:
        return f"{super().describe(problem)}, {problem.n_trials} trials"  # which decide how many go on

    def begin(self, problem: Problem) -> TrialScheduler:
        points = self.points(problem)
        if problem.n_trials is None:
            raise UsageError("n_trials is missing: give the number of trials that begin")
        return _Bracket(points, self.rungs(), self.eta, problem.n_trials)


@dataclass(frozen=True)
class Hyperband(Staged):
    """Successive halving with several lengths of the first stage, since losses may cross late.

    The brackets are those of L. Li et al., "Hyperband: a novel bandit-based approach to hyperparameter optimization",
    JMLR 18, 2018. They are repeated until there are n_trials, and each costs about the same. One
    begins while the one before waits. With sampler="tpe" it is BOHB (S. Falkner et al., ICML 2018).
    """

    def describe(self, problem: Problem) -> str:
        return f"{super().describe(problem)}, {problem.n_trials} trials"

    def begin(self, problem: Problem) -> TrialScheduler:
        points, rungs = self.points(problem), self.rungs()
        left = problem.n_trials or 0
        if not left:
            raise UsageError("n_trials is missing: give the number of trials that begin in all brackets together")
        brackets: list[TrialScheduler] = []
        while left:
            for s in range(len(rungs) - 1, -1, -1):
                n = min(left, math.ceil(len(rungs) / (s + 1) * self.eta**s))
                if n:
                    brackets.append(_Bracket(points, rungs[len(rungs) - 1 - s :], self.eta, n))
                left -= n
        return _OneByOne(brackets)


class _Bracket(TrialScheduler):
    """One successive halving."""

    def __init__(self, points: Points, rungs: Sequence[int], eta: int, n: int):
        self._points, self._rungs, self._eta, self._n = points, rungs, eta, n
        self._stage, self._begun, self._open = 0, 0, 0
        self._feedback: list[tuple[Trial, Feedback]] = []

    def ask(self, most: int) -> list[Trial]:
        if self._stage == 0 and self._begun < self._n:
            most = min(most, self._n - self._begun) if self._points.sampler.adaptive else self._n
            new = [_staged(number, point, 0, self._rungs) for number, point in self._points.take(most)]
            self._begun = self._begun + len(new) if new else self._n
            self._open += len(new)
            if new:
                return new
        if self._open or not self._feedback or self._stage == len(self._rungs) - 1:
            return []
        self._stage += 1
        keep = max(1, len(self._feedback) // self._eta)
        order = sorted((pair for pair in self._feedback if pair[1].losses is not None), key=lambda pair: pair[1].loss)
        going, ended = order[:keep], order[keep:]
        for trial, feedback in ended:
            self._points.tell(trial, replace(feedback, pruned=True))
        self._feedback = []
        trials = sorted((trial for trial, feedback in going if feedback.loss < math.inf), key=number_of)
        self._open = len(trials)
        return [_staged(number_of(trial), trial.params, self._stage, self._rungs) for trial in trials]

    def tell(self, trial: Trial, feedback: Feedback) -> None:
        self._open -= 1
        self._feedback.append((trial, feedback))
        if trial.segment.last or feedback.losses is None:
            self._points.tell(trial, feedback)


class _OneByOne(TrialScheduler):
    """Schedulers of which each begins when the one before has ended, or waits for what it has asked for."""

    def __init__(self, schedulers: list[TrialScheduler]):
        self._schedulers = schedulers
        self._of: dict[str, TrialScheduler] = {}

    def ask(self, most: int) -> list[Trial]:
        for scheduler in self._schedulers:
            if trials := scheduler.ask(most):
                self._of.update((trial.key, scheduler) for trial in trials)
                return trials
        return []

    def tell(self, trial: Trial, feedback: Feedback) -> None:
        self._of.pop(trial.key).tell(trial, feedback)


@dataclass(frozen=True)
class ASHA(Staged):
    """Asynchronous successive halving: a trial goes on as soon as it is among the best 1 / eta of its stage so far.

    Where none comes to its end so, the best of the highest stage does.
    Source: L. Li et al., "A system for massively parallel hyperparameter tuning", MLSys 2020.
    """

    def begin(self, problem: Problem) -> TrialScheduler:
        return _Promoting(self.points(problem), self.rungs(), self.eta)


class _Promoting(TrialScheduler):
    """Decides for each trial alone whether it goes on; the window is filled with new trials."""

    def __init__(self, points: Points, rungs: Sequence[int], eta: int):
        self._points, self._rungs, self._eta = points, rungs, eta
        self._open = set[str]()
        self._feedback: list[list[tuple[Trial, Feedback]]] = [[] for _ in rungs]
        self._promoted: list[set[int]] = [set() for _ in rungs]

    def ask(self, most: int) -> list[Trial]:
        trials: list[Trial] = []
        while len(trials) < most:
            trial = self._onward()
            if trial is None and (new := self._points.take(1)):
                trial = _staged(*new[0], 0, self._rungs)
            if trial is None and not self._open and all(told.losses is None for _, told in self._feedback[-1]):
                trial = self._onward(1)
            if trial is None:
                break
            trials.append(trial)
            self._open.add(trial.key)
        return trials

    def tell(self, trial: Trial, feedback: Feedback) -> None:
        self._open.discard(trial.key)
        self._feedback[trial.segment.stage or 0].append((trial, feedback))
        if trial.segment.last or feedback.losses is None:
            self._points.tell(trial, feedback)

    def _onward(self, divisor: int = 0) -> Trial | None:
        """The next stage of a trial among the best, one in `divisor` of each stage; 0: in eta."""
        for stage in range(len(self._rungs) - 2, -1, -1):
            for trial in self._best(stage, len(self._feedback[stage]) // (divisor or self._eta)):
                self._promoted[stage].add(number_of(trial))
                return _staged(number_of(trial), trial.params, stage + 1, self._rungs)
        return None

    def _best(self, stage: int, most: int) -> list[Trial]:
        """Those among the first `most` of a stage that have not gone on and may."""
        ranked = sorted(self._feedback[stage], key=lambda pair: (pair[1].loss, number_of(pair[0])))[:most]
        gone = self._promoted[stage]
        return [trial for trial, told in ranked if number_of(trial) not in gone and told.loss < math.inf]


def _staged(number: int, point: Any, stage: int, rungs: Sequence[int]) -> Trial:
    start = rungs[stage - 1] if stage else 0
    return trial_of(number, point, stage, last=stage == len(rungs) - 1, start=start, until=rungs[stage])
