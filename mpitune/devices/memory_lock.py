"""A lock on a device's memory for the workers that share it, so that none of them runs out of memory.

It knows no GPU library: a program implements `DeviceMemory` with the library that it computes with. A training says how
much memory it needs before it starts. If the device could never hold it, it is refused. If there is too little memory
now, it waits until other trainings have ended. Trainings wait in the order in which they came, so that small ones do
not overtake a large one again and again. A training that ends needs no lock.

The lock is two byte-range locks of one file for each device and user. The kernel releases them when a process dies. The
empty file is never deleted: that would break the lock for the processes that wait.

    byte QUEUE      exclusive: the process waits for memory, then takes it
    byte RUNNING    shared: a training runs; a process that can lock it exclusively has nobody to wait for
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

from mpitune._jit.folders import open_lock, private_folder

QUEUE, RUNNING = 0, 1
POLL_S = 0.2  # How often to look whether there is room.
LOG_S = 60.0  # How often to say that there is none.
GRACE_S = 10.0  # How long memory may take to come back after its process has died.
_log = logging.getLogger(__name__)


def tell_waiting(waits: bool) -> None:
    """Called when this process begins to wait for memory, and when it waits no longer."""
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
        """Allocate it, so that other processes see it as taken; False if there was too little after all."""

    def give_back(self) -> None: ...


class MemoryLock:
    """Reservations in a memory that several workers share.

    Args:
        memory: of the device.
        name: of the device, the same for all its workers; letters, digits, "-" and "_".
        folder: where the file with the locks is; default: one of this user alone on this machine.
    """

    def __init__(self, memory: DeviceMemory, name: str, folder: Path | None = None) -> None:
        self._memory = memory
        self._file = open_lock((folder or private_folder(local=True)) / f"memory-{name}.lock")

    @contextmanager
    def reserved(self, n_bytes: int) -> Iterator[int]:
        """Reserve memory for a training; entering may take as long as other trainings do.

        Gives `n_bytes`, or the fewer bytes that there are; then nothing is reserved.
        """
        if n_bytes > (total := self._memory.total()):
            yield total
            return
        tell_waiting(True)
        with self._locked(QUEUE, fcntl.LOCK_EX):
            granted = self._wait_and_take(n_bytes)
        tell_waiting(False)
        try:
            yield granted
        finally:
            self._memory.give_back()
            self._unlock(RUNNING)

    def _wait_and_take(self, n_bytes: int) -> int:
        """`n_bytes`, with RUNNING locked and the memory taken; or, if all is not enough, the bytes that there are."""
        said = time.monotonic()
        alone_since: float | None = None
        while True:
            free = self._memory.free()
            if n_bytes <= free:
                fcntl.lockf(self._file, fcntl.LOCK_SH, 1, RUNNING)
                if self._memory.take(n_bytes):
                    return n_bytes
            now = time.monotonic()
            alone_since = (alone_since or now) if self._alone() else None
            if alone_since is not None and now - alone_since > GRACE_S:
                return min(free, n_bytes - 1)  # free memory may be in pieces: one of this size could not be taken
            if now - said > LOG_S:
                said = now
                _log.info("waiting for %.3g GB of memory, of which %.3g GB are free", n_bytes / 1e9, free / 1e9)
            time.sleep(POLL_S)

    def _alone(self) -> bool:
        """Whether no other worker has a training on this device."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, RUNNING)
        except OSError:
            return False
        self._unlock(RUNNING)
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
    """Bytes of a GPU with `total` bytes that no training may reserve.

    No estimate covers them: they are for captured graphs and the like, and for a worker that starts, whose context
    alone takes half a GiB. A slice of a GPU keeps a twentieth.
    """
    return min(768 << 20, total // 20)


def device_name(uuid: str) -> str:
    """The name of this process's only GPU for `MemoryLock`.

    A slice of a GPU is named by `CUDA_VISIBLE_DEVICES`, since libraries give it no UUID of its own.

    Args:
        uuid: as a GPU library gives it, with or without "GPU-".
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    identity = visible if visible.startswith("MIG-") else uuid.lower().removeprefix("gpu-")
    return "".join(c if c.isalnum() else "-" for c in identity)
