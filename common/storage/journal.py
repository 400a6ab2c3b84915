"""The memory of a study: an append-only file of JSON lines, written by rank 0 alone.

    journal.jsonl   line 1   {"format": 1, "experiment": ..., "settings": {...}, "versions": {...}, ...}
                    then     {"key": ..., "params": {...}, "values": {...}, "arrays": ..., "seconds": ...,
                              "place": [host, rank, slot, device], "attempt": ..., "error": ...}   a finished trial
                    between  {"run": {...}}   a start of the command        {"end": {...}}   its end
    arrays/*.npz    the arrays of a trial, complete before the line that names them

A line counts once it ends in a newline: what a crash left of the last one is cut off. A line is
acknowledged (the search hears of its result) after fsync, so an acknowledged result is never lost.
Infinity is written as the string "inf", since JSON has no word for it.
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import StorageError, UsageError
from common.storage.files import remove_parts, sync_folder, written_whole
from common.storage.history import FORMAT, NAME, History, StoredArrays, array_path, differing_setting, read_journal
from common.trial import Result, Trial


class Journal:
    """The one writer of a results folder.

    Opening it takes an exclusive lock for as long as the process lives, reads what is there, and
    writes the header where nothing is. Raises UsageError when another job holds the folder, when the
    journal there belongs to other settings (named), or when the folder cannot be written.
    """

    def __init__(self, folder: Path, header: Mapping[str, Any], restart: bool = False):
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = _locked(folder / NAME)
            if restart:
                self._file = _set_aside(folder, self._file)
            history = read_journal(folder)
            if history is None:
                self.history = History(dict(header))
                self._file.truncate(0)
                self._write([{"format": FORMAT, **header}])
                sync_folder(folder)
            else:
                _refuse_other_settings(folder, history.header["settings"], header["settings"])
                self.history = history
                self._file.truncate(history.size)
            for place in (folder, folder / "arrays"):
                remove_parts(place)
        except OSError as error:
            raise UsageError(f"results folder {folder} cannot be written: {error.strerror}") from error

    def append(self, outcomes: Sequence[tuple[Trial, Result]]) -> list[Result]:
        """Write finished trials durably; the results come back with their arrays on disk.

        Raises StorageError when they could not be written: nothing may then be taken as done.
        """
        stored, records = [], []
        with self._or_storage_error():
            for trial, result in outcomes:
                if result.arrays:
                    path = array_path(self.folder, trial.key)
                    if not path.parent.exists():
                        path.parent.mkdir()
                        sync_folder(self.folder)
                    with written_whole(path) as file:
                        np.savez(file, allow_pickle=False, **result.arrays)
                    result = replace(result, arrays=StoredArrays(path, list(result.arrays)))
                stored.append(result)
                records.append(_record(trial, result))
            if any(result.arrays for result in stored):
                sync_folder(self.folder / "arrays")
            self._write(records)
        return stored

    def note(self, **record: Any) -> None:
        """Write a line about the run itself: run={...} at its start, end={...} at its end."""
        with self._or_storage_error():
            self._write([record])

    @contextmanager
    def _or_storage_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"results folder {self.folder} cannot be written ({error.strerror}): mend that, then run the same "
                "command to continue"
            ) from error

    def _write(self, records: Sequence[Mapping[str, Any]]) -> None:
        if not records:
            return
        lines = (json.dumps(record, allow_nan=False, separators=(",", ":")) + "\n" for record in records)
        content = "".join(lines).encode()
        while content:
            content = content[self._file.write(content) :]
        os.fsync(self._file.fileno())
        # What is written to a file that was removed succeeds, and is lost.
        try:
            there = os.path.samestat(os.stat(self.folder / NAME), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            there = False
        if not there:
            raise FileNotFoundError(errno.ENOENT, f"{NAME} was removed or replaced while the study ran")

    def close(self) -> None:
        """Release the folder."""
        self._file.close()


def is_running(folder: Path) -> bool:
    """Whether a job holds the folder now."""
    with open(folder / NAME, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _record(trial: Trial, result: Result) -> dict[str, Any]:
    place = result.place
    return {
        "key": trial.key,
        "params": dict(trial.params),
        "values": {name: value if math.isfinite(value) else str(value) for name, value in result.values.items()},
        "arrays": list(result.arrays) or None,
        "seconds": round(result.seconds, 6),
        "place": [place.host, place.rank, place.slot, place.device],
        "attempt": result.attempt,
        "error": result.error,
    }


def _locked(path: Path) -> io.FileIO:
    file = open(path, "ab", buffering=0)  # noqa: SIM115 - it stays open, and locked, as long as the journal
    for pause in (0.05, 0.2, 0.0):  # `common.status` holds it for an instant
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            time.sleep(pause)
    file.close()
    raise UsageError(f"another job is writing to {path.parent}: wait for it, or give another --results folder")


def _set_aside(folder: Path, file: io.FileIO) -> io.FileIO:
    """Rename the journal and arrays of an earlier study to the first free number."""
    if file.tell() == 0:
        return file
    number = 1
    while (old := folder / f"journal-{number}.jsonl").exists():
        number += 1
    if (folder / "arrays").exists():
        os.rename(folder / "arrays", folder / f"arrays-{number}")
    os.rename(folder / NAME, old)
    fresh = _locked(folder / NAME)
    file.close()
    return fresh


def _refuse_other_settings(folder: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    if (name := differing_setting(new, old)) is not None:
        raise UsageError(
            f"{folder} holds a study with {name} = {old.get(name)}, not {new.get(name)}: "
            f"give another --results folder, or --restart to set the old study aside"
        )
