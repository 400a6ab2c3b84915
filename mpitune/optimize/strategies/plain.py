"""Strategies that evaluate every trial whole, and the numbered points that all strategies begin trials with.

Those here depend on the seed and the number of the trial alone: grid, random, Sobol.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from mpitune.errors import UsageError
from mpitune.optimize.spaces import Point
from mpitune.optimize.strategies.base import Feedback, Problem, Sampler, Strategy, TrialScheduler, number_of, trial_of
from mpitune.trial import Trial


class Sampling(Strategy):
    """A strategy that evaluates every trial whole."""

    @abstractmethod
    def draws(self, problem: Problem) -> Sampler:
        """What draws the points; raises UsageError where it does not fit the space."""

    def begin(self, problem: Problem) -> TrialScheduler:
        points = Points(self.draws(problem), problem)
        return WholeTrials(points) if points.sampler.adaptive else FixedTrials(points)


class Points:
    """Numbered points: those that were enqueued, then those of a sampler, up to `n_trials`.

    A sampler that learns begins with what earlier studies know. Its first trials are those that have their result as
    soon as they are asked for, unless trials here are `staged`; it hears of the others.
    """

    def __init__(self, sampler: Sampler, problem: Problem, staged: bool = False):
        self.sampler, self.n_trials = sampler, problem.n_trials
        self._enqueued = [problem.completed(values, f"enqueued/{n}") for n, values in enumerate(problem.enqueued)]
        for n, (point, feedback, again) in enumerate(problem.known() if sampler.adaptive else ()):
            if again and not staged:
                self._enqueued.append(problem.completed(problem.space.params_of(point), f"known/{n}"))
            else:
                sampler.tell(-1, point, feedback)
        self._next = 0
        if self.n_trials is None and not sampler.finite:
            raise UsageError("n_trials is missing: say how many trials to run, such as n_trials=100")

    def take(self, most: int) -> list[tuple[int, Point]]:
        """The next at most `most` numbers with their points."""
        taken: list[tuple[int, Point]] = []
        while len(taken) < most and (self.n_trials is None or self._next < self.n_trials):
            index = self.index_of(self._next)
            if (point := self._enqueued[self._next] if index < 0 else self.sampler.point(index)) is None:
                break
            taken.append((self._next, point))
            self._next += 1
        return taken

    def tell(self, trial: Trial, feedback: Feedback) -> None:
        """Tell the sampler what became of a whole trial."""
        self.sampler.tell(self.index_of(number_of(trial)), dict(trial.params), feedback)

    def index_of(self, number: int) -> int:
        """By which the sampler knows a trial: below 0 for one that was enqueued."""
        return number - len(self._enqueued)


class WholeTrials(TrialScheduler):
    """Whole trials, as many at a time as are asked for."""

    def __init__(self, points: Points):
        self._points = points

    def ask(self, most: int) -> list[Trial]:
        return [trial_of(number, point) for number, point in self._points.take(most)]

    def tell(self, trial: Trial, feedback: Feedback) -> None:
        self._points.tell(trial, feedback)


class FixedTrials(WholeTrials):
    """Whole trials that depend on nothing, all at once."""

    at_once = True

    def __init__(self, points: Points):
        super().__init__(points)
        self._first = super().ask(1)  # now, so that a space without allowed points is refused

    def ask(self, most: int) -> list[Trial]:
        first, self._first = self._first, []
        return first + super().ask(sys.maxsize)


@dataclass(frozen=True)
class Grid(Sampling):
    """All combinations of values.

    Attributes:
        points: Number of values to try of each range without a step.
    """

    points: int | None = None

    def draws(self, problem: Problem) -> Sampler:
        if self.points is not None and self.points < 1:
            raise UsageError(f"{self}: give at least one point")
        return _InOrder(problem.space.grid(self.points), finite=True)


@dataclass(frozen=True)
class Random(Sampling):
    """Points drawn independently of each other."""

    def draws(self, problem: Problem) -> Sampler:
        return _PointSampler(problem)


@dataclass(frozen=True)
class Sobol(Sampling):
    """Points of a Sobol sequence, scrambled by the seed (A. B. Owen, 1998; scipy.stats.qmc)."""

    def draws(self, problem: Problem) -> Sampler:
        from scipy.stats import qmc

        engine = qmc.Sobol(d=problem.space.dimensions, scramble=True, seed=problem.rng("Sobol"))

        def points() -> Iterator[Point]:
            while True:
                yield problem.space.draw(lambda: engine.random(1)[0])

        return _InOrder(points(), finite=False)


class _PointSampler(Sampler):
    adaptive = False

    def __init__(self, problem: Problem):
        self._problem = problem

    def point(self, index: int) -> Point:
        rng = self._problem.rng(f"trial/{index}")
        return self._problem.space.draw(lambda: rng.random(self._problem.space.dimensions))


class _InOrder(Sampler):
    """Points of a sequence: one that begins later passes by those before it."""

    adaptive = False

    def __init__(self, points: Iterator[Point], finite: bool):
        self._points, self._passed, self.finite = points, 0, finite

    def point(self, index: int) -> Point | None:
        while self._passed < index:
            next(self._points, None)
            self._passed += 1
        self._passed += 1
        return next(self._points, None)
