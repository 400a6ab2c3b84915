"""Workers that share a device take its memory in turn, so that none of them runs out of it.

It knows no GPU library: `DeviceMemory` is what a program makes of the library it computes with. A training says what it
takes before it starts. One that the device could never hold is refused. One that there is no room for now waits until
others have ended. It keeps the turn while it waits, so that small ones do not slip past it for ever. A training that
has begun needs no turn to end.

Two byte-range locks of one file for each device and user tell workers of each other. The kernel gives them back when
a process dies, however it dies. The empty file stays, as to remove it would take it from under those who wait.

    byte TURN     exclusively: waiting for room, then taking it
    byte BEGUN    shared: a training goes on here; a process that can have it exclusively has nobody to wait for
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from jit.private import open_lock, private_folder

TURN, BEGUN = 0, 1
POLL_S = 0.2  # How often to look whether there is room.
LOG_S = 60.0  # How often to say that there is none.
GRACE_S = 10.0  # For memory to come back after its process has died.
_log = logging.getLogger(__name__)


def tell_waiting(waits: bool) -> None:
    """Called when this process begins to wait for its turn, and when that has come."""
    if _on_wait is not None:
        _on_wait(waits)


_on_wait: Callable[[bool], None] | None = None


def on_wait(told: Callable[[bool], None] | None) -> None:
    """Set the function that hears of waiting. A worker tells its agent: a trial that waits does not hang."""
    global _on_wait
    _on_wait = told


class DeviceMemory(Protocol):
    """Memory of a device. `total` and `free` are bytes; memory that this process has taken is not free."""

    def total(self) -> int: ...
    def free(self) -> int: ...

    def take(self, n_bytes: int) -> bool:
        """Make it this process's, for other processes to see; False if it was not there after all."""

    def give_back(self) -> None: ...


class Turns:
    """Admission of trainings to a memory that several workers share.

    Args:
        name: of the device, the same for all its workers; letters, digits, "-" and "_".
        folder: where the file with the locks is; default: one of this user alone on this machine.
    """

    def __init__(self, memory: DeviceMemory, name: str, folder: Path | None = None) -> None:
        self._memory = memory
        self._file = open_lock((folder or private_folder(local=True)) / f"memory-{name}.lock")

    @contextmanager
    def admitted(self, n_bytes: int) -> Iterator[int | None]:
        """For the time of a training: None, or in bytes what there is where that is not enough.

        It may take long to enter.
        """
        if n_bytes > (total := self._memory.total()):
            yield total
            return
        tell_waiting(True)
        with self._locked(TURN, fcntl.LOCK_EX):
            there = self._wait_and_take(n_bytes)
        tell_waiting(False)
        try:
            yield there
        finally:
            self._memory.give_back()
            self._unlock(BEGUN)

    def _wait_and_take(self, n_bytes: int) -> int | None:
        """None with BEGUN held and the memory taken, or the bytes that there are with nobody left to wait for."""
        said = time.monotonic()
        alone_since: float | None = None
        while True:
            free = self._memory.free()
            if n_bytes <= free:
                fcntl.lockf(self._file, fcntl.LOCK_SH, 1, BEGUN)
                if self._memory.take(n_bytes):
                    return None
            now = time.monotonic()
            alone_since = (alone_since or now) if self._alone() else None
            if alone_since is not None and now - alone_since > GRACE_S:
                return free
            if now - said > LOG_S:
                said = now
                _log.info("waiting for %.3g GB of memory, of which %.3g GB are free", n_bytes / 1e9, free / 1e9)
            time.sleep(POLL_S)

    def _alone(self) -> bool:
        """Whether no other worker has a training on this device."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, BEGUN)
        except OSError:
            return False
        self._unlock(BEGUN)
        return True

    @contextmanager
    def _locked(self, byte: int, how: int) -> Iterator[None]:
        fcntl.lockf(self._file, how, 1, byte)
        try:
            yield
        finally:
            self._unlock(byte)

    def _unlock(self, byte: int) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, byte)


def spare_bytes(total: int) -> int:
    """Bytes of a GPU that are promised to no training: for what no estimate covers, and for a worker that starts."""
    return min(768 << 20, total // 20)


def device_name(uuid: str) -> str:
    """The name of this process's one GPU for `Turns`, from the UUID that its library tells, with or without "GPU-".

    A slice of a GPU has no identity but the name it was asked by.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    identity = visible if visible.startswith("MIG-") else uuid.lower().removeprefix("gpu-")
    return "".join(c if c.isalnum() else "-" for c in identity)
