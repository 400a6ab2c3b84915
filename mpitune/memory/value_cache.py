"""Values that are computed once and kept for other trials: in memory that a node's workers share.

A value is kept as bytes, so one user cannot change the value of another: arrays are read-only views of the bytes,
everything else is a new copy for each user. This also holds for a value that was just computed, or has no room.
"""

from __future__ import annotations

import hashlib
import pickle
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import cloudpickle
import numpy as np

from mpitune.devices.devices import free_memory
from mpitune.memory.shared_arrays import NOTHING, SharedArrays, Spec
from mpitune.memory.shared_cache import ALIGNED, INDEX, SharedCache

BUFFER = "kept"  # name of the memory that a node's workers share


class Keeper(Protocol):
    """Keeps values by key."""

    def value(self, key: str, compute: Callable[[], Any]) -> Any:
        """The value of a key, computed if nobody has it; others that want it wait meanwhile.

        Raises what `compute` raises, and `Unkept`.
        """


class Unkept(Exception):
    """A value that cannot be pickled; the text says why."""


def buffers_for(limit: int) -> Mapping[str, Spec]:
    """The memory that a node's workers share, of so many bytes at most, or half of what is free."""
    n_bytes = min(limit, free_memory() // 2)
    return {BUFFER: Spec((INDEX + n_bytes,), "|u1")} if n_bytes > 0 else {}


class InMemory:
    """Values in memory that this node's workers share. A value without room is computed again."""

    def __init__(self, cache: SharedCache):
        self._cache = cache

    def value(self, key: str, compute: Callable[[], Any]) -> Any:
        name = hashlib.sha256(key.encode()).digest()[:16]
        found = self._cache.get(name)
        if found is None:
            with self._cache.alone(name):
                found = self._cache.get(name)
                if found is None:
                    packed = _Packed(compute())
                    found = self._cache.put(name, packed.length, packed.write)
                    if found is None:
                        found = packed.whole().data
        return _read(found)


class Nowhere:
    """Nothing is kept."""

    def value(self, key: str, compute: Callable[[], Any]) -> Any:
        return _read(_Packed(compute()).whole().data)


def in_memory(buffers: SharedArrays, limit: int) -> Keeper:
    """A keeper of values in memory.

    Args:
        buffers: of the worker; without a worker this process has its own.
        limit: bytes of that.
    """
    if BUFFER in buffers.specs:
        return InMemory(SharedCache(buffers, BUFFER))
    if buffers is not NOTHING or not (wanted := buffers_for(limit)):
        return Nowhere()
    own = SharedArrays.allocate(wanted)
    cache = SharedCache(own, BUFFER)
    weakref.finalize(cache, own.close)
    return InMemory(cache)


class _Packed:
    """A value as bytes: the number of parts and their lengths (int64), the pickle, then the arrays in it."""

    def __init__(self, value: Any):
        buffers: list[pickle.PickleBuffer] = []
        try:
            content = cloudpickle.dumps(value, 5, buffer_callback=buffers.append)
        except Exception as error:  # whatever the thing's own pickling raises
            raise Unkept(f"a {type(value).__name__} ({error})") from error
        self._parts = [np.frombuffer(content, np.uint8), *(np.asarray(b.raw()) for b in buffers)]
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
    found = [0]
    for length in lengths:
        found.append(-(-(found[-1] + length) // ALIGNED) * ALIGNED)
    return found


def _read(memory: memoryview) -> Any:
    """The value that these bytes hold; its arrays are views of them."""
    memory = memory.toreadonly()
    (n,) = np.frombuffer(memory[:8], "<i8")
    lengths = np.frombuffer(memory[8 : 8 + 8 * int(n)], "<i8").tolist()
    begins = _begins([8 + 8 * int(n), *lengths])[1:-1]
    content, *buffers = (memory[begin : begin + length] for begin, length in zip(begins, lengths, strict=True))
    return pickle.loads(content, buffers=buffers)
