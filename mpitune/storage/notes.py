"""What a journal says beside its trials: header, starts, ends, deaths. Each part has the type that readers rely on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mpitune.storage.lines import FARTHEST, place_of
from mpitune.trial import Place


@dataclass(frozen=True)
class Death:
    """The end of a worker that was not asked to end.

    Attributes:
        time: when rank 0 heard of it, Unix time.
        seconds: that the worker had worked on its trial; 0 with none. Where its rank was lost, since the slot was given
            the trial.
        place: of the slot.
        key: of the trial that was running, "" with none; it is tried once more, unless that was its second attempt.
        cause: one line.
    """

    time: float
    seconds: float
    place: Place
    key: str
    cause: str


def _text(value: Any) -> bool:
    return type(value) is str


def _texts(value: Any) -> bool:
    return type(value) is list and all(map(_text, value))


def _text_or_none(value: Any) -> bool:
    return value is None or _text(value)


def _named(value: Any) -> bool:
    return type(value) is dict


def _named_texts(value: Any) -> bool:
    return _named(value) and all(map(_text, value.values()))


def _time(value: Any) -> bool:
    return type(value) in (int, float) and -FARTHEST <= value <= FARTHEST


def _duration(value: Any) -> bool:
    return _time(value) and value >= 0


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _number_or_none(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and abs(value) < 2**63)


def _truth(value: Any) -> bool:
    return type(value) is bool


Kinds = Mapping[str, Callable[[Any], bool]]
_HEADER: Kinds = {
    "format": _count, "settings": _named, "versions": _named_texts, "commit": _text_or_none, "command": _texts,
    "beginnings": _named, "goal": _text_or_none,
}  # fmt: skip
_SETTINGS: Kinds = {"experiment": _text}  # all else is the experiment's own
_RUN: Kinds = {
    "command": _texts, "versions": _named_texts, "commit": _text_or_none, "time": _text, "began": _time,
    "threads": _number_or_none, "slots": _texts, "n_trials": _number_or_none, "seconds": _duration,
}  # fmt: skip
_END: Kinds = {"complete": _truth, "seconds": _duration, "failed": _count}
_DEATH: Kinds = {"time": _time, "seconds": _duration, "key": _text, "cause": _text}


def check_header(header: Mapping[str, Any]) -> None:
    """Raise TypeError or KeyError unless this is the first line of a journal."""
    _require(header, _HEADER, "format", "settings")
    _require(header["settings"], _SETTINGS, "experiment")
    if header["format"] < 1:
        raise TypeError("its format is no format")


def read_run(run: Any) -> dict[str, Any]:
    """A start of the command, by the names that `RankZero` gives; an older one has fewer. Raises TypeError."""
    return _require(run, _RUN)


def read_end(end: Any) -> dict[str, Any]:
    """The end of a run. Raises TypeError or KeyError."""
    return _require(end, _END, "complete")


def read_death(death: Any) -> Death:
    """The death of a worker. Raises TypeError or KeyError."""
    _require(death, _DEATH, *_DEATH)
    place = place_of(death["place"])
    return Death(float(death["time"]), float(death["seconds"]), place, death["key"], death["cause"])


def _require(record: Any, kinds: Kinds, *names: str) -> dict[str, Any]:
    """The record, if it has these names and what it has is of its kind. Raises KeyError or TypeError."""
    if not _named(record):
        raise TypeError("it says nothing by name")
    for name in names:
        record[name]
    for name, is_right in kinds.items():
        if name in record and not is_right(record[name]):
            raise TypeError(f"its {name} is of a wrong type")
    return dict(record)
