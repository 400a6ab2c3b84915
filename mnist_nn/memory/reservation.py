"""Workers that share a device take its memory in turn, so that none of them runs out of it.

A training says what it takes before it starts. One that the device could never hold is refused. One that there is no
room for now waits until others have ended. It keeps the turn while it waits, so that small ones do not slip past it
for ever, and whoever has begun needs no turn to end.

Two byte-range locks of one file for each device and user tell workers of each other. The kernel gives them back when
a process dies, however it dies. The empty file stays, as to remove it would take it from under those who wait.

    byte TURN     exclusively: waiting for room, then taking it
    byte BEGUN    shared: a training goes on here; whoever can have it exclusively has nobody to wait for
"""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from common.cluster.devices import free_memory, workers_here

if TYPE_CHECKING:
    import torch

TURN, BEGUN = 0, 1
POLL_S = 0.2  # How often to look whether there is room.
LOG_S = 60.0  # How often to say that there is none.
GRACE_S = 10.0  # For memory to come back after its process has died.
SPARE_BYTES = 256 * 2**20  # Of a GPU, left for what no estimate covers and for a worker that is starting.
_log = logging.getLogger(__name__)


class Memory(Protocol):
    """Of a device. `total` and `free` are bytes; what this process has taken is not free."""

    def total(self) -> int: ...
    def free(self) -> int: ...

    def take(self, n_bytes: int) -> bool:
        """Make it this process's, for other processes to see; False if it was not there after all."""

    def give_back(self) -> None: ...


class Share:
    """A CPU worker's share of its node's memory, which is nobody else's: computed once, before any network."""

    def __init__(self) -> None:
        self._bytes = free_memory() // workers_here()

    @contextmanager
    def admitted(self, n_bytes: int) -> Iterator[int | None]:
        """For the time of a training: None, or in bytes what there is where that is not enough."""
        yield None if n_bytes <= self._bytes else self._bytes


class CudaMemory:
    """What CUDA has, and PyTorch's allocator keeps for this process."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self._device, self._torch = device, torch
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        # A slice of a GPU has no identity but the name it was asked by.
        identity = visible if visible.startswith("MIG-") else torch.cuda.get_device_properties(device).uuid
        self.name = "".join(c if c.isalnum() else "-" for c in str(identity))

    def total(self) -> int:
        return self._torch.cuda.mem_get_info(self._device)[1] - SPARE_BYTES

    def free(self) -> int:
        self.give_back()
        return self._torch.cuda.mem_get_info(self._device)[0] - SPARE_BYTES

    def take(self, n_bytes: int) -> bool:
        """As one block that stays with the allocator, which then cuts the tensors of a training from it."""
        try:
            self._torch.empty(n_bytes, dtype=self._torch.uint8, device=self._device)
        except self._torch.cuda.OutOfMemoryError:
            return False
        return True

    def give_back(self) -> None:
        self._torch.cuda.empty_cache()


class Turns:
    """Admission of trainings to a memory that several workers share.

    Args:
        name: of the device, the same for all its workers; letters, digits, "-" and "_".
        folder: where the file with the locks is; default: the system's for temporary files.
    """

    def __init__(self, memory: Memory, name: str, folder: Path | None = None) -> None:
        self._memory = memory
        path = (folder or Path(tempfile.gettempdir())) / f"search-memory-{os.getuid()}-{name}.lock"
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    @contextmanager
    def admitted(self, n_bytes: int) -> Iterator[int | None]:
        """The same; it may take long to enter."""
        if n_bytes > (total := self._memory.total()):
            yield total
            return
        with self._locked(TURN, fcntl.LOCK_EX):
            there = self._wait_and_take(n_bytes)
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


def admission(device: torch.device) -> Share | Turns:
    """How trainings are admitted to the memory of this device."""
    if device.type == "cpu":
        return Share()
    memory = CudaMemory(device)
    return Turns(memory, memory.name)
