"""What a strategy is: something that proposes trials, or stages of them, and is told what became of each.

    Strategy.begin(problem) -> its trial scheduler
    TrialScheduler.ask(most) -> trials; none: the scheduler has ended, or waits for what it has asked for
    TrialScheduler.tell(trial, feedback), in an order that is the same on any layout

What a worker does at a time is a `Trial` of the engine: a whole one, or a stage of it (steps up to a number). Its
`segment` says which, its parameters are the point, `trial_of` makes it.
A *sampler* draws points; a strategy that evaluates whole trials needs nothing more (`plain.py`), others take one.
Everything here runs on rank 0 and depends on the seed and on what was told, never on time or place.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

from mpitune.errors import UsageError, named
from mpitune.identity import header_text
from mpitune.optimize.spaces import Point, Space
from mpitune.trial import PRUNED, Result, Segment, Trial, seed_of

OPTUNA = ("optuna.samplers", "optuna.pruners", "optuna.search_space")
OWN_FIELDS = ("_seed", "_mpitune")  # attributes that are no settings
RANDOM = ("LazyRandomState", "RandomState", "Generator", "Random")  # nor are those of these classes


@dataclass(frozen=True)
class Problem:
    """The space, the goal and the limits of a search."""

    space: Space
    objectives: Mapping[str, bool]  # names of values; True for those to be maximized
    seed: int = 0
    n_trials: int | None = None  # the most; None for as many as the strategy has
    window: int = 1  # trials, or stages of them, that are open at a time
    staged: bool = False  # whether the objective can stop after some steps and go on later
    enqueued: Sequence[Mapping[str, Any]] = ()  # points to begin with
    # Of earlier studies, for a sampler that learns, each with whether one that is asked for has its result.
    known: Callable[[], Iterable[tuple[Point, Feedback, bool]]] = tuple
    together: int = 0  # trials that are evaluated as one; 0: each by itself

    def rng(self, key: str) -> np.random.Generator:
        """The random stream of the thing called `key`."""
        return np.random.default_rng(seed_of(self.seed, key))

    def completed(self, values: Mapping[str, Any], key: str) -> Point:
        """The point of these values, and of numbers of the stream `key` for what they lack. Raises UsageError."""
        rng, dimensions = self.rng(key), self.space.dimensions
        return self.space.drawn(values, lambda: rng.random(dimensions))

    def losses(self, values: Mapping[str, float]) -> tuple[float, ...]:
        """The objectives, all to be minimized."""
        try:
            return tuple(-values[name] if maximized else values[name] for name, maximized in self.objectives.items())
        except KeyError as error:  # in a journal that another program wrote
            raise UsageError(f"a known trial has no value {error.args[0]}: it has {named(values)}") from error

    def values(self, losses: Iterable[float]) -> list[float]:
        """The objectives as they came, of the first losses."""
        return [-loss if up else loss for loss, up in zip(losses, self.objectives.values(), strict=False)]

    def requires(self, what: str, *, staged: bool = False) -> None:
        """Raise UsageError for several objectives, and for one without steps if the strategy needs them."""
        if len(self.objectives) > 1:
            names = ", ".join(self.objectives)
            raise UsageError(f"{what} compares one value, not {names}: use strategy='nsga2', 'tpe' or 'random'")
        if staged and not self.staged:
            raise UsageError(f"{what} stops trials early, so the command must have {{until}}, the step to stop after")


def trial_of(number: int, point: Point, stage: int | None = None, **how: Any) -> Trial:
    """The trial of this number, or a stage of it; `how` is what else its segment says, see `mpitune.trial.Segment`."""
    key = f"t{number:06}" + ("" if stage is None else f"/{stage}")
    return Trial(key, point, Segment(number, stage=stage, **how))


def number_of(trial: Trial) -> int:
    """Of a trial of a search. Raises ValueError for any other."""
    if trial.segment.number is None:
        raise ValueError(f"trial {trial.key} has no number")
    return trial.segment.number


@dataclass(frozen=True)
class Feedback:
    """What became of a trial, or a stage of it.

    Attributes:
        losses: of each objective, to be minimized, infinite ones too; None where it failed.
        steps: the first loss after each step, as far as the objective says it.
        user_attrs: what the objective has said of the trial by `set_user_attr`.
        pruned: whether the trial was stopped early.
        for_door: what else the objective has said, see `mpitune.trial.Ending`.
    """

    losses: tuple[float, ...] | None
    steps: Mapping[int, float] = field(default_factory=dict)
    user_attrs: Mapping[str, Any] = field(default_factory=dict)
    pruned: bool = False
    for_door: Any = None

    @classmethod
    def of(cls, result: Result, problem: Problem, pruned: bool = False) -> Feedback:
        if result.failed:
            return cls(None)
        name, sign = next((name, -1 if maximized else 1) for name, maximized in problem.objectives.items())
        steps = {step: sign * values[name] for step, values in result.ending.steps.items() if name in values}
        pruned = pruned or result.ending.state == PRUNED
        return cls(problem.losses(result.values), steps, result.user_attrs, pruned, result.ending.for_door)

    @property
    def loss(self) -> float:
        """The first loss; infinite where it failed, so that it never wins."""
        return math.inf if self.losses is None else self.losses[0]


def said_of(part: Any) -> str:
    """A text of a strategy, sampler or pruner, also of Optuna's, that another one of other settings does not have."""
    if isinstance(part, Strategy) and is_dataclass(part):
        known = {field.name: said_of(getattr(part, field.name)) for field in fields(part) if field.repr}
        return f"{type(part).__qualname__}({', '.join(f'{name}={text}' for name, text in known.items())})"
    if (
        hasattr(part, "__dict__")
        and not isinstance(part, type)
        and any(kind.__module__.startswith(OPTUNA) for kind in type(part).__mro__)
    ):
        usual: dict[str, str] = {}
        with suppress(Exception), warnings.catch_warnings(action="ignore"):  # of its own constructor
            usual = _settings(type(part)()) if type(part).__module__.startswith(OPTUNA) else {}
        arguments = (f"{n.lstrip('_')}={text}" for n, text in _settings(part).items() if usual.get(n) != text)
        return type(part).__name__ + (f"({words})" if (words := ", ".join(arguments)) else "")
    return header_text(part)


def _settings(part: Any) -> dict[str, str]:
    """The attributes of a part of Optuna, without its random numbers, which follow from the study's seed."""
    return {
        n: said_of(value)
        for n, value in sorted(vars(part).items())
        if not n.startswith(OWN_FIELDS) and type(value).__name__ not in RANDOM
    }


class Sampler(ABC):
    """Draws points, one for each trial."""

    adaptive = True  # whether results change its draws
    finite = False  # whether its points come to an end

    @abstractmethod
    def point(self, index: int) -> Point | None:
        """The point of the trial `index`, counted without those that were enqueued; None where there is no more."""

    def tell(self, index: int, point: Point, feedback: Feedback) -> None:  # noqa: B027 - most do not learn
        """Hear what became of a trial, also of one that was enqueued (index below 0) or known before."""


class TrialScheduler(ABC):
    """Proposes trials and stages of them, and decides how each trial goes on."""

    at_once = False  # whether it asks for all that it can, and is asked again when it was told of them

    @abstractmethod
    def ask(self, most: int) -> list[Trial]:
        """About `most` next ones; more where waiting for the results of some would change nothing.

        None where it needs to be told of more first. If it was told of all, it has ended.
        """

    @abstractmethod
    def tell(self, trial: Trial, feedback: Feedback) -> None:
        """Hear what became of one."""


class Strategy(ABC):
    """How to search. A frozen dataclass, whose repr tells one from another."""

    @abstractmethod
    def begin(self, problem: Problem) -> TrialScheduler:
        """What proposes; raises UsageError where the strategy does not fit the problem."""

    def describe(self, problem: Problem) -> str:
        """For the journal: two searches whose strategies differ are not the same."""
        return said_of(self)
