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
from typing import Any

from mpitune.errors import UsageError
from mpitune.experiment import WorkerContext
from mpitune.memory.cache import Cache, NoCache, NotPicklable, buffers_for, in_memory
from mpitune.memory.shared_arrays import Spec
from mpitune.optimize.objectives import ObjectiveTrial
from mpitune.optimize.spaces import Space
from mpitune.optimize.spaces.parameters import label_of
from mpitune.optimize.values import InvalidReturnValue
from mpitune.trial import seed_of

FOLD = "fold"  # what a link may use beside parameters


class Link:
    """A function whose value several trials share.

    Args:
        work: A function of a `LinkTrial`, whose other arguments have the names of earlier links and get their values.
            Its value is pickled; arrays are handed on read-only.
        uses: Names of the parameters that it uses, and "fold" if folds are raced.
    """

    def __init__(self, work: Callable[..., Any], *uses: str):
        self.work, self.uses = work, uses


class Chain:
    """An objective of several functions.

    A node computes the value of a link once for all trials that agree in the parameters that it uses, and in those of
    the links whose values it takes. A worker that needs a value waits while another worker computes it. An exception in
    a link is that of the trial.

    Args:
        links: In their order. The last one is a function or a generator. It is called for each trial, with the values
            of the links that its arguments name.
        limit_gb: Memory (1e9 bytes) for values on each node. Values that were not used for the longest time are dropped
            first. A value without room is computed again.

    Raises:
        UsageError: The links do not fit each other.
    """

    def __init__(self, *links: Link | Callable[..., Any], limit_gb: float = 1.0):
        before, last = [link for link in links[:-1] if isinstance(link, Link)], links[-1] if links else None
        if not before or len(before) < len(links) - 1 or isinstance(last, Link) or last is None:
            raise UsageError('a chain has links and ends with a function: Chain(Link(features, "degree"), model)')
        if not isinstance(limit_gb, int | float) or isinstance(limit_gb, bool) or not 0 < limit_gb < math.inf:
            raise UsageError(f"limit_gb={limit_gb!r}: give a number of gigabytes above 0")
        self.limit = int(limit_gb * 1e9)
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
        name = getattr(work, "__name__", "")
        if not callable(work) or not name:
            raise UsageError(f"a link is {work!r}: give a function that has a name")
        if not all(isinstance(use, str) and use for use in link.uses):
            raise UsageError(f"the link {name} uses {link.uses}: give names of parameters")
        if not last and inspect.isgeneratorfunction(work):
            raise UsageError(f"the link {name} is a generator: return its value")
        earlier = {step.name for step in self._steps}
        if name in earlier:
            raise UsageError(f"two functions of the chain are called {name}: rename one")
        takes = []
        for argument in list(inspect.signature(work).parameters.values())[1:]:
            if argument.name in earlier:
                takes.append(argument.name)
            elif argument.default is argument.empty and argument.kind not in (2, 4):  # no *args and **kwargs
                there = f"there is {', '.join(sorted(earlier))}" if earlier else "there is none"
                raise UsageError(f"{name} takes {argument.name}, which no link before it returns: {there}")
        return _Step(name, work, tuple(takes), link.uses)

    def check(self, space: Space) -> None:
        """Raise UsageError where a link uses what a trial does not have."""
        known = [*space.parts, *space.constants]
        for step in self._steps[:-1]:
            for use in step.uses:
                if use not in known and use != FOLD:
                    raise UsageError(
                        f"the link {step.name} uses {use}, which the space does not have: it has {', '.join(known)}"
                    )

    def called(self) -> Mapping[str, Any]:
        """Its functions by name."""
        return {step.name: step.work for step in self._steps}

    def buffers(self) -> Mapping[str, Spec]:
        """Memory that the workers of a node share."""
        return buffers_for(self.limit)

    def in_worker(self, worker: WorkerContext, seed: int) -> Callable[[ObjectiveTrial], Any]:
        """The objective for a worker. seed: of the study."""
        return partial(self._evaluated, in_memory(worker.buffers, self.limit), seed)

    def __call__(self, trial: ObjectiveTrial) -> Any:
        """One trial by itself, for a debugger: nothing is kept."""
        return self._evaluated(NoCache(), 0, trial)

    def _evaluated(self, cache: Cache, study_seed: int, trial: ObjectiveTrial) -> Any:
        *before, last = self._steps
        trial._read.add("study")  # whose seed those of the links are made of, also where their values were kept
        values: dict[str, Any] = {}
        keys: dict[str, str] = {}
        for step in before:
            used = {use: _label(trial, use) for use in step.uses if use == FOLD or use in trial.params}
            above = {name: keys[name] for name in step.takes}
            said = json.dumps([step.name, used, above, study_seed], sort_keys=True)
            keys[step.name] = hashlib.sha256(said.encode()).hexdigest()
            seed = int(seed_of(study_seed, f"link/{keys[step.name]}").generate_state(1)[0])
            given = LinkTrial(step.name, trial, step.uses, seed)
            compute = partial(step.work, given, **{name: values[name] for name in step.takes})
            place = json.dumps([keys[step.name], trial.device])
            try:
                values[step.name] = cache.value(place, compute)
            except NotPicklable as why:
                hint = "return arrays, numbers, or what else can be pickled"
                raise InvalidReturnValue(f"the link {step.name} returned {why}, which cannot be kept: {hint}") from why
        return last.work(trial, **{name: values[name] for name in last.takes})


@dataclass(frozen=True)
class _Step:
    """A function of a chain, the links before it whose values it takes, and the parameters that it uses."""

    name: str
    work: Callable[..., Any]
    takes: tuple[str, ...]
    uses: tuple[str, ...]


def _label(trial: ObjectiveTrial, use: str) -> Any:
    """A parameter, or the fold, as a key holds it."""
    if use == FOLD and use not in trial.params:
        return trial.fold
    point = trial._segment.point
    return point[use] if use in point else label_of(trial.params[use])


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
        hint = f'name it, Link({self._link}, ..., "fold")' if name == FOLD else "only the last function may ask for it"
        raise InvalidReturnValue(
            f"the link {self._link} asks for trial.{name}, which trials do not have in common: {hint}"
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
