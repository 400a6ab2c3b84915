"""The nouns of a search: trial, evaluation, result, outcome, batch, search.

A *trial* is one point to evaluate. An *evaluation* is what an objective says of it, a *result* is that with what the
engine knows of it, an *outcome* is trial and result. A *batch* is a tuple of
trials that one worker evaluates together because they share work. A *search* is a generator that yields
rounds of batches and is sent the results of each round, in the order it asked. One that need not wait for all of a
round yields a *window* instead. What it returns is its conclusion.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from mpitune.errors import UsageError, named, utf8

Parameter = float | int | str
LONGEST_KEY = 200  # characters
_NUMBERS = frozenset({float, int})


class Segment(NamedTuple):
    """Of what a trial is a part, and what its objective is told beside the parameters.

    Attributes:
        number: of the trial of a search, or of the candidate, that this is or belongs to; from 0. None without numbers.
        fold: the part of the data that it is validated on, from 0.
        stage: of the trial of a search, from 0; None where that is evaluated whole.
        last: whether the trial is complete with this stage.
        start, until: steps done before and to be done after it; until 0: as many as the objective has.
        parent: key of the trial whose checkpoint this one begins with; "" for none but its own.
        place: in the group that it is evaluated with, see `is_group`.
        limits: (n, loss): it may stop itself where its loss after n values is above this.
        for_objective: what the door tells its own objective beside, as JSON has it.
    """

    number: int | None = None
    fold: int | None = None
    stage: int | None = None
    last: bool = True
    start: int = 0
    until: int = 0
    parent: str = ""
    place: int | None = None
    limits: tuple[tuple[int, float], ...] = ()
    for_objective: Any = None

    @property
    def parts(self) -> tuple[Any, ...]:
        """Its fields in their order, without those at the end that say nothing: few bytes on the way."""
        n = len(self)
        while n and self[n - 1] == WHOLE[n - 1]:
            n -= 1
        return self[:n]

    @property
    def named_fields(self) -> dict[str, Any]:
        """By name what it says."""
        return {name: value for name, value, usual in zip(self._fields, self, WHOLE, strict=True) if value != usual}


WHOLE = Segment()  # of a trial that stands for itself


@dataclass(frozen=True, init=False)
class Trial:
    """One point of a search. Studies make millions of them, so it has slots, and a constructor that sets them directly.

    Attributes:
        key: unique in its study and the same in every run of it; seeds are derived from it.
        params: what the objective needs to know, JSON scalars only.
        segment: of what it is a part.
    """

    __slots__ = ("key", "params", "segment")
    key: str
    params: Mapping[str, Parameter]
    segment: Segment

    def __init__(self, key: str, params: Mapping[str, Parameter], segment: Segment = WHOLE) -> None:
        if not 0 < len(key) <= LONGEST_KEY or (not key.isascii() and utf8(key) != key):
            raise ValueError(f"a trial's key has 1 to {LONGEST_KEY} characters of UTF-8, not {len(key)}: {key[:40]!r}")
        for value in params.values():
            if type(value) in _NUMBERS:
                try:
                    if isfinite(value):  # type: ignore[arg-type]
                        continue
                except OverflowError:  # a whole number that no float comes near, of which little can be computed
                    pass
            elif type(value) is bool or (type(value) is str and utf8(value) == value):  # a journal gives these back
                continue
            name = next(name for name, other in params.items() if other is value)
            shown = f"{value!r:.100}" if isinstance(value, float | str) else f"of type {type(value).__name__}"
            raise ValueError(f"parameter {name} of trial {key} is {shown}: give a finite float, int or a text of UTF-8")
        _set_key(self, key)
        _set_params(self, params)
        _set_segment(self, segment)

    @property
    def plain(self) -> tuple[Any, ...]:
        """What `trial_of` makes the trial of, in types that pickle need not look up by name."""
        return (self.key, self.params) if self.segment is WHOLE else (self.key, self.params, self.segment.parts)

    def __reduce__(self) -> tuple[Callable[..., Trial], tuple[Any, ...]]:
        return (Trial if self.segment is WHOLE else trial_of), self.plain


_set_key, _set_params, _set_segment = (vars(Trial)[name].__set__ for name in Trial.__slots__)  # as the class is frozen


def trial_of(key: str, params: Mapping[str, Parameter], parts: tuple[Any, ...] = ()) -> Trial:
    """The trial whose segment has these parts."""
    return Trial(key, params, Segment(*parts) if parts else WHOLE)


def exact(params: Mapping[str, Parameter]) -> frozenset[tuple[Any, ...]]:
    """What only equal parameters have: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    return frozenset((name, type(value), value, value == 0 and str(value)) for name, value in params.items())


def same_trial(trial: Trial, other: Trial) -> bool:
    """Whether two trials of one key ask the same. A million are compared, most of which have equal texts."""
    equal = repr(trial.params) == repr(other.params) or exact(trial.params) == exact(other.params)
    return equal and trial.segment == other.segment


def asked_of(trial: Trial) -> dict[str, Any]:
    """The parameters of a trial, and what its segment says."""
    return {**trial.params, **trial.segment.named_fields}


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


COMPLETE, INFEASIBLE, PRUNED, FAILED = "complete", "infeasible", "pruned", "failed"  # states of a trial of a search
Steps = Mapping[int, Mapping[str, float]]  # values by name after each step


class Fault(Enum):
    """What is to blame for the failure of a trial of a search, in words for people."""

    OBJECTIVE = "correct the objective"
    NO_VALUE = "no value"  # in this trial
    FOLDER = "folder"  # what this package has in the trial's cannot be read or written
    EXIT = "sys.exit"  # which it has called


@dataclass(frozen=True)
class Ending:
    """How a trial of a search has ended, where its values do not say it all.

    Attributes:
        state: PRUNED or FAILED where the objective says so itself, else "".
        cause: why it has failed then.
        steps: the values after each step, in order.
        chosen: parameters that the objective has chosen itself; None where it has got them.
        constraints: those above 0 are violated.
        for_door: what the door that asked for the trial needs to go on from it, as JSON has it.
        fault: of a trial with an error; a journal does not keep it.
    """

    state: str = ""
    cause: str = ""
    steps: Steps = field(default_factory=dict)
    chosen: Mapping[str, Any] | None = None
    constraints: tuple[float, ...] = ()
    for_door: Any = None
    fault: Fault | None = field(default=None, compare=False)

    def __reduce__(self) -> str | tuple[type[Ending], tuple[Any, ...]]:
        return "PLAIN" if self is PLAIN else (Ending, tuple(vars(self).values()))


PLAIN = Ending()


@dataclass(frozen=True)
class Evaluation:
    """The answer of an objective for one trial.

    Attributes:
        key: of the trial.
        values: named scalars; infinity is a value (a diverged fit), NaN is a failure.
        arrays: named arrays; once journaled they are read from disk when looked at.
        error: None, or why the trial failed; then `values` is empty.
        doubt: None, or what went wrong though this is an answer, such as a score of NaN for a fit that raised. Where
            the job has another rank, the trial is tried there once, and what is answered there counts.
        messages: what `Port.on_message` gets once this answer counts; a journal does not keep it.
        read: what the objective read of its trial beside the parameters ("number", "seed", "folder"), so that this
            answer may be another one for another trial of the same parameters. Who draws at random has read the seed.
        user_attrs: what the objective says of the trial beside its values, as JSON has it.
        ending: what else there is to say.
    """

    key: str
    values: Mapping[str, float] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    error: str | None = None
    doubt: str | None = None
    messages: bytes = b""
    read: tuple[str, ...] = ()
    user_attrs: Mapping[str, Any] = field(default_factory=dict)
    ending: Ending = PLAIN

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

    @property
    def params(self) -> Mapping[str, Any]:
        """Its parameters: those that its objective has chosen itself, else those that it has got."""
        chosen = self.result.ending.chosen
        return self.trial.params if chosen is None else chosen


def failure_of(result: Evaluation) -> str | None:
    """Why a trial has failed, with an error or as its objective says; None where it has not."""
    if result.error is not None:
        return result.error
    return result.ending.cause if result.ending.state == FAILED else None


def failures(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Those whose trial has failed."""
    return [outcome for outcome in outcomes if failure_of(outcome.result) is not None]


def state_of(outcomes: Sequence[Outcome]) -> str:
    """What became of a trial of a search, from its stages in their order."""
    trial, result = outcomes[-1]
    if failure_of(result) is not None:
        return FAILED
    if result.ending.state == PRUNED or not trial.segment.last:
        return PRUNED
    return INFEASIBLE if any(value > 0 for value in result.ending.constraints) else COMPLETE


Batch = tuple[Trial, ...]


def is_group(batch: Batch) -> bool:
    """Whether its trials are evaluated as one, and share the time evenly: they have places in a group.

    If that raises or its worker dies, no trial is to blame: each half becomes a batch.
    """
    return batch[0].segment.place is not None


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """Both halves of a batch that failed as a whole, so that nobody knows whose failure it was."""
    return batch[: len(batch) // 2], batch[len(batch) // 2 :]


class Window(NamedTuple):
    """What a search yields so that it need not wait for all that is open.

    Attributes:
        new: batches to add to those that are open; perhaps none.
        awaited: the open trials, as of one batch, whose results it is sent next, once they are known.
    """

    new: Sequence[Batch]
    awaited: Batch


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
