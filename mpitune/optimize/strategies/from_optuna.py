"""Optuna's samplers and pruners: TPE, Gaussian processes, CMA-ES, NSGA-II, and any other.

The study that Optuna sees is in memory, on rank 0; it is made again from the journal. Samplers are seeded by the
search, so that their points depend on its seed and on what they were told. A sampler that stops its study, as
GridSampler and BruteForceSampler do once all is evaluated, ends the search.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np

from mpitune.errors import UsageError
from mpitune.optimize.spaces import Choice, Float, Int, Ordinal, Part, Point, Space
from mpitune.optimize.spaces.parameters import shown
from mpitune.optimize.spaces.space import key_of
from mpitune.optimize.strategies.base import Piece, Problem, Proposer, Sampler, Told
from mpitune.optimize.strategies.halving import OneAtATime, Staged
from mpitune.optimize.strategies.plain import Points, Sampling
from mpitune.settings import without_address
from mpitune.trial import Parameter

TRIES = 100  # points that a sampler proposes in vain before one is drawn at random that fulfils the constraints
LOOKS = 4  # points that a sampler of a user's own is asked for twice, to see that they are the same
LARGEST = 2**63
EXACT = 2**53  # whole numbers below are floats without rounding
DRAWN = 2**32  # a seed above is one that Optuna has drawn itself
MISSING = 'Optuna is not installed: pip install "mpitune[search]", or use another strategy'


def optuna() -> Any:
    """The library, silent. Raises UsageError where it is not installed."""
    try:
        import optuna as library
    except ImportError as error:
        raise UsageError(MISSING) from error
    library.logging.set_verbosity(library.logging.ERROR)
    return library


@dataclass(frozen=True)
class Optuna(Sampling):
    """A sampler of Optuna: its name in `optuna.samplers`, or one that was made.

    Attributes:
        sampler: "TPESampler" or `optuna.samplers.TPESampler(multivariate=True)`.
        arguments: For a sampler that is named.
    """

    sampler: Any
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def describe(self, problem: Problem) -> str:
        name = self.sampler if isinstance(self.sampler, str) else type(self.sampler).__name__
        return without_address(f"Optuna({name}{''.join(f', {n}={v!r}' for n, v in self.arguments.items())})")

    def made(self, problem: Problem) -> Any:
        """The sampler, seeded. Raises UsageError if it does not fit, or needs a package that is not installed."""
        library = optuna()
        seed = int(problem.rng("optuna").integers(2**31))
        if isinstance(self.sampler, str):
            if not hasattr(library.samplers, self.sampler):
                raise UsageError(f"Optuna has no sampler {self.sampler!r}: see optuna.samplers")
            arguments = dict(self.arguments)
            if self.sampler == "TPESampler" and problem.batch > 1:
                arguments.setdefault("constant_liar", True)  # points of one round are not all the same
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", library.exceptions.ExperimentalWarning)
                    made = getattr(library.samplers, self.sampler)(**{"seed": seed, **arguments})
            except TypeError as error:
                raise UsageError(f"{self.describe(problem)}: {error}: see optuna.samplers") from error
        elif isinstance(self.sampler, library.samplers.BaseSampler):
            made = _seeded(copy.deepcopy(self.sampler), np.random.RandomState(seed))
        else:
            raise UsageError(
                f"{self.sampler!r} is not a sampler of Optuna: give one such as optuna.samplers.TPESampler()"
            )
        if (everything := _exhaustive(made, library)) is not None:
            _check_finite(everything, library, problem.space)
        for name, part in problem.space.parts.items():
            if isinstance(part, Int) and max(-part.low, part.high) >= LARGEST:
                raise UsageError(f"Optuna takes whole numbers below 2**63, but {name} is {shown(part)}: narrow it")
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
        made = self.made(problem)
        if _is_own(made):
            _check_repeats(problem, made)
        return _Asking(problem, made)


class _Asking(Sampler):
    """An Optuna study that is asked for each trial and told of each.

    A sampler that goes through all points, such as GridSampler, may repeat some while others are evaluated, or after
    a restart. It is asked again then, so that each is evaluated once.
    """

    def __init__(self, problem: Problem, sampler: Any):
        self._library, self._problem = optuna(), problem
        self._study = self._library.create_study(
            sampler=sampler, directions=["minimize"] * len(problem.objectives), pruner=self._library.pruners.NopPruner()
        )
        self._study.stop = self._stop  # which Optuna allows in its own loop alone
        self._stopped = False
        self._open: dict[int, Any] = {}
        everything = _exhaustive(sampler, self._library)
        self.finite = everything is not None
        self._seen: set[Any] = set()
        if isinstance(everything, self._library.samplers.BruteForceSampler):  # for which these are evaluated as well
            self._seen.update(map(key_of, problem.beginnings()))
        self._streams = _Streams(problem) if _is_own(sampler) else None

    def point(self, index: int) -> Point | None:
        space = self._problem.space
        forbidden, repeated = 0, 0
        while not self._stopped and forbidden < (TRIES if space.constraints else 1):
            trial, point = self._asked()
            if self.finite and key_of(point) in self._seen:
                repeated += 1
                if repeated > len(self._seen) + TRIES:
                    return None
            elif space.allows(point):
                self._open[index] = trial
                self._seen.add(key_of(point))
                return point
            else:
                forbidden += not self.finite
            with self._quiet():
                self._study.tell(trial, state=self._library.trial.TrialState.FAIL)
        if self._stopped:
            return None
        rng = self._problem.rng(f"trial/{index}")
        return space.draw(lambda: rng.random(space.dimensions))

    def _asked(self) -> tuple[Any, Point]:
        space = self._problem.space
        with self._quiet():
            trial = self._study.ask()
            point: Point = {}
            for name, part in space.parts.items():
                if space.is_active(name, point):
                    point[name] = self._suggested(trial, name, part)
        return trial, point

    def _suggested(self, trial: Any, name: str, part: Part) -> Parameter:
        name_of = type(self._study.sampler).__name__
        try:
            value = suggested(trial, name, part)
        except UsageError:
            raise
        except ValueError as error:
            raise UsageError(f"{name_of} has no value for {name}, which is {part}: {error}") from error
        if not isinstance(part, Choice) and not part.takes(value):
            raise UsageError(f"{name_of} draws {name} = {shown(value)}, which is not in {part}: correct it")
        return value

    def _stop(self) -> None:
        self._stopped = True

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Without warnings of values that are infinite, or small populations; with random streams of the search."""
        with warnings.catch_warnings(), self._streams or nullcontext():
            warnings.simplefilter("ignore")
            yield

    def tell(self, index: int, point: Point, told: Told, pruned: bool = False) -> None:
        states = self._library.trial.TrialState
        state = states.FAIL if told.losses is None else states.PRUNED if pruned else states.COMPLETE
        trial = self._open.pop(index, None)
        if trial is None:  # a trial that it was not asked for
            parts = self._problem.space.parts
            if index >= 0:
                self._seen.add(key_of(point))
            distributions = {name: _distribution(self._library, parts[name]) for name in point}
            self._study.add_trial(
                self._library.trial.create_trial(
                    state=state,
                    params={name: _nearest(parts[name], value, distributions[name]) for name, value in point.items()},
                    distributions=distributions,
                    values=list(told.losses) if told.losses is not None and not pruned else None,
                    intermediate_values=dict(told.steps),
                )
            )
            return
        if len(self._problem.objectives) == 1:
            for step, loss in told.steps.items():
                trial.report(loss, step)
        with self._quiet():
            self._study.tell(trial, list(told.losses) if told.losses and not pruned else None, state)


@dataclass(frozen=True)
class OptunaPruner(Staged):
    """A pruner of Optuna, such as `optuna.pruners.PatientPruner(...)`, is asked after each stage."""

    pruner: Any = None

    def describe(self, problem: Problem) -> str:
        return super().describe(problem).replace(without_address(repr(self.pruner)), type(self.pruner).__name__)

    def begin(self, problem: Problem) -> list[Proposer]:
        return [self.lanes(problem)]

    def lanes(self, problem: Problem) -> Proposer:
        library = optuna()
        if not isinstance(self.pruner, library.pruners.BasePruner):
            raise UsageError(f"OptunaPruner({self.pruner!r}): give a pruner such as optuna.pruners.MedianPruner()")
        return _Pruning(self.points(problem), self.rungs(), library.create_study(pruner=copy.deepcopy(self.pruner)))


class _Pruning(OneAtATime):
    def __init__(self, points: Points, rungs: Sequence[int], study: Any):
        super().__init__(points, rungs)
        self._study = study
        self._trials: dict[int, Any] = {}
        self._going: dict[int, Piece] = {}

    def heard(self, piece: Piece, told: Told) -> None:
        self._going.pop(piece.number, None)
        states = optuna().trial.TrialState
        trial = self._trials.setdefault(piece.number, None) or self._study.ask()
        self._trials[piece.number] = trial
        for step, loss in told.steps.items():
            trial.report(loss, step)
        if told.losses is None:
            self._study.tell(trial, state=states.FAIL)
        elif piece.last:
            self._study.tell(trial, told.loss)
        elif trial.should_prune():
            self._study.tell(trial, state=states.PRUNED)
            self._points.tell(piece, told, pruned=True)
        else:
            self._going[piece.number] = self.next_stage(piece)

    def onward(self) -> Piece | None:
        return self._going.pop(min(self._going)) if self._going else None


def suggested(trial: Any, name: str, part: Part) -> Parameter:
    """What a trial of Optuna says for a parameter."""
    if isinstance(part, Ordinal):
        return part.labels[trial.suggest_int(name, 0, len(part.labels) - 1)]
    if isinstance(part, Choice):
        choices = choices_of(part)
        return part.labels[choices.index(trial.suggest_categorical(name, choices))]
    if isinstance(part, Int):
        drawn = int(trial.suggest_int(name, part.low, part.high, log=part.log, step=part.step))
        return drawn if max(-part.low, part.high) < EXACT else min(part.high, max(part.low, drawn))
    return float(trial.suggest_float(name, part.low, part.high, log=part.log, step=part.step))


def choices_of(part: Choice) -> list[Any]:
    """The options as Optuna is given them: their labels, and None. It takes 1, 1.0 and True for one: then as texts."""
    choices = [None if option is None else label for option, label in zip(part.options, part.labels, strict=True)]
    if len(set(choices)) < len(choices):
        return [f"{place}: {label!r}" for place, label in enumerate(part.labels)]
    return choices


def _distribution(library: Any, part: Part) -> Any:
    distributions = library.distributions
    if isinstance(part, Ordinal):
        return distributions.IntDistribution(0, len(part.labels) - 1)
    if isinstance(part, Choice):
        return distributions.CategoricalDistribution(choices_of(part))
    if isinstance(part, Int):
        high = part.low + (part.high - part.low) // part.step * part.step
        return distributions.IntDistribution(part.low, high, log=part.log, step=part.step)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the last step is below high
        return distributions.FloatDistribution(part.low, part.high, log=part.log, step=part.step)


def _nearest(part: Part, value: Parameter, distribution: Any) -> Any:
    """What Optuna is told for a value of a parameter: beside its steps the nearest that is on one."""
    if isinstance(part, Choice):
        place = part.place(value)
        return place if isinstance(part, Ordinal) else distribution.choices[place]
    if isinstance(part, Float):
        return min(distribution.high, part.on_step(float(value)))
    return part.on_step(int(value)) if part.step > 1 else value


def _exhaustive(sampler: Any, library: Any) -> Any | None:
    """The sampler if it goes through all points and then stops its study; also one below a PartialFixedSampler."""
    while isinstance(sampler, library.samplers.PartialFixedSampler):
        sampler = sampler._base_sampler
    return sampler if isinstance(sampler, library.samplers.GridSampler | library.samplers.BruteForceSampler) else None


def _check_finite(sampler: Any, library: Any, space: Space) -> None:
    """Raise UsageError where a sampler cannot go through all points of the space."""
    name_of = type(sampler).__name__
    if isinstance(sampler, library.samplers.BruteForceSampler):
        for name, part in space.parts.items():
            if isinstance(part, Float) and part.step is None:
                raise UsageError(f"{name_of} tries all values of {name}, which has no end of them: give {part} a step")
        return
    values_of: Mapping[str, Sequence[Any]] = sampler._search_space
    for name in values_of:
        if name not in space.parts:
            known = ", ".join(space.parts)
            raise UsageError(f"{name_of} has values of {name}, which the space does not have: it has {known}")
    for name, part in space.parts.items():
        if name not in values_of:
            raise UsageError(f"{name_of} has no values of {name}: give it some, or use strategy='grid'")
        if isinstance(part, Ordinal):
            raise UsageError(f"{name_of} cannot use the order of {name}: use Choice instead of Ordinal, or 'grid'")
        for value in values_of[name]:
            if isinstance(part, Choice):
                among = any(type(value) is type(choice) and value == choice for choice in choices_of(part))
            else:
                among = part.takes(value)
            if not among:
                raise UsageError(f"{name_of} has {name} = {shown(value)}, which is not in {part}: use strategy='grid'")


def _is_own(sampler: Any) -> bool:
    """Whether a sampler, or one below it, is not Optuna's but a user's own."""
    if type(sampler).__module__.partition(".")[0] != "optuna":
        return True
    return any(_is_own(part) for part in vars(sampler).values() if hasattr(part, "sample_relative"))


def _check_repeats(problem: Problem, sampler: Any) -> None:
    """Raise UsageError for a sampler of a user's own that draws other points each time, whatever it is told.

    Its study could not be continued, since that is to propose all points again.
    """
    one, other = (_Asking(problem, copy.deepcopy(sampler)) for _ in range(2))
    for index in range(min(LOOKS, problem.n_trials or LOOKS)):
        point = one.point(index)
        if point != other.point(index):
            fix = "keep its generator in an attribute, self.rng = numpy.random.default_rng(), which is seeded here"
            raise UsageError(f"{type(sampler).__name__} draws other points each time: {fix}")
        if point is None:
            return
        told = Told(tuple(index + goal / 2 for goal in range(len(problem.objectives))))
        one.tell(index, point, told)
        other.tell(index, point, told)


class _Streams:
    """The global random streams of Python and NumPy, as long as a sampler runs that may draw from them."""

    def __init__(self, problem: Problem):
        seeds = problem.rng("global streams").integers(2**31, size=2)
        self._state = random.Random(int(seeds[0])).getstate(), np.random.RandomState(int(seeds[1])).get_state()

    def __enter__(self) -> None:
        self._others = random.getstate(), np.random.get_state()
        random.setstate(self._state[0])
        np.random.set_state(self._state[1])

    def __exit__(self, *_: object) -> None:
        self._state = random.getstate(), np.random.get_state()
        random.setstate(self._others[0])
        np.random.set_state(self._others[1])


def _seeded(sampler: Any, rng: np.random.RandomState) -> Any:
    """The sampler with all its random streams begun again: Optuna's own way to do so takes the clock's seed."""
    seen: set[int] = set()
    _begin_again(sampler, rng, seen)
    _begin_others_again(sampler, rng, seen)
    return sampler


def _begin_again(sampler: Any, rng: np.random.RandomState, seen: set[int]) -> None:
    """The streams that Optuna's samplers have, also those of samplers below them."""
    for part in vars(sampler).values():
        if isinstance(stream := getattr(part, "rng", None), np.random.RandomState):
            stream.seed(rng.randint(2**31))
            seen.add(id(stream))
        elif hasattr(part, "sample_relative"):
            _begin_again(part, rng, seen)


def _begin_others_again(thing: Any, rng: np.random.RandomState, seen: set[int]) -> None:
    """All other streams among the parts of a sampler, unless they have a seed of their user's."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, random.Random):
        thing.seed(int(rng.randint(2**31)))
    elif isinstance(thing, np.random.RandomState):
        if _is_by_chance(thing._bit_generator):
            thing.seed(rng.randint(2**31))
    elif isinstance(thing, np.random.Generator):
        _begin_others_again(thing.bit_generator, rng, seen)
    elif isinstance(thing, np.random.BitGenerator):
        if _is_by_chance(thing):
            thing.state = type(thing)(int(rng.randint(2**31))).state
    elif isinstance(thing, Mapping):
        for part in thing.values():
            _begin_others_again(part, rng, seen)
    elif isinstance(thing, list | tuple | set | frozenset):
        for part in thing:
            _begin_others_again(part, rng, seen)
    elif not isinstance(thing, type | ModuleType):
        if type(thing).__name__ == "LazyRandomState":
            _begin_others_again(thing.rng, rng, seen)
            return
        if type(thing).__name__ == "QMCSampler" and getattr(thing, "_seed", 0) >= DRAWN:  # of its scrambling
            thing._seed = int(rng.randint(2**31))
        for part in getattr(thing, "__dict__", {}).values():
            _begin_others_again(part, rng, seen)


def _is_by_chance(generator: Any) -> bool:
    """Whether a generator has its seed from the machine: one of a user's is not as large, or is not kept."""
    entropy = getattr(getattr(generator, "_seed_seq", None), "entropy", None)
    return isinstance(entropy, int) and entropy >= 2**64
