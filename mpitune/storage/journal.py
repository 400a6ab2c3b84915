"""The memory of a study: an append-only file of JSON lines, written by rank 0 alone.

    journal.jsonl   line 1   {"format": 5, "settings": {"experiment": ..., ...}, ..., "crc": ...}
                    then     {"key": ..., "params": {...}, "segment": {...}, "values": {...}, "arrays": ...,
                              "seconds": ..., "ended": ..., "attrs": {...}, "ending": {...},
                              "place": [host, rank, slot, device], "attempt": ..., "error": ...}
                              a finished trial; "segment": the fields of `Segment`, "ending": of `Ending`,
                              as far as they say something; "peak_bytes", "read", "attrs": see `Result`
                    between  {"run": {...}}   a start of the command        {"end": {...}}   its end
    arrays/*.npz    the arrays of a trial, complete before the line that names them

A line counts once it ends in a newline: what a crash left of the last one is cut off. A line is
acknowledged (the search hears of its result) after fsync, so an acknowledged result is never lost.
Infinity is written as the string "inf", since JSON has no word for it. Every line ends with its CRC-32, "crc".
"""

from __future__ import annotations

import errno
import fcntl
import io
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from mpitune.errors import StorageError, UsageError, or_typed, shortened, utf8
from mpitune.locks import NoLocks, try_lock
from mpitune.storage.arrays import StoredArrays, array_path
from mpitune.storage.aside import MADE, MOVED, keep_before, move_before
from mpitune.storage.files import (
    ALIVE,
    JOBS,
    job_folders,
    make_folder,
    regular_file,
    remove_folder,
    sync_folder,
    written_first,
    written_whole,
)
from mpitune.storage.history import JOURNAL, History, read_journal, require_same_study
from mpitune.storage.lines import FORMAT
from mpitune.storage.records import as_written, written, written_trial
from mpitune.trial import Result, Trial

log = logging.getLogger(__name__)

SILENT_S = 90.0  # without a heartbeat, after which people are told that a job lives no more, where there are no locks

Settings = Mapping[str, Any]


class Journal:
    """The one writer of a results folder.

    Opening it takes an exclusive lock for as long as the process lives, reads what is there, and
    writes the header where nothing is. Raises UsageError when another job holds the folder, when the
    journal there belongs to other settings (named), or when the folder cannot be written. What is not `durable`, as the
    folder goes with this process, is not waited for. Without `locks`, the file system may have none. `succeeds` says of
    a study there whether this one, with its own settings, comes after it and may use its results. `files`: those of its
    report, which are set aside with a study.
    """

    def __init__(
        self,
        folder: Path,
        header: Mapping[str, Any],
        restart: bool = False,
        *,
        durable: bool = True,
        locks: bool = True,
        succeeds: Callable[[History, Settings], bool] = lambda stored, current: False,
        files: Collection[str] = (),
    ):
        self._files = files
        self.folder, self._path, self._durable = folder, str(folder / JOURNAL), durable
        try:
            self._made = not folder.exists()
            folder.mkdir(parents=True, exist_ok=True)
            share = "" if restart else or_typed("join", then=" in both jobs, which then share the work")
            self._file = open_locked(folder / JOURNAL, required=locks, fix=share)
            move_before(folder, files)  # what a start that was killed has left
            if restart and (size := self._file.tell()):
                self._begin_after({**header, "aside": keep_before(folder, size)})
            history = read_journal(folder)
            self._in_vain = history is None  # a new study, and no trial has succeeded
            if history is None:
                self.history = History({"format": FORMAT, **header})
                self._cut(0)
                self._write(written(self.history.header))
                if durable:
                    sync_folder(folder)
            else:
                fix = f"give another results folder{or_typed('restart', then=' to set the old study aside')}"
                stored, current = history.header["settings"], header["settings"]
                if succeeds(history, current):
                    before = [*history.header.get("before", ()), keep_before(folder, history.size)]
                    self._begin_after({**header, "before": before})
                    history = read_journal(folder)
                    assert history is not None
                else:
                    require_same_study(folder, stored, current, fix=fix)
                self.history = history
                self._cut(history.size)
        except BaseException as error:
            if hasattr(self, "_file"):
                self._file.close()  # which unlocks the folder: the error's traceback would keep this object
            if isinstance(error, OSError):
                raise UsageError(f"results folder {folder} cannot be written: {error.strerror}") from error
            raise
        self.shared: io.FileIO | None = None  # see `join`
        self.history.forget_lost(folder)

    def _begin_after(self, header: Mapping[str, Any]) -> None:
        """Begin another study in the place of the one there. It appears at once; its header says where that one is."""
        with written_whole(self.folder / JOURNAL) as new:
            new.write(written({"format": FORMAT, **header}))
        old, self._file = self._file, open_locked(self.folder / JOURNAL)
        old.close()
        sync_folder(self.folder)
        move_before(self.folder, self._files)

    def append(self, outcomes: Sequence[tuple[Trial, Result]]) -> list[Result]:
        """Write finished trials durably; the results come back with their arrays on disk, and long errors cut.

        Raises:
            StorageError: they could not be written: nothing may then be taken as done.
        """
        stored, lines = [], []
        with written_into(self.folder):
            for trial, result in outcomes:
                if result.arrays:
                    path = array_path(self.folder, trial.key)
                    if not path.parent.exists():
                        path.parent.mkdir()
                        sync_folder(self.folder)
                    with written_whole(path, durable=self._durable) as file:
                        np.savez(file, allow_pickle=False, **{utf8(n): array for n, array in result.arrays.items()})
                    result = replace(result, arrays=StoredArrays(path, list(result.arrays)))
                if result.error is not None:
                    result = replace(result, error=shortened(result.error))
                stored.append(result := as_written(result))
                lines.append(written_trial(trial, result))
            if self._durable and any(result.arrays for result in stored):
                sync_folder(self.folder / "arrays")
            self._write(b"".join(lines))
        if self._durable and (told := os.environ.pop("MPITUNE_PROGRESS", "")):  # by which a batch job knows that it
            with suppress(OSError):  # gets further when it is run again
                Path(told).touch()
        self._in_vain = self._in_vain and all(result.failed for result in stored)
        return stored

    def note(self, **record: Any) -> None:
        """Write a line about the run itself: run={...} at its start, end={...} at its end."""
        with written_into(self.folder):
            self._write(written(record))

    def verify(self) -> None:
        """Look whether all that was written is there still. Raises StorageError."""
        with written_into(self.folder):
            self._require_whole()

    def _cut(self, size: int) -> None:
        self._file.truncate(size)
        self._size = size

    def _write(self, content: bytes) -> None:
        if not content:
            return
        self._require_whole()
        while content:
            written = self._file.write(content)
            self._size += written
            content = content[written:]
        if self._durable:
            os.fsync(self._file.fileno())
        self._require_whole()

    def _require_whole(self) -> None:
        """Raise OSError where the file is another than the one that was opened, or not as long as what was written.

        Writing to a file that was removed succeeds, and the text is lost. After one that was cut, a line would be
        written to the rest of another: so this is looked at before, too.
        """
        here = os.fstat(self._file.fileno())
        try:
            there = os.path.samestat(os.stat(self._path, follow_symlinks=False), here)
        except FileNotFoundError:
            there = False
        if not there:
            raise FileNotFoundError(errno.ENOENT, f"{JOURNAL} was removed or replaced while the study ran")
        if here.st_size != self._size:
            what = "cut" if here.st_size < self._size else "written by another program"
            raise OSError(errno.EIO, f"{JOURNAL} was {what} while the study ran")

    def close(self) -> None:
        """Release the folder."""
        self._file.close()
        if self.shared is not None:
            self.shared.close()

    def end(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Release the folder. A new study that is refused before any trial has succeeded is removed, journal last."""
        refused = isinstance(error, UsageError) and not isinstance(error, StorageError)
        with suppress(OSError):  # what is left then is a study
            if refused and self._in_vain and self.shared is None:
                self._require_whole()
                for name in MADE:
                    remove_folder(self.folder / name)
                if not any(os.path.lexists(self.folder / name) for name in MOVED):
                    os.unlink(self._path)
                    if self._made:
                        self.folder.rmdir()
        self.close()


def join(folder: Path, header: Mapping[str, Any], job: str) -> Journal:
    """The journal of a job that joins others in the study of this folder, which is begun if it is not there.

    Its history is that of all jobs. The file of the study stays locked as long as this job lives, where there are
    locks, so that no job writes there that does not join. Raises UsageError as `Journal`.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(folder / JOURNAL):
            written_first(folder / JOURNAL, written({"format": FORMAT, **header}))
            sync_folder(folder)
        shared = io.FileIO(regular_file(folder / JOURNAL))
        with suppress(NoLocks):
            if not try_lock(shared.fileno(), fcntl.LOCK_SH):
                raise BlockingIOError
        if not os.path.samestat(os.lstat(folder / JOURNAL), os.fstat(shared.fileno())):
            raise BlockingIOError  # a job that does not join has put another study there
        history = read_journal(folder)
        if history is None:
            raise UsageError(f"{folder / JOURNAL} has no whole line: remove it, then run the same command")
        if history.half_moved:
            raise UsageError(
                f"the study in {folder} was being begun or changed when its job was killed: run the same command once "
                "without join"
            )
        settings = history.header["settings"]
        fix = "give another results folder"
        require_same_study(folder, settings, header["settings"], fix=fix)
        make_folder(folder / JOBS / job)  # not through a link
    except BlockingIOError as error:
        raise UsageError(
            f"a job that does not join others is writing to {folder}: wait for it, or give another results folder"
        ) from error
    except OSError as error:
        raise UsageError(f"results folder {folder} cannot be written: {error.strerror}") from error
    journal = Journal(folder / JOBS / job, {**header, "settings": settings}, locks=False)
    history.forget_lost(folder)
    journal.history, journal.shared = history, shared
    return journal


@contextmanager
def written_into(folder: Path) -> Iterator[None]:
    """Raises StorageError, one line for the user, where a file of a results folder cannot be written."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"results folder {folder} cannot be written ({error.strerror or error}): fix that, then run the same "
            "command to continue"
        ) from error


def is_running(folder: Path) -> bool:
    """Whether a job holds the folder now, or one that has joined its study lives."""
    for job in job_folders(folder):
        with suppress(OSError):  # where it is not for this user to tell
            if _is_held(job):
                return True
    return _is_held(folder)


def _is_held(folder: Path) -> bool:
    with open(regular_file(folder / JOURNAL), "rb") as file, suppress(NoLocks):
        return not try_lock(file.fileno(), fcntl.LOCK_SH)
    with suppress(OSError):  # only a job that has joined can be at work there
        return abs(time.time() - (folder / ALIVE).stat().st_mtime) < SILENT_S
    return False


def open_locked(path: Path, required: bool = True, fix: str = "") -> io.FileIO:
    """The file, open for appending and locked as long as it is open. Raises UsageError where it cannot be locked.

    Where the file system has no locks and none is `required`, it is only open. `fix`: what the user can also do.
    """
    for pause in (0.05, 0.2, 0.0):  # `mpitune status` holds it for an instant
        file = io.FileIO(regular_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")  # the caller closes it
        try:
            held = not try_lock(file.fileno())
            if not held and os.path.lexists(path) and os.path.samestat(os.lstat(path), os.fstat(file.fileno())):
                return file  # and not one that was replaced before it was locked
        except NoLocks as error:
            if not required:
                return file
            file.close()
            raise UsageError(
                f"results folder {path.parent} is on a file system without locks ({error.strerror}), so two jobs could "
                "write to one study: mount it with locks (Lustre: -o flock; NFS: version 4, or a lockd that runs), or "
                "give another results folder"
            ) from error
        file.close()
        time.sleep(pause if held else 0.0)
    raise UsageError(f"another job is writing to {path.parent}: wait for it, or give another results folder{fix}")


def require_unused(folder: Path, files: Collection[str] | None = ()) -> None:
    """Raise UsageError where a study that begins there, and writes these files or any (None), may overwrite others'."""
    try:
        there = {name for name in os.listdir(folder) if not name.startswith(".")}
        there -= {JOBS} if job_folders(folder) else set()  # those of another site may come first
    except OSError:  # `Journal` says what is wrong
        return
    taken = there if files is None else there & {*MOVED, *files}
    if taken and not os.path.lexists(folder / JOURNAL):  # looked for last, as it is what a study makes first
        raise UsageError(
            f"{folder / min(taken)} is no part of a study, but one in this folder could overwrite it: move it, or give "
            "another results folder"
        )
