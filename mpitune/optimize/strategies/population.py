"""Population based training: bad members go on from the checkpoint of a good one, with other parameters.

Source: M. Jaderberg et al., "Population based training of neural networks", arXiv:1711.09846, 2017.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mpitune.errors import UsageError
from mpitune.optimize.spaces import Choice, Point
from mpitune.optimize.strategies.base import Feedback, Problem, Strategy, TrialScheduler, number_of, trial_of
from mpitune.optimize.strategies.plain import Points, Random
from mpitune.trial import Trial


@dataclass(frozen=True)
class PopulationBased(Strategy):
    """A population of n_trials members, each trained for max_steps in generations.

    The objective yields its values after each step and reads its checkpoint from `trial.folder` where `trial.start`
    is above 0: that of another member, if its own lagged behind.

    Attributes:
        max_steps: Steps of each member.
        every: Steps of a generation.
        quantile: Share of the members that are replaced after each generation, by as large a share of the best ones.
        factor: A number is multiplied or divided by it.
        resample: Probability that a parameter is drawn at random instead.
    """

    max_steps: int
    every: int = 1
    quantile: float = 0.25
    factor: float = 1.2
    resample: float = 0.25

    def __post_init__(self) -> None:
        if not 1 <= self.every <= self.max_steps:
            raise UsageError(f"{self}: give 1 <= every <= max_steps")
        if not 0 < self.quantile <= 0.5 or self.factor <= 1 or not 0 <= self.resample <= 1:
            raise UsageError(f"{self}: give 0 < quantile <= 0.5, a factor above 1 and 0 <= resample <= 1")

    def begin(self, problem: Problem) -> TrialScheduler:
        problem.requires("PopulationBased", staged=True)
        if problem.n_trials is None or problem.n_trials < 2:
            raise UsageError("n_trials is the number of members of the population: give at least 2")
        if problem.space.conditions or problem.space.constraints:
            raise UsageError("PopulationBased needs a space without conditions and constraints")
        return _Population(self, problem)

    def describe(self, problem: Problem) -> str:
        return f"{super().describe(problem)}, {problem.n_trials} members"


class _Population(TrialScheduler):
    at_once = True

    def __init__(self, how: PopulationBased, problem: Problem):
        self._how, self._problem = how, problem
        self._points = dict(Points(Random().draws(problem), problem).take(problem.n_trials or 0))
        self._parents: dict[int, str] = dict.fromkeys(self._points, "")
        self._losses: dict[int, float] = {}
        self._generation = 0

    def ask(self, most: int) -> list[Trial]:
        start = self._generation * self._how.every
        if start >= self._how.max_steps:
            return []
        if self._generation:
            self._replace()
        until = min(start + self._how.every, self._how.max_steps)
        stage, last = self._generation, until == self._how.max_steps
        self._generation += 1
        return [
            trial_of(number, point, stage, last=last, start=start, until=until, parent=self._parents[number])
            for number, point in self._points.items()
        ]

    def tell(self, trial: Trial, feedback: Feedback) -> None:
        self._losses[number_of(trial)] = feedback.loss

    def _replace(self) -> None:
        """The last take over the parameters and checkpoints of the first, and explore from there."""
        before = self._generation - 1
        rng = self._problem.rng(f"generation/{self._generation}")
        order = sorted(self._points, key=lambda number: (self._losses[number], number))
        n = max(1, math.floor(self._how.quantile * len(order)))
        leaders = [number for number in order[:n] if self._losses[number] < math.inf]
        self._parents = {number: f"t{number:06}/{before}" for number in self._points}
        for number in order[-n:]:
            if not leaders or number in leaders:
                continue
            leader = leaders[int(rng.integers(len(leaders)))]
            self._parents[number] = f"t{leader:06}/{before}"
            self._points[number] = self._explored(self._points[leader], rng)

    def _explored(self, point: Point, rng: np.random.Generator) -> Point:
        explored: Point = {}
        for name, part in self._problem.space.parts.items():
            up, redrawn, u = rng.random() < 0.5, rng.random() < self._how.resample, float(rng.random())
            value = point[name]
            if redrawn or isinstance(part, Choice):
                explored[name] = part.at(u) if redrawn else value
                continue
            moved = part.on_step(float(value) * (self._how.factor if up else 1 / self._how.factor))
            explored[name] = part.drawn(max(part.low, min(part.high, moved)))
        return explored
