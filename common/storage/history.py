"""What a journal says, read back: its trials and results, checked line by line, since anyone may have written it."""

from __future__ import annotations

import gc
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from common.errors import UsageError
from common.trial import Place, Result, Trial

FORMAT = 1
NAME = "journal.jsonl"
_DAMAGED = (  # what reading a file of arrays may raise
    OSError, ValueError, KeyError, EOFError, MemoryError, NotImplementedError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
BEGINNING = b'{"format":'


@dataclass
class History:
    """What a journal says: its header, the trials with their results by key, its starts and ends."""

    header: dict[str, Any]
    trials: dict[str, Trial] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)
    ends: list[dict[str, Any]] = field(default_factory=list)  # fewer than runs where a run was killed
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
                raise ValueError(f"its {name} is no array")
            return array
        except _DAMAGED as error:
            raise UsageError(f"{self._path} is damaged ({error}): restore it, or use --restart") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def read_journal(folder: Path) -> History | None:
    """What the journal in `folder` holds; None where there is none.

    Raises UsageError for a line that is no record of this format, naming file and line number.
    """
    path = folder / NAME
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    lines = content.split(b"\n")
    torn = lines.pop()
    if not lines and torn[: len(BEGINNING)] == BEGINNING[: len(torn)]:
        return None
    if not lines:
        raise _no_header(path)
    history = History(_read_header(path, lines[0]), size=len(content) - len(torn))
    places: dict[tuple[Any, ...], Place] = {}
    with _no_collection():
        for number, line in enumerate(lines[1:], start=2):
            try:
                _read_line(_parsed(line), folder, history, places)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
                raise UsageError(
                    f"{path}, line {number}, is no journal record ({error}): restore the file or use --restart"
                ) from error
    return history


@contextmanager
def _no_collection() -> Iterator[None]:
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
        header = _parsed(line)
        version, _ = header["format"], header["settings"]["experiment"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _no_header(path) from error
    if not isinstance(version, int) or not 1 <= version <= FORMAT:
        raise UsageError(f"{path} has format {version}, this program reads up to {FORMAT}: use a newer version of it")
    return header


def _no_header(path: Path) -> UsageError:
    return UsageError(f"{path}, line 1, is no journal header: use another --results folder")


def _parsed(line: bytes) -> Any:
    """The JSON of a line. Raises ValueError or RecursionError."""
    record = json.loads(line.decode())
    if b"\\ud" in line or b"\\uD" in line:
        json.dumps(record, ensure_ascii=False).encode()  # half a surrogate pair could not be printed
    return record


def _place(host: str, rank: int, slot: int, device: str) -> Place:
    if [type(part) for part in (host, rank, slot, device)] != [str, int, int, str]:
        raise TypeError("its place is not host, rank, slot, device")
    return Place(host, rank, slot, device)


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
            raise TypeError("its error is no text")
        history.trials[key] = Trial(key, params)
        history.results[key] = Result(
            key,
            {name: float(value) for name, value in values.items()},
            arrays,
            float(record["seconds"]),
            place,
            int(record["attempt"]),
            record["error"],
        )
    elif "run" in record:
        history.runs.append(dict(record["run"]))
    elif "end" in record:
        history.ends.append(dict(record["end"]))
        history.complete = bool(record["end"]["complete"])
    else:
        raise ValueError("it has neither key nor run nor end")


def differing_setting(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The first setting in which two studies differ, None where they are the same study."""
    return next((name for name in {**one, **other} if one.get(name) != other.get(name)), None)


def array_path(folder: Path, key: str) -> Path:
    """Where the arrays of the trial `key` are kept."""
    return folder / "arrays" / (quote(key, safe="") + ".npz")
