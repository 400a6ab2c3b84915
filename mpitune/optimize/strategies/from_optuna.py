"""Optuna's samplers: TPE, Gaussian processes, CMA-ES, NSGA-II, and any other, for a declared space.

The study that they see is that of `view.py`, on rank 0, as where an objective of Optuna asks for its parameters: random
numbers come from the search's seed and the number of the trial. It is made again from the journal.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from mpitune.errors import UsageError
from mpitune.optimize.spaces import Choice, Point
from mpitune.optimize.spaces.optunas import optuna, suggested, told
from mpitune.optimize.strategies.base import Feedback, Problem, Sampler, said_of
from mpitune.optimize.strategies.plain import Sampling

MOST_DRAWS = 100  # points that a sampler proposes in vain before one is drawn at random that fulfils the constraints


@dataclass(frozen=True)
class Optuna(Sampling):
    """A sampler of Optuna: its name in `optuna.samplers`, or one that was made.

    Attributes:
        sampler: "TPESampler" or `optuna.samplers.TPESampler(multivariate=True)`.
    """

    sampler: Any

    def describe(self, problem: Problem) -> str:
        return f"Optuna({self.sampler if isinstance(self.sampler, str) else said_of(self.sampler)})"

    def made(self, problem: Problem) -> Any:
        """The sampler. Raises UsageError if it does not fit, or needs a package that is not installed."""
        library = optuna()
        if isinstance(self.sampler, str):
            # So that open points are not all the same.
            how = {"constant_liar": True} if self.sampler == "TPESampler" and problem.window > 1 else {}
            try:
                with warnings.catch_warnings(action="ignore", category=library.exceptions.ExperimentalWarning):
                    made = getattr(library.samplers, self.sampler)(**how)
            except (AttributeError, TypeError) as error:
                raise UsageError(f"Optuna has no sampler {self.sampler!r} that needs no more: {error}") from error
        elif isinstance(self.sampler, library.samplers.BaseSampler):
            made = copy.deepcopy(self.sampler)
        else:
            raise UsageError(
                f"{self.sampler!r} is not a sampler of Optuna: give one such as optuna.samplers.TPESampler()"
            )
        if constraints_func_of(made) is not None:
            raise UsageError("constraints_func is for study.optimize of Optuna: here let such a trial return inf")
        goes_through_all = library.samplers.GridSampler, library.samplers.BruteForceSampler
        if isinstance(getattr(made, "_base_sampler", made), goes_through_all):
            raise UsageError(f"{type(made).__name__} goes through all points: use strategy='grid', which does so too")
        if type(made).__name__ == "CmaEsSampler":
            problem.requires("CMA-ES")
            numbers = [n for n, part in problem.space.parts.items() if not isinstance(part, Choice)]
            if len(numbers) < 2 or any(name in problem.space.conditions for name in numbers):
                raise UsageError("CMA-ES needs two or more numbers without conditions: use strategy='tpe'")
        for sampler, module in (("CmaEsSampler", "cmaes"), ("GPSampler", "torch")):
            if type(made).__name__ == sampler and find_spec(module) is None:
                raise UsageError(f"{sampler} needs {module}: pip install {module}, or use another strategy")
        return made

    def draws(self, problem: Problem) -> Sampler:
        return _AskedStudy(problem, self.made(problem))


class _AskedStudy(Sampler):
    """An Optuna study that is asked for each trial and told of each."""

    def __init__(self, problem: Problem, sampler: Any):
        from mpitune.optimize.strategies.view import View, name_of

        library, self._problem = optuna(), problem
        ways = [library.study.StudyDirection(2 if up else 1) for up in problem.objectives.values()]
        nothing = library.pruners.NopPruner()
        self._view = View(name_of(problem.seed), ways, sampler, nothing, problem.seed, keeps=True)
        self._view.several = problem.window > 1
        self._states = library.trial.TrialState
        self._open: dict[int, Any] = {}

    def point(self, index: int) -> Point | None:
        space = self._problem.space
        for _ in range(MOST_DRAWS if space.constraints else 1):
            if self._view.stopped:
                return None
            trial, point = self._begun()
            if space.allows(point):
                self._open[index] = trial
                return point
            self._view.tell(trial.number, None, self._states.FAIL)
        rng = self._problem.rng(f"trial/{index}")
        return space.draw(lambda: rng.random(space.dimensions))

    def _begun(self, fixed: Point | None = None) -> tuple[Any, Point]:
        """The study's next trial with its point; given: one that the study's sampler has not drawn."""
        space = self._problem.space
        known = {} if fixed is None else {"system_attrs": {"fixed_params": told(space.parts, fixed)["params"]}}
        point: Point = {}
        with _quiet():
            number = len(self._view.trials)
            trial = self._view.trial(number, self._view.begin(number, **known))
            for name, part in space.parts.items():
                if space.is_active(name, point) if fixed is None else name in fixed:
                    point[name] = suggested(trial, name, part)
                    if not part.takes(point[name]):
                        raise UsageError(f"the sampler draws {name} = {point[name]}, not in {part}: correct it")
        return trial, point

    def tell(self, index: int, point: Point, feedback: Feedback) -> None:
        states, trial = self._states, self._open.pop(index, None) or self._begun(point)[0]
        with _quiet():
            for step, loss in feedback.steps.items() if len(self._problem.objectives) == 1 else ():
                trial.report(*self._problem.values([loss]), step)
            for name, value in feedback.user_attrs.items():
                trial.set_user_attr(name, value)
        state = states.FAIL if feedback.losses is None else states.PRUNED if feedback.pruned else states.COMPLETE
        values = self._problem.values(feedback.losses or ())
        self._view.tell(trial.number, values if state == states.COMPLETE else None, state)


def finite(constraints: Sequence[float]) -> tuple[float, ...]:
    """What a journal can hold: NaN is 1, a violation, infinity the largest float."""
    return tuple(map(float, np.nan_to_num([*map(float, constraints)], nan=1.0)))


def constraints_func_of(thing: Any) -> Any:
    """The `constraints_func` of a sampler, or of the sampler within a strategy; None without one."""
    inner = getattr(thing, "sampler", getattr(thing, "_base_sampler", None))
    function = getattr(thing, "_constraints_func", None)
    return function if inner is None or function is not None else constraints_func_of(inner)


def _quiet() -> Any:
    """Without warnings of values that are infinite, or small populations."""
    return warnings.catch_warnings(action="ignore")
