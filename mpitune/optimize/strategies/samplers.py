"""Points that depend on the seed and the number of the trial alone: grid, random, Sobol, Halton."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mpitune.errors import UsageError
from mpitune.optimize.spaces import Point
from mpitune.optimize.strategies.base import Problem, Sampler
from mpitune.optimize.strategies.plain import Sampling


@dataclass(frozen=True)
class Grid(Sampling):
    """All combinations of values.

    Attributes:
        points: Number of values to try of each range without a step; one number, or numbers by name.
    """

    points: int | Mapping[str, int] | None = None

    def draws(self, problem: Problem) -> Sampler:
        numbers = self.points.values() if isinstance(self.points, Mapping) else [self.points]
        if any(n is not None and n < 1 for n in numbers):
            raise UsageError(f"{self}: give at least one point")
        return _InOrder(problem.space.grid(self.points), finite=True)


@dataclass(frozen=True)
class Random(Sampling):
    """Points drawn independently of each other."""

    def draws(self, problem: Problem) -> Sampler:
        return _Drawn(problem)


@dataclass(frozen=True)
class Sobol(Sampling):
    """Points of a Sobol sequence, scrambled by the seed (A. B. Owen, 1998; scipy.stats.qmc)."""

    def draws(self, problem: Problem) -> Sampler:
        return _sequence(problem, "Sobol")


@dataclass(frozen=True)
class Halton(Sampling):
    """Points of a Halton sequence, scrambled by the seed (A. B. Owen, 2017; scipy.stats.qmc)."""

    def draws(self, problem: Problem) -> Sampler:
        return _sequence(problem, "Halton")


class _Drawn(Sampler):
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


def _sequence(problem: Problem, name: str) -> Sampler:
    from scipy.stats import qmc

    engine: Any = getattr(qmc, name)(d=problem.space.dimensions, scramble=True, seed=problem.rng(name))

    def points() -> Iterator[Point]:
        while True:
            yield problem.space.draw(lambda: engine.random(1)[0])

    return _InOrder(points(), finite=False)
