"""The lines of a journal, written and read: JSON objects, each with the checksum of its content.

Anyone may have written a journal. So each line is parsed and its types are checked when it is read, and readers rely on
them.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import astuple

from mpitune.errors import utf8
from mpitune.storage.arrays import StoredArrays, array_path
from mpitune.trial import LONGEST_KEY, PLAIN, WHOLE, Ending, Place, Result, Segment, Trial

# What a record that nobody here wrote raises: read from a damaged line, or taken for what it is not.
UNREADABLE = (
    ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError, msgspec.MsgspecError,
)  # fmt: skip
_LARGEST_INT = 2**62  # no number of a machine is so large
_LINE_END = b',"crc":"%08x"}'  # how a line ends
_LINE_END_BYTES = len(_LINE_END % 0)

Time = Annotated[float, Meta(ge=-9e9, le=9e9)]  # seconds: no time is farther from 1970
Seconds = Annotated[float, Meta(ge=0, le=9e9)]
Count = Annotated[int, Meta(ge=0, le=_LARGEST_INT)]
Number = Annotated[int, Meta(ge=-_LARGEST_INT, le=_LARGEST_INT)] | Annotated[float, Meta(gt=-(2.0**63), lt=2.0**63)]
BeforeName = Annotated[str, Meta(pattern=r"^before-[0-9]{1,9}$")]  # a folder in that of a study
Value = float | Literal["inf", "-inf"]
PlaceParts = tuple[str, Count, Count, str]  # host, rank, slot, device


class SegmentLine(Struct, frozen=True, omit_defaults=True, gc=False):
    """See `mpitune.trial.Segment`: the same fields in the same order."""

    number: Count | None = None
    fold: Count | None = None
    stage: Count | None = None
    last: bool = True
    start: Count = 0
    until: Count = 0
    parent: str = ""
    place: Count | None = None
    limits: tuple[tuple[Count, float], ...] = ()
    for_objective: Any = None


class EndingLine(Struct, omit_defaults=True, gc=False):
    """See `mpitune.trial.Ending`."""

    state: Literal["", "pruned", "failed"] = ""
    cause: str = ""
    steps: dict[Count, dict[str, Value]] = {}
    chosen: dict[str, Any] | None = None
    constraints: tuple[float, ...] = ()
    for_door: Any = None

    @property
    def ending(self) -> Ending:
        steps = {step: {name: float(value) for name, value in values.items()} for step, values in self.steps.items()}
        return Ending(self.state, self.cause, steps, self.chosen, self.constraints, self.for_door)


class TrialLine(Struct, kw_only=True, gc=False):
    """The line of a finished trial. Those with a default may be left out.

    Attributes:
        segment: of what it is a part; None where it stands for itself.
        values: infinity is a text, since JSON has no word for it.
        arrays: their names.
        peak_bytes, read, attrs, ending: see `Result`.
    """

    params: dict[str, int | float | str | bool]
    segment: SegmentLine | None = None
    key: Annotated[str, Meta(min_length=1, max_length=LONGEST_KEY)]
    values: dict[str, Value]
    arrays: Annotated[list[str], Meta(min_length=1)] | None
    seconds: Seconds
    ended: Time
    peak_bytes: Annotated[int, Meta(ge=0, le=_LARGEST_INT)] | None = None
    read: Annotated[tuple[str, ...], Meta(max_length=10)] = ()
    attrs: dict[str, Any] = {}
    ending: EndingLine | None = None
    place: PlaceParts
    attempt: Annotated[int, Meta(ge=1, le=_LARGEST_INT)]
    error: str | None

    @property
    def trial(self) -> Trial:
        """Raises ValueError for a parameter that is infinite or beyond a float, which types do not tell."""
        return Trial(self.key, self.params, WHOLE if self.segment is None else Segment(*astuple(self.segment)))

    def result(self, folder: Path) -> Result:
        """Its result, with arrays from the folder of the study."""
        return Result(
            self.key,
            {name: float(value) for name, value in self.values.items()},
            StoredArrays(array_path(folder, self.key), self.arrays) if self.arrays else {},
            self.error,
            seconds=self.seconds,
            ended=self.ended,
            peak_bytes=self.peak_bytes,
            place=_place(self.place),
            attempt=self.attempt,
            read=self.read,
            user_attrs=self.attrs,
            ending=PLAIN if self.ending is None else self.ending.ending,
        )


@lru_cache(10_000)
def _place(parts: PlaceParts) -> Place:
    return Place(*parts)


class _Settings(Struct):
    experiment: str  # all else is the experiment's own


class HeaderLine(Struct):
    """The first line of a journal."""

    format: Annotated[int, Meta(ge=1)]
    settings: _Settings
    kind: Literal["experiment", "search", "folds"] = "experiment"  # see `Experiment.kind`
    goal: str | None = None
    before: list[BeforeName] = []  # studies whose results this one uses, see `mpitune.storage.aside`
    aside: BeforeName | None = None


class FoldsNote(Struct, frozen=True):
    """The cross-validation of a search, and its race."""

    repeats: Annotated[int, Meta(ge=1, le=10**6)] = 1  # folds of one come one after the other
    ratio: float | None = None  # samples of a fold by those of its training, where splits are no cross-validation
    kind: str = ""  # this and the next four: see `mpitune.figures.winner.Winner`
    test: float = 0.0
    name: str = ""
    halving: bool = False
    careful: list[str] | None = None
    splits: Annotated[int, Meta(ge=1, le=10**6)] = 1
    race: float | None = None  # its confidence
    together: dict[str, int | None] = {}  # who leaves with whom, by candidate, where that is not with itself alone


class RunLine(Struct):
    """A start of the command, as `RankZero` notes it.

    `code` has digests of the code that known results stand for; `changed` are names of what is another since.
    """

    command: list[str] = []
    versions: dict[str, str] = {}
    time: str = ""
    began: Time = 0.0
    threads: Number | None = None
    slots: list[str] = []
    folds: FoldsNote = FoldsNote()
    goal: str = ""  # where it is not that of the header
    n_trials: Number | None = None
    code: dict[str, str] = {}
    changed: list[str] = []
    seconds: Seconds = 0.0


class EndLine(Struct):
    """The end of a run.

    Attributes:
        results, digest: of all that a complete study has, see `mpitune.storage.history.counted`.
        last: number of its last trial. Others may have begun before a callback ended it.
        beside: keys of results there that this run has not asked for.
    """

    complete: bool
    results: Count | None = None
    digest: str = ""
    last: Count = 0
    beside: tuple[str, ...] = ()
    seconds: Seconds = 0.0
    failed: Count = 0
    stopped: str = ""  # by what, see `Port.on_results`
    draining: bool = False  # trials that run may still end


def checked(record: Any, kind: type[Struct]) -> dict[str, Any]:
    """A record by the names of its parts, once these are known to be of this kind. Raises ValidationError."""
    msgspec.convert(record, kind)
    return dict(record)


def all_checked(lines: Sequence[bytes]) -> bool:
    """Whether every line ends with the checksum of its content."""
    checksums = tuple([zlib.crc32(line[:-_LINE_END_BYTES]) for line in lines])
    return b"".join([line[-_LINE_END_BYTES:] for line in lines]) == _LINE_END * len(lines) % checksums


def require_checksum(line: bytes) -> None:
    """Raise ValueError for a wrong checksum, or none."""
    if not all_checked([line]):
        raise ValueError("its checksum is not that of its content")


_read_trial = msgspec.json.Decoder(TrialLine).decode
_read_note = msgspec.json.Decoder(dict[str, Any]).decode


def read_line(line: bytes) -> TrialLine | dict[str, Any]:
    """What a line says: of a trial that has finished, else whatever it says but its checksum. Raises UNREADABLE."""
    try:
        return _read_trial(line)
    except msgspec.ValidationError:
        note = _read_note(line)
        if "key" in note:
            raise
    note.pop("crc", None)
    return note


_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def written(record: Mapping[str, Any]) -> bytes:
    """A line of the journal, with its checksum and newline. Raises ValueError for NaN and infinity.

    Half a surrogate pair in a text is escaped, as no JSON can have it.
    """
    line = _encode(record)
    return with_checksum((_encode(_as_utf8(record)) if "\\ud" in line else line).encode()) + b"\n"


def _as_utf8(thing: Any) -> Any:
    if isinstance(thing, str):
        return utf8(thing)
    if isinstance(thing, Mapping):
        return {_as_utf8(name): _as_utf8(value) for name, value in thing.items()}
    return [_as_utf8(item) for item in thing] if isinstance(thing, list | tuple) else thing


def as_written(result: Result) -> Result:
    """A result with its times as its line has them."""
    return replace(result, seconds=round(result.seconds, 6), ended=round(result.ended, 4))


def written_trial(trial: Trial, result: Result) -> bytes:
    """The line of a finished trial, whose result is `as_written`."""
    place = result.place
    return written(
        {
            "key": trial.key,
            "params": dict(trial.params),
            **({} if trial.segment is WHOLE else {"segment": trial.segment.named_fields}),
            "values": _finite(result.values),
            "arrays": list(result.arrays) or None,
            "seconds": result.seconds,
            "ended": result.ended,
            **({} if result.peak_bytes is None else {"peak_bytes": result.peak_bytes}),
            **({"read": result.read} if result.read else {}),
            **({"attrs": dict(result.user_attrs)} if result.user_attrs else {}),
            **({"ending": ending} if (ending := _ending(result.ending)) else {}),
            "place": [place.host, place.rank, place.slot, place.device],
            "attempt": result.attempt,
            "error": result.error,
        }
    )


def _finite(values: Mapping[str, float]) -> dict[str, float | str]:
    return {name: value if math.isfinite(value) else str(value) for name, value in values.items()}


def _ending(ending: Ending) -> dict[str, Any]:
    """What it says, but of whose fault the failure is."""
    if ending is PLAIN:
        return {}
    steps = {step: _finite(values) for step, values in ending.steps.items()}
    fields = {**vars(ending), "steps": steps, "fault": None}
    return {name: value for name, value in fields.items() if value != getattr(PLAIN, name)}


def with_checksum(line: bytes) -> bytes:
    """A line, a JSON object without its newline, with the CRC-32 of all before it as its last member, "crc"."""
    return line[:-1] + _LINE_END % zlib.crc32(line[:-1])
