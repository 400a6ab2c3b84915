"""Values that the processes of a node share, in memory of a fixed size. The longest unused make room for new ones.

The memory begins with an index, a row for each value; the values lie behind it. Locks are bytes of the memory's file
(POSIX record locks), so they end with their process. The length of a row is written last, and a row without it does not
count. So a process may be killed at any moment: the next process that wants its value computes it.

    byte CHOOSE       exclusive: the index is read or changed
    byte USE + row    shared: a process has views of that value, so its memory is not given to another
    byte KEYS + key   exclusive: a process computes the value of that key
"""

from __future__ import annotations

import fcntl
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from mpitune.devices.devices import free_memory
from mpitune.memory.shared_arrays import SharedArrays

ROWS = 1024  # values at a time
ALIGNED = 64  # bytes
_ROW = np.dtype([("key", "<u8", (2,)), ("offset", "<i8"), ("length", "<i8"), ("turn", "<i8")])
INDEX = ROWS * _ROW.itemsize
CHOOSE, USE, KEYS = 0, 1, 1 << 20


class SharedCache:
    """Values by key (16 bytes, as evenly spread as digests are), as one process sees them.

    Args:
        buffers, name: a uint8 array of more than `INDEX` bytes, zero at first.
    """

    def __init__(self, buffers: SharedArrays, name: str) -> None:
        memory = buffers.arrays[name]
        self._index, self._values = memory[:INDEX].view(_ROW), memory[INDEX:]
        self._file, self._buffers = buffers.descriptor(name), buffers
        self._views: Counter[int] = Counter()  # that live in this process, by row

    def get(self, key: bytes) -> memoryview | None:
        """The value, read-only; None if there is none. It does not change while anything refers to it."""
        with self._locked(CHOOSE):
            found = np.flatnonzero((self._index["key"] == _words(key)).all(1) & (self._index["length"] > 0))
            return self._view(int(found[0])) if len(found) else None

    def put(self, key: bytes, length: int, write: Callable[[np.ndarray], object]) -> memoryview | None:
        """Keep a value, and see it as `get` does; None where there is no room for it.

        Args:
            key: without a value so far; the caller is `alone` with it.
            length: bytes, at least 1.
            write: fills a uint8 array of that length.
        """
        with self._locked(CHOOSE):
            place = self._room(length)
            if place is None:
                return None
            row, offset = place
            write(self._values[offset : offset + length])
            self._index[row] = (_words(key), offset, 0, 0)
            self._index["length"][row] = length
            return self._view(row)

    @contextmanager
    def alone(self, key: bytes) -> Iterator[None]:
        """Let this process alone compute the value of a key. Others that want it wait until the context ends."""
        with self._locked(KEYS + int.from_bytes(key[:5], "little")):
            yield

    def _view(self, row: int) -> memoryview:
        offset, length = int(self._index["offset"][row]), int(self._index["length"][row])
        self._index["turn"][row] = 1 + self._index["turn"].max()
        array = self._values[offset : offset + length]
        array.flags.writeable = False
        if not self._views[row]:
            fcntl.lockf(self._file, fcntl.LOCK_SH, 1, USE + row)
        self._views[row] += 1
        weakref.finalize(array, self._let_go, row).atexit = False
        return array.data

    def _let_go(self, row: int) -> None:
        self._views[row] -= 1
        if not self._views[row]:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, USE + row)

    def _room(self, length: int) -> tuple[int, int] | None:
        """A free row, and the offset of that many free bytes; None if the values in use leave no room."""
        if length > min(len(self._values), free_memory()):
            return None
        while True:
            rows = np.flatnonzero(self._index["length"])
            offset = _gap(self._index[rows], length, len(self._values))
            if offset is not None and len(rows) < ROWS:
                return int(np.flatnonzero(self._index["length"] == 0)[0]), offset
            by_turn = rows[np.argsort(self._index["turn"][rows])]
            if not any(self._emptied(int(row)) for row in by_turn):
                return None

    def _emptied(self, row: int) -> bool:
        """Whether the value of a row was given up, as no process uses it."""
        if self._views[row]:
            return False
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, USE + row)
        except BlockingIOError:
            return False
        self._index["length"][row] = 0
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, USE + row)
        return True

    @contextmanager
    def _locked(self, byte: int) -> Iterator[None]:
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, byte)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, byte)


def _words(key: bytes) -> np.ndarray:
    return np.frombuffer(key, "<u8", 2)


def _gap(rows: np.ndarray, length: int, end: int) -> int | None:
    """The offset of the first gap of that many bytes between these values; None if there is no such gap."""
    begin = 0
    for row in rows[np.argsort(rows["offset"])]:
        if int(row["offset"]) - begin >= length:
            return begin
        begin = -(-(int(row["offset"]) + int(row["length"])) // ALIGNED) * ALIGNED
    return begin if end - begin >= length else None
