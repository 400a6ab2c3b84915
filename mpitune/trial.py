"""The nouns of a search: trial, evaluation, result, outcome, batch, search.

A *trial* is one point to evaluate. An *evaluation* is what an objective says of it, a *result* is that with what the
engine knows of it, an *outcome* is trial and result. A *batch* is a tuple of
trials that one worker evaluates together because they share work. A *search* is a generator that yields
rounds of batches and is sent the results of each round, in the order it asked. One that need not wait for all of a
round yields a *window* instead. What it returns is its conclusion.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from mpitune.errors import UsageError, named

Parameter = float | int | str
LONGEST_KEY = 200  # characters
_NUMBERS = frozenset({float, int})
_PLAIN = frozenset({str, bool})  # what a journal gives back exactly as it was, beside numbers


@dataclass(frozen=True, init=False)
class Trial:
    """One point of a search. Studies make millions of them, so it has slots, and a constructor that sets them directly.

    Attributes:
        key: unique in its study and the same in every run of it; seeds are derived from it.
        params: what the objective needs to know, JSON scalars only.
    """

    __slots__ = ("key", "params")
    key: str
    params: Mapping[str, Parameter]

    def __init__(self, key: str, params: Mapping[str, Parameter]) -> None:
        if not 0 < len(key) <= LONGEST_KEY:
            raise ValueError(f"a trial's key has 1 to {LONGEST_KEY} characters, not {len(key)}: {key[:40]!r}")
        for value in params.values():
            if type(value) in _NUMBERS:
                try:
                    if isfinite(value):  # type: ignore[arg-type]
                        continue
                except OverflowError:  # a whole number that no float comes near, of which little can be computed
                    pass
            elif type(value) in _PLAIN:
                continue
            name = next(name for name, other in params.items() if other is value)
            shown = f"{value!r:.100}" if isinstance(value, float | str) else f"of type {type(value).__name__}"
            raise ValueError(f"parameter {name} of trial {key} is {shown}: give a finite float, int or str")
        _set_key(self, key)
        _set_params(self, params)

    def __reduce__(self) -> tuple[type[Trial], tuple[str, Mapping[str, Parameter]]]:
        return Trial, (self.key, self.params)


_set_key, _set_params = vars(Trial)["key"].__set__, vars(Trial)["params"].__set__  # as the class is frozen


FOLDS = ("fold", "split")  # parameters that say which part of the data a trial is validated on


def exact(params: Mapping[str, Parameter]) -> frozenset[tuple[Any, ...]]:
    """What only equal parameters have: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    return frozenset((name, type(value), value, value == 0 and str(value)) for name, value in params.items())


def parameter_set(trial: Trial) -> frozenset[tuple[str, Parameter]]:
    """The parameters that trials of one set have in common, whatever their fold."""
    return frozenset((name, value) for name, value in trial.params.items() if name not in FOLDS)


@dataclass(frozen=True)
class Gang:
    """The slots that a trial needs at a time: so many devices of one node, or so many whole nodes."""

    devices: int = 1
    nodes: int = 0


@dataclass(frozen=True)
class Place:
    """The place where a trial ran: host name, MPI rank, slot of that rank, device of that slot."""

    host: str = ""
    rank: int = 0
    slot: int = 0
    device: str = ""

    def __str__(self) -> str:
        return f"{self.host}/{self.rank}/{self.slot}/{self.device}"


@dataclass(frozen=True)
class Evaluation:
    """The answer of an objective for one trial.

    Attributes:
        key: of the trial.
        values: named scalars; infinity is a value (a diverged fit), NaN is a failure.
        arrays: named arrays; once journaled they are read from disk when looked at.
        error: None, or why the trial failed; then `values` is empty.
        doubt: None, or what went wrong though this is an answer, such as a score of NaN for a fit that raised. Where
            the job has another rank, the trial is tried there once, and this answer is kept if it fails there too.
        messages: what `Port.on_message` gets once this answer counts; a journal does not keep it.
        read: what the objective read of its trial beside the parameters ("number", "seed", "folder"), so that this
            answer may be another one for another trial of the same parameters.
        user_attrs: what the objective says of the trial beside its values, as JSON has it.
    """

    key: str
    values: Mapping[str, float] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    error: str | None = None
    doubt: str | None = None
    messages: bytes = b""
    read: tuple[str, ...] = ()
    user_attrs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return self.error is not None

    def value(self, name: str) -> float:
        """The value of that name; NaN when the trial failed, so that it can never win a comparison.

        Raises:
            UsageError: there is none, as in a journal that another program wrote.
        """
        if self.failed:
            return float("nan")
        if name not in self.values:
            raise UsageError(f"trial {self.key} has no value {name}: it has {named(self.values)}")
        return self.values[name]


@dataclass(frozen=True)
class Result(Evaluation):
    """An evaluation with what the engine records of it.

    Attributes:
        seconds: wall time of this trial in its worker; of a batch, the time since the result before, or an even share
            where its trials are evaluated together.
        ended: when its worker had it, Unix time by the clock of its host; 0 where that is not known.
        peak_bytes: the most memory that its worker has had since its start, looked at once a second at most; None where
            that is not known.
        place: where it was evaluated.
        attempt: 1, or 2 when the first attempt failed.
        raised: whether the objective raised an exception; a journal does not keep it.
    """

    seconds: float = field(default=0.0, kw_only=True)
    ended: float = field(default=0.0, kw_only=True)
    peak_bytes: int | None = field(default=None, kw_only=True)
    place: Place = field(default=Place(), kw_only=True)
    attempt: int = field(default=1, kw_only=True)
    raised: bool = field(default=False, kw_only=True, compare=False)


@dataclass(frozen=True)
class NoRoom:
    """The answer of an objective for a trial that this slot has no room for, though a slot elsewhere may have.

    The trial is tried on slots of other ranks and devices. Where it fits none of them it is left open: the same
    command runs it once there are slots that can.
    """

    key: str
    reason: str


class Outcome(NamedTuple):
    """A trial with its result."""

    trial: Trial
    result: Result


COMPLETE, INFEASIBLE, PRUNED, FAILED = "complete", "infeasible", "pruned", "failed"  # states of a trial of a search
CONSTRAINTS = "@constraints"  # the user attribute that has what a sampler's `constraints_func` said of a trial


CHOSEN = "@chosen"  # the user attribute of a trial whose objective chose its parameters: these, its state, its error


def chosen_of(result: Result, what: str) -> Any:
    """What an objective that chooses its parameters said: "params", "state" or "error"; None where it does not."""
    said = result.user_attrs.get(CHOSEN)
    value = said.get(what) if isinstance(said, dict) else None
    return value if isinstance(value, dict if what == "params" else str) else None  # a journal may say anything


def state_of(outcomes: Sequence[Outcome]) -> str:
    """What became of a trial of a search, from its stages in their order."""
    trial, result = outcomes[-1]
    if (state := chosen_of(result, "state")) in (PRUNED, FAILED):
        return str(state)
    if result.failed or not trial.params.get("@last", True):
        return FAILED if result.failed else PRUNED
    return INFEASIBLE if any(value > 0 for value in constraints_of(result)) else COMPLETE


def constraints_of(result: Result) -> list[float]:
    """What `constraints_func` said of a trial, from its last stage; values above 0 are violated. Empty without one."""
    said = result.user_attrs.get(CONSTRAINTS)
    return [value for value in said if isinstance(value, float | int)] if isinstance(said, list) else []


def best_of(trials: Iterable[Any], losses: Callable[[Any], Any]) -> Any:
    """The best of a study, wherever it is shown: of the complete trials, the first of those of the lowest losses."""
    complete = (trial for trial in trials if trial.state == COMPLETE)
    return min(complete, key=lambda trial: (losses(trial), trial.number), default=None)


Batch = tuple[Trial, ...]


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """Both halves of a batch that failed as a whole, so that nobody knows whose failure it was."""
    return batch[: len(batch) // 2], batch[len(batch) // 2 :]


class Window(NamedTuple):
    """What a search yields so that it need not wait for all that is open.

    Attributes:
        new: batches to add to those that are open; perhaps none.
        awaited: the open trials, as of one batch, whose results it is sent next, once they are known.
        speculative: gives batches one by one meanwhile, for slots that would have nothing to do.
    """

    new: Sequence[Batch]
    awaited: Batch
    speculative: Iterator[Batch] = iter(())


Rounds = Generator[Sequence[Batch] | Window, list[Result], Any]  # its return value is its conclusion


def seed_of(root: int, key: str) -> np.random.SeedSequence:
    """The random stream of the thing called `key`. It does not depend on place, time or order.

    The key's SHA-256 becomes the spawn key, so that streams of different keys are independent (NumPy, "Parallel random
    number generation").

    Args:
        root: seed of the study, >= 0.
        key: of a trial, or another name.
    """
    words = np.frombuffer(hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest(), dtype="<u4")
    return np.random.SeedSequence(root, spawn_key=tuple(int(word) for word in words))
