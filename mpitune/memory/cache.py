"""Values that are computed once and kept for other trials, in memory of a fixed size that a node's workers share.

A value is kept as bytes, so one user cannot change the value of another: arrays are read-only views of the bytes;
everything else is a new copy for each user. This also holds for a value that was just computed, or has no room.
Arrays keep the order of their elements in memory, on which the last bits of what is computed from them depend.

The memory begins with an index, a row for each value; the values lie behind it, and the longest unused make room for
new ones. Locks are bytes of the memory's file (POSIX record locks), so they end with their process. The length of a row
is written last, and a row without it does not count. So a process may be killed at any moment: the next process that
wants its value computes it.

    byte CHOOSE       exclusive: the index is read or changed
    byte USE + row    shared: a process has views of that value, so its memory is not given to another
    byte KEYS + key   exclusive: a process computes the value of that key
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import pickle
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import cloudpickle
import numpy as np

from mpitune.devices.choose import free_memory
from mpitune.locks import lock_byte, locked_byte, unlock_byte
from mpitune.memory.shared_arrays import NOTHING, SharedArrays, Spec

BUFFER = "kept"  # name of the memory that a node's workers share
ROWS = 1024  # values at a time
ALIGNED = 64  # bytes
_ROW = np.dtype([("key", "<u8", (2,)), ("offset", "<i8"), ("length", "<i8"), ("turn", "<i8")])
INDEX = ROWS * _ROW.itemsize
CHOOSE, USE, KEYS = 0, 1, 1 << 20


class NotPicklable(Exception):
    """A value that cannot be pickled; the text says why."""


def buffers_for(limit: int) -> Mapping[str, Spec]:
    """The memory that a node's workers share, of so many bytes at most, or half of what is free."""
    n_bytes = min(limit, free_memory() // 2)
    return {BUFFER: Spec((INDEX + n_bytes,), "|u1")} if n_bytes > 0 else {}


class Cache:
    """Values by key, in memory that this node's workers share. A value without room is computed again."""

    def __init__(self, memory: SharedCache):
        self._memory = memory

    def value(self, key: str, compute: Callable[[], Any]) -> Any:
        """The value of a key, computed if nobody has it; others that want it wait meanwhile. Its arrays are read-only.

        Raises what `compute` raises, and `NotPicklable`.
        """
        return _read(self._content(key, compute))

    def _content(self, key: str, compute: Callable[[], Any]) -> memoryview:
        name = hashlib.sha256(key.encode()).digest()[:16]
        content = self._memory.get(name)
        if content is None:
            with self._memory.alone(name):
                content = self._memory.get(name)
                if content is None:
                    packed = _Packed(compute())
                    content = self._memory.put(name, packed.length, packed.write)
                    if content is None:
                        content = packed.whole().data
        return content.toreadonly()


class NoCache(Cache):
    """Nothing is kept."""

    def __init__(self) -> None:
        pass

    def _content(self, key: str, compute: Callable[[], Any]) -> memoryview:
        return _Packed(compute()).whole().data.toreadonly()


def in_memory(buffers: SharedArrays, limit: int) -> Cache:
    """A cache in memory.

    Args:
        buffers: of the worker; without a worker this process has its own.
        limit: bytes of that.
    """
    if BUFFER in buffers.specs:
        return Cache(SharedCache(buffers, BUFFER))
    if buffers is not NOTHING or not (wanted := buffers_for(limit)):
        return NoCache()
    own = SharedArrays.allocate(wanted)
    memory = SharedCache(own, BUFFER)
    weakref.finalize(memory, own.close)
    return Cache(memory)


class _Pickler(cloudpickle.Pickler):
    """pickle makes an array whose rows or columns are apart, or in reverse, one without gaps in the order of C."""

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is not np.ndarray or thing.flags.forc or thing.dtype.hasobject:
            return super().reducer_override(thing)
        reverse = tuple(slice(None, None, -1 if stride < 0 else 1) for stride in thing.strides)
        order = tuple(int(axis) for axis in np.argsort([-abs(stride) for stride in thing.strides], kind="stable"))
        return _reordered, (np.ascontiguousarray(thing[reverse].transpose(order)), order, reverse)


def _reordered(array: np.ndarray, order: tuple[int, ...], reverse: tuple[slice, ...]) -> np.ndarray:
    turned: np.ndarray = array.transpose(np.argsort(order))[reverse]
    return turned


class _Packed:
    """A value as bytes: the number of parts and their lengths (int64), the pickle, then the arrays in it."""

    def __init__(self, value: Any):
        buffers: list[pickle.PickleBuffer] = []
        file = io.BytesIO()
        try:
            _Pickler(file, 5, buffer_callback=buffers.append).dump(value)
        except Exception as error:  # whatever the thing's own pickling raises
            raise NotPicklable(f"a {type(value).__name__} ({error})") from error
        self._parts = [np.frombuffer(file.getbuffer(), np.uint8), *(np.asarray(b.raw()) for b in buffers)]
        self._table = np.array([len(self._parts), *map(len, self._parts)], "<i8").view(np.uint8)
        self._begins = _begins([len(self._table), *map(len, self._parts)])

    @property
    def length(self) -> int:
        return self._begins[-1]

    def write(self, out: np.ndarray) -> None:
        for begin, part in zip(self._begins, (self._table, *self._parts), strict=False):
            out[begin : begin + len(part)] = part

    def whole(self) -> np.ndarray:
        out = np.empty(self.length, np.uint8)
        self.write(out)
        return out


def _begins(lengths: Sequence[int]) -> list[int]:
    """Where each part begins, and the end of the last."""
    begins = [0]
    for length in lengths:
        begins.append(-(-(begins[-1] + length) // ALIGNED) * ALIGNED)
    return begins


def _read(memory: memoryview) -> Any:
    """The value that these bytes hold; its arrays are views of them."""
    (n,) = np.frombuffer(memory[:8], "<i8")
    lengths = np.frombuffer(memory[8 : 8 + 8 * int(n)], "<i8").tolist()
    begins = _begins([8 + 8 * int(n), *lengths])[1:-1]
    pickled, *buffers = (memory[begin : begin + length] for begin, length in zip(begins, lengths, strict=True))
    return pickle.loads(pickled, buffers=buffers)


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
        with locked_byte(self._file, CHOOSE):
            rows = np.flatnonzero((self._index["key"] == _words(key)).all(1) & (self._index["length"] > 0))
            return self._view(int(rows[0])) if len(rows) else None

    def put(self, key: bytes, length: int, write: Callable[[np.ndarray], object]) -> memoryview | None:
        """Keep a value, and see it as `get` does; None where there is no room for it.

        Args:
            key: without a value so far; the caller is `alone` with it.
            length: bytes, at least 1.
            write: fills a uint8 array of that length.
        """
        with locked_byte(self._file, CHOOSE):
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
        with locked_byte(self._file, KEYS + int.from_bytes(key[:5], "little")):
            yield

    def _view(self, row: int) -> memoryview:
        offset, length = int(self._index["offset"][row]), int(self._index["length"][row])
        self._index["turn"][row] = 1 + self._index["turn"].max()
        array = self._values[offset : offset + length]
        array.flags.writeable = False
        if not self._views[row]:
            lock_byte(self._file, USE + row, fcntl.LOCK_SH)
        self._views[row] += 1
        weakref.finalize(array, self._let_go, row).atexit = False
        return array.data

    def _let_go(self, row: int) -> None:
        self._views[row] -= 1
        if not self._views[row]:
            unlock_byte(self._file, USE + row)

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
        if not lock_byte(self._file, USE + row, fcntl.LOCK_EX | fcntl.LOCK_NB):
            return False
        self._index["length"][row] = 0
        unlock_byte(self._file, USE + row)
        return True


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
