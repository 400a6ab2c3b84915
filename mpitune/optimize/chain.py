"""Objectives of several functions: a link is computed once for all trials with equal values of its parameters.

def features(trial): return expanded(images, trial.params["degree"])
def model(trial, features): return {"loss": fitted(features, trial.params["penalty"])}

search(Chain(Link(features, "degree"), model), {"degree": Int(1, 4), "penalty": Float(1e-3, 10, log=True)}, ...)
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

from mpitune._jit.folders import why_unsafe
from mpitune.errors import UsageError
from mpitune.experiment import WorkerContext
from mpitune.memory.shared_arrays import Spec
from mpitune.memory.value_cache import Keeper, Nowhere, OnDisk, Unkept, buffers_for, in_memory
from mpitune.optimize.objectives import InvalidReturnValue, ObjectiveTrial, is_staged
from mpitune.optimize.spaces import Space
from mpitune.optimize.spaces.parameters import label_of
from mpitune.settings import without_address
from mpitune.trial import seed_of

FOLD = "fold"  # what a link may use beside parameters


class Link:
    """A function whose value several trials share.

    Args:
        work: A function of a `LinkTrial`, whose other arguments have the names of earlier links and get their values;
            or the name of a method of `Chain(of=...)`. Its value is pickled; arrays are handed on read-only.
        uses: Names of the parameters that it uses, and "fold" if folds are raced.
    """

    def __init__(self, work: Callable[..., Any] | str, *uses: str):
        self.work, self.uses = work, uses


class Chain:
    """An objective of several functions.

    A node computes the value of a link once for all trials that agree in the parameters that it uses, and in those of
    the links whose values it takes. A worker that needs a value waits while another worker computes it. An exception in
    a link is that of the trial.

    Args:
        links: In their order. The last one is a function, a generator or the name of a method. It is called for each
            trial, with the values of the links that its arguments name.
        of: The class or object that has the methods which are given by name. It may have `setup(device)`, as any
            objective.
        limit_gb: Memory (1e9 bytes) for values on each node. Values that were not used for the longest time are dropped
            first. A value without room is computed again.
        folder: Folder that keeps the values on disk instead, by `joblib.Memory`, for other searches too. A change of a
            link's code is noticed. A change of other things that it reads is not: name another folder then. Nobody else
            may be able to write to it, since its files are unpickled.

    Raises:
        UsageError: The links do not fit each other.
    """

    def __init__(
        self,
        *links: Link | Callable[..., Any] | str,
        of: Any = None,
        limit_gb: float = 1.0,
        folder: str | Path | None = None,
    ):
        before, last = [link for link in links[:-1] if isinstance(link, Link)], links[-1] if links else None
        if not before or len(before) < len(links) - 1 or isinstance(last, Link) or last is None:
            raise UsageError('a chain has links and ends with a function: Chain(Link(features, "degree"), model)')
        if not isinstance(limit_gb, int | float) or isinstance(limit_gb, bool) or not 0 < limit_gb < math.inf:
            raise UsageError(f"limit_gb={limit_gb!r}: give a number of gigabytes above 0")
        self.of, self.limit = of, int(limit_gb * 1e9)
        self.folder = None if folder is None else Path(folder).absolute()
        self._steps: list[_Step] = []
        for link in before:
            self._steps.append(self._step(link))
        self._steps.append(self._step(Link(last), last=True))
        for number, step in enumerate(self._steps[:-1]):
            if not any(step.name in later.takes for later in self._steps[number + 1 :]):
                fix = f"give a later function an argument of that name, such as model(trial, {step.name})"
                raise UsageError(f"no later function takes the value of {step.name}: {fix}")

    def _step(self, link: Link, last: bool = False) -> _Step:
        work = link.work
        if isinstance(work, str):
            owner = self.of if isinstance(self.of, type) else type(self.of)
            function, name, skipped = getattr(owner, work, None), work, 2
            if not callable(function):
                raise UsageError(f"of={self.of!r} has no method {work}: give of= the class that has it")
        else:
            function, name, skipped = work, getattr(work, "__name__", ""), 1
        if not callable(function) or not name:
            raise UsageError(f"a link is {work!r}: give a function that has a name, or the name of a method")
        if not all(isinstance(use, str) and use for use in link.uses):
            raise UsageError(f"the link {name} uses {link.uses}: give names of parameters")
        if not last and inspect.isgeneratorfunction(function):
            raise UsageError(f"the link {name} is a generator: return its value")
        earlier = {step.name for step in self._steps}
        if name in earlier:
            raise UsageError(f"two functions of the chain are called {name}: rename one")
        takes = []
        for argument in list(inspect.signature(function).parameters.values())[skipped:]:
            if argument.name in earlier:
                takes.append(argument.name)
            elif argument.default is argument.empty and argument.kind not in (2, 4):  # no *args and **kwargs
                there = f"there is {', '.join(sorted(earlier))}" if earlier else "there is none"
                raise UsageError(f"{name} takes {argument.name}, which no link before it returns: {there}")
        return _Step(name, work, tuple(takes), link.uses, function)

    @property
    def staged(self) -> bool:
        """Whether it can be stopped: its last function is a generator."""
        return is_staged(self._steps[-1].function)

    def check(self, space: Space) -> None:
        """Raise UsageError where a link uses what a trial does not have, or where its folder is not safe."""
        known = [*space.parts, *space.constants]
        for step in self._steps[:-1]:
            for use in step.uses:
                if use not in known and use != FOLD:
                    raise UsageError(
                        f"the link {step.name} uses {use}, which the space does not have: it has {', '.join(known)}"
                    )
        if self.folder is not None and (flaw := why_unsafe(self.folder)):
            raise UsageError(f"folder={str(self.folder)!r}: {flaw}; what is in it is unpickled, which can run code")

    def buffers(self) -> Mapping[str, Spec]:
        """Memory that the workers of a node share."""
        return buffers_for(self.limit) if self.folder is None else {}

    def in_worker(self, worker: WorkerContext, seed: int) -> Callable[[ObjectiveTrial], Any]:
        """The objective for a worker. seed: of the study."""
        keeper = in_memory(worker.buffers, self.limit) if self.folder is None else OnDisk(self.folder, self.limit)
        return self._with(keeper, worker.device, seed)

    def __call__(self, trial: ObjectiveTrial) -> Any:
        """One trial by itself, for a debugger: nothing is kept."""
        return self._with(Nowhere(), trial.device, 0)(trial)

    def _with(self, keeper: Keeper, device: str, seed: int) -> Callable[[ObjectiveTrial], Any]:
        owner = self.of() if isinstance(self.of, type) else self.of
        if callable(setup := getattr(owner, "setup", None)):
            setup(device)
        return _Links(self._steps, owner, keeper, seed)


@dataclass(frozen=True)
class _Step:
    """A function of a chain, the links before it whose values it takes, and the parameters that it uses."""

    name: str
    work: Callable[..., Any] | str
    takes: tuple[str, ...]
    uses: tuple[str, ...]
    function: Callable[..., Any]

    def of(self, owner: Any) -> Callable[..., Any]:
        return getattr(owner, self.work) if isinstance(self.work, str) else self.work


class _Links:
    """A chain in a worker."""

    def __init__(self, steps: list[_Step], owner: Any, keeper: Keeper, seed: int):
        *self._before, self._last = steps
        self._owner, self._keeper, self._seed = owner, keeper, seed
        self._codes = {step.name: _digest_of(step.function) for step in self._before}

    def __call__(self, trial: ObjectiveTrial) -> Any:
        values: dict[str, Any] = {}
        keys: dict[str, str] = {}
        for step in self._before:
            used = {use: self._label(trial, use) for use in step.uses if use == FOLD or use in trial.params}
            above = {name: keys[name] for name in step.takes}
            said = json.dumps([step.name, used, above, self._seed], sort_keys=True)
            keys[step.name] = hashlib.sha256(said.encode()).hexdigest()
            seed = int(seed_of(self._seed, f"link/{keys[step.name]}").generate_state(1)[0])
            given = LinkTrial(step.name, trial, step.uses, seed)
            compute = partial(step.of(self._owner), given, **{name: values[name] for name in step.takes})
            place = json.dumps([keys[step.name], self._code(step), trial.device])
            try:
                values[step.name] = self._keeper.value(place, compute)
            except Unkept as unkept:
                told = "return arrays, numbers, or what else can be pickled"
                raise InvalidReturnValue(
                    f"the link {step.name} returned {unkept}, which cannot be kept: {told}"
                ) from unkept
        return self._last.of(self._owner)(trial, **{name: values[name] for name in self._last.takes})

    def _label(self, trial: ObjectiveTrial, use: str) -> Any:
        """A parameter, or the fold, as a key holds it."""
        if use == FOLD and use not in trial.params:
            return trial.fold
        point = trial._segment.point
        return point[use] if use in point else label_of(trial.params[use])

    def _code(self, step: _Step) -> list[str]:
        """Digests of a function, and of those above it."""
        above = [digest for name in step.takes for digest in self._code(self._named(name))]
        return [self._codes[step.name], *above]

    def _named(self, name: str) -> _Step:
        return next(step for step in self._before if step.name == name)


class LinkTrial:
    """What a link is given.

    Attributes:
        params: The parameters that it uses, by name.
        seed: For its random numbers: made of the study's seed and its own parameters alone.
        device: "cpu" or "cuda".
        fold: Where it uses "fold".
    """

    def __init__(self, link: str, trial: ObjectiveTrial, uses: tuple[str, ...], seed: int):
        self.params: Mapping[str, Any] = _Used(link, trial.params, uses)
        self.seed, self.device, self._link = seed, trial.device, link
        if FOLD in uses:
            self.fold = trial.fold

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_link":
            raise AttributeError(name)
        told = f'name it, Link({self._link}, ..., "fold")' if name == FOLD else "only the last function may ask for it"
        raise InvalidReturnValue(
            f"the link {self._link} asks for trial.{name}, which trials do not have in common: {told}"
        )


class _Used(Mapping[str, Any]):
    """The parameters that a link has named; to ask for another one is an error, not a default value."""

    def __init__(self, link: str, params: Mapping[str, Any], uses: tuple[str, ...]):
        self._link, self._all = link, params
        self._known = {use: params[use] for use in uses if use in params}

    def __getitem__(self, name: str) -> Any:
        if name not in self._known and name in self._all:
            fix = f'name it, Link({self._link}, ..., "{name}")'
            raise InvalidReturnValue(
                f"the link {self._link} asks for the parameter {name}, which it does not name: {fix}"
            )
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def _digest_of(function: Any) -> str:
    """A digest of a function's code, which another function has not; of its name where there is no code."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    said = _said(code) if isinstance(code, CodeType) else getattr(function, "__qualname__", type(function).__qualname__)
    defaults = without_address(repr(getattr(function, "__defaults__", None)))
    return hashlib.sha256(repr((said, defaults)).encode()).hexdigest()


def _said(code: CodeType) -> tuple[Any, ...]:
    constants: list[Any] = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            constants.append(_said(constant))
        else:  # the order of a set differs from process to process
            constants.append(sorted(map(repr, constant)) if isinstance(constant, frozenset) else repr(constant))
    return code.co_code, code.co_names, code.co_varnames, tuple(constants)
