"""Reading a journal: its trials and results, checked line by line, since anyone may have written it."""

from __future__ import annotations

import gc
import json
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from common.errors import UsageError
from common.trial import Place, Result, Trial, Used

FORMAT = 2  # 1 has no checksums; it is still read, and continued
NAME = "journal.jsonl"
_DAMAGED = (  # what reading a file of arrays may raise
    OSError, ValueError, KeyError, EOFError, MemoryError, NotImplementedError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
MANY = 10_000  # lines that are read at a time
BEGINNING = b'{"format":'
_CHECKED = re.compile(rb',"crc":"([0-9a-f]{8})"\}\Z')  # how a line ends that has a checksum
_KEY = re.compile(rb'"key":"((?:[^"\\]|\\.){1,1000})"')


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


@dataclass
class History:
    """The content of a journal: its header, the trials with their results by key, its starts and ends, and deaths."""

    header: dict[str, Any]
    trials: dict[str, Trial] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)  # with the "seconds" of its end, unless it was killed
    ends: list[dict[str, Any]] = field(default_factory=list)  # fewer than runs where a run was killed
    deaths: list[Death] = field(default_factory=list)
    open: bool = False  # the last run has no end so far
    size: int = 0  # bytes up to the end of the last whole line
    complete: bool = False  # the last thing written is the mark of a finished study


class StoredArrays(Mapping[str, np.ndarray]):
    """The arrays of one trial, read from their file each time one is asked for."""

    def __init__(self, path: Path, names: Sequence[str]):
        self._path, self._names = path, tuple(names)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        try:
            with np.load(self._path, allow_pickle=False) as file:
                array = file[name]
            if not isinstance(array, np.ndarray):  # NumPy hands out other members of the archive as bytes
                raise ValueError(f"its {name} is not an array")
            return array
        except _DAMAGED as error:
            repair = f"restore it, or run python -m common.status --repair {self._path.parent.parent}"
            raise UsageError(f"{self._path} is damaged ({error}): {repair}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True)
class Damage:
    """A line of a journal that cannot be used.

    Attributes:
        number: of the line, from 1.
        key: of its trial, None if not known.
    """

    number: int
    key: str | None
    reason: str

    def __str__(self) -> str:
        trial = f" (trial {self.key})" if self.key is not None else ""
        return f"line {self.number}{trial} is damaged: {self.reason}"


def read_journal(folder: Path) -> History | None:
    """Read the journal in `folder`; None where there is none.

    Raises:
        UsageError: for a line that is damaged or no record of this format, naming file, line number and trial.
    """
    found = read_lines(folder, keep=False)
    if found is None:
        return None
    history, _, damaged = found
    if damaged:
        more = f" ({len(damaged) - 1} more are)" if len(damaged) > 1 else ""
        raise UsageError(
            f"{folder / NAME}, {damaged[0]}{more}: run python -m common.status --repair {folder}, "
            "then the same command evaluates again what was lost"
        )
    return history


def read_lines(folder: Path, keep: bool = True) -> tuple[History, list[bytes], list[Damage]] | None:
    """The content of the whole lines of the journal in `folder`, the lines themselves, and the damaged ones.

    Args:
        folder: of the study.
        keep: whether to return the lines, which take much memory; else the header alone.

    Returns:
        (what the sound lines say, all lines without their newlines, the damaged ones in order); None where there is
        no journal yet.

    Raises:
        UsageError: where the file cannot be read, or its first line is no header that can be trusted.
    """
    path = folder / NAME
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed by the with below
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    with file, no_collection():
        try:
            first = file.readline()
            if not first.endswith(b"\n") and first[: len(BEGINNING)] == BEGINNING[: len(first)]:
                return None
            if not first.endswith(b"\n"):
                raise _no_header(path)
            history = History(_read_header(path, first[:-1]), size=len(first))
            lines = [first[:-1]]
            damaged: list[Damage] = []
            places: dict[tuple[Any, ...], Place] = {}
            number = 2
            while some := list(islice(file, MANY)):
                if not some[-1].endswith(b"\n"):
                    some.pop()  # what a crash left of the last line
                history.size += sum(map(len, some))
                some = [line[:-1] for line in some]
                _read_some(some, number, folder, history, places, damaged)
                number += len(some)
                if keep:
                    lines += some
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    return history, lines, damaged


def _read_some(
    lines: list[bytes],
    number: int,
    folder: Path,
    history: History,
    places: dict[tuple[Any, ...], Place],
    damaged: list[Damage],
) -> None:
    """Read neighbouring lines, the first of which has this number."""
    checked = history.header["format"] >= 2
    records = _parsed_together(lines) if checked else None
    for n, line in enumerate(lines):
        try:
            record = records[n] if records is not None else _parsed(line, checked)
            _read_line(record, folder, history, places)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            key = _KEY.search(line)
            name = None if key is None else key[1].decode(errors="replace")
            damaged.append(Damage(number + n, name, str(error) or type(error).__name__))


def read_header(folder: Path) -> dict[str, Any] | None:
    """The header of the journal in `folder`, without reading more; None where there is none. Raises UsageError."""
    try:
        with open(folder / NAME, "rb") as file:
            line = file.readline()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{folder / NAME} cannot be read: {error.strerror}") from error
    return _read_header(folder / NAME, line[:-1]) if line.endswith(b"\n") else None


def read_study(folder: Path) -> History:
    """Read the journal in `folder`.

    Raises:
        UsageError: as `read_journal`, and where there is none.
    """
    history = read_journal(folder)
    if history is None:
        raise UsageError(f"{folder} holds no study: give the results folder of one")
    return history


def require_same_study(
    folder: Path, theirs: Mapping[str, Any], mine: Mapping[str, Any], fix: str, first: Path | None = None
) -> None:
    """Raise UsageError, which names the first setting that differs, unless two studies have the same settings.

    Args:
        folder: of the study with the settings `theirs`.
        theirs: settings that are there.
        mine: settings that are expected.
        fix: what the user can do.
        first: folder of the study with the settings `mine`; None where they are those of the command.
    """
    if (name := differing_setting(mine, theirs)) is not None:
        expected = f"not {mine.get(name)}" if first is None else f"{first} one with {mine.get(name)}"
        raise UsageError(f"{folder} holds a study with {name} = {theirs.get(name)}, {expected}: {fix}")


def with_checksum(line: bytes) -> bytes:
    """A line, a JSON object without its newline, with the CRC-32 of all before it as its last member, "crc"."""
    return line if _CHECKED.search(line) else line[:-1] + b',"crc":"%08x"}' % zlib.crc32(line[:-1])


@contextmanager
def no_collection() -> Iterator[None]:
    """Without the garbage collector, which would walk all records again and again while they grow."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _read_header(path: Path, line: bytes) -> dict[str, Any]:
    try:
        header = _parsed(line, checked=False)
        version, _ = header["format"], header["settings"]["experiment"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _no_header(path) from error
    if not isinstance(version, int) or not 1 <= version <= FORMAT:
        raise UsageError(f"{path} has format {version}, this program reads up to {FORMAT}: use a newer version of it")
    if version >= 2 and not _CHECKED.search(line):
        raise _no_header(path)
    return header


def _no_header(path: Path) -> UsageError:
    return UsageError(
        f"{path}, line 1, is not a journal header, or a damaged one: use another --results folder, or --restart"
    )


def _parsed(line: bytes, checked: bool) -> Any:
    """The JSON of a line without its checksum. Raises ValueError or RecursionError.

    checked: whether it must have one; one that it has must be right in any case.
    """
    checksum = _CHECKED.search(line)
    if checksum is not None and int(checksum[1], 16) != zlib.crc32(line[: checksum.start()]):
        raise ValueError("its checksum is not that of its content")
    if checksum is None and checked:
        raise ValueError("it has no checksum")
    record = json.loads(line.decode())
    if checksum is not None:
        del record["crc"]
    if b"\\ud" in line or b"\\uD" in line:
        json.dumps(record, ensure_ascii=False).encode()  # half a surrogate pair could not be printed
    return record


def _parsed_together(lines: list[bytes]) -> list[Any] | None:
    """The JSON of lines that have right checksums, in one go; None where they must be looked at one by one.

    It takes half the time, and equal names are one object in memory.
    """
    for line in lines:
        if line[-18:-10] != b',"crc":"' or line[-2:] != b'"}' or line[:1] != b"{":
            return None
        if b"%08x" % zlib.crc32(line[:-18]) != line[-10:-2]:
            return None
    whole = b",".join(lines)
    if b"\\ud" in whole or b"\\uD" in whole:
        return None
    try:
        records = json.loads(b"[%s]" % whole)
    except (ValueError, RecursionError):
        return None
    if len(records) != len(lines):
        return None
    for record, line in zip(records, lines, strict=True):
        if type(record) is not dict or record.get("crc") != line[-10:-2].decode():
            return None  # lines that are only together what they should be each
    return records


def _place(host: str, rank: int, slot: int, device: str) -> Place:
    if [type(part) for part in (host, rank, slot, device)] != [str, int, int, str]:
        raise TypeError("its place is not host, rank, slot, device")
    return Place(host, rank, slot, device)


def _used(
    cpu_seconds: float | None = None,
    peak_bytes: int | None = None,
    gpu: float | None = None,
    gpu_bytes: int | None = None,
    *,
    compiled: float | None = None,
) -> Used:
    used = Used(cpu_seconds, peak_bytes, gpu, gpu_bytes, compiled)
    if not all(part is None or type(part) in (int, float) for part in used):
        raise TypeError("what it used is not a number")
    return used


def _read_line(record: dict[str, Any], folder: Path, history: History, places: dict[tuple[Any, ...], Place]) -> None:
    history.complete = False
    if "key" in record:
        key, params, values = record["key"], record["params"], record["values"]
        arrays: Mapping[str, np.ndarray] = {}
        if record["arrays"] is not None:
            arrays = StoredArrays(array_path(folder, key), record["arrays"])
        where = tuple(record["place"])
        place = places.get(where) or places.setdefault(where, _place(*where))
        if not isinstance(record["error"], str | None):
            raise TypeError("its error is not text")
        history.trials[key] = Trial(key, params)
        history.results[key] = Result(
            key,
            values if all(type(v) is float for v in values.values()) else {n: float(v) for n, v in values.items()},
            arrays,
            record["error"],
            seconds=float(record["seconds"]),
            ended=float(record.get("ended", 0.0)),
            used=_used(*record.get("used", ()), compiled=record.get("compiled")),
            place=place,
            attempt=int(record["attempt"]),
        )
    elif "run" in record:
        history.runs.append(dict(record["run"]))
        history.open = True
    elif "end" in record:
        if not history.open and history.ends:  # the run was told to stop, and now it has
            history.ends.pop()
        history.ends.append(dict(record["end"]))
        if history.runs and "seconds" in record["end"]:
            history.runs[-1]["seconds"] = float(record["end"]["seconds"])
        history.open = False
        history.complete = bool(record["end"]["complete"])
    elif "death" in record:
        death = record["death"]
        key, cause = death["key"], death["cause"]
        if not isinstance(key, str) or not isinstance(cause, str):
            raise TypeError("its key or cause is not text")
        history.deaths.append(Death(float(death["time"]), float(death["seconds"]), _place(*death["place"]), key, cause))
    elif "repair" not in record:  # which says for people what was set aside
        raise ValueError("it has neither key nor run nor end")


def differing_setting(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The first setting in which two studies differ, None where they are the same study."""
    return next((name for name in {**one, **other} if one.get(name) != other.get(name)), None)


def array_path(folder: Path, key: str) -> Path:
    """The file of the arrays of the trial `key`."""
    return folder / "arrays" / (quote(key, safe="") + ".npz")
