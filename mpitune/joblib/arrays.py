"""What callers of joblib send and get: arrays that workers of a node share, and the value of a call."""

from __future__ import annotations

import pickle
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpitune.devices.choose import free_memory
from mpitune.errors import StudyError
from mpitune.memory.shared_arrays import SharedArrays
from mpitune.processes.pickles import named
from mpitune.processes.process import unpacked_error
from mpitune.trial import Result

MOST_IDLE = 8  # arrays kept for later calls
KEPT_SIZE = 1 << 28  # bytes of them for which there always is room

# Arrays that one caller has sent, with their names, by identity.
Known = dict[int, tuple[weakref.ref[np.ndarray], str]]


def value_of(result: Result | Exception) -> Any:
    """What a call has returned. Raises what it has raised, or StudyError where its worker died each time."""
    if isinstance(result, Exception):
        raise result
    if result.failed:
        tries = "each of its tries" if result.attempt > 1 else "its try"
        raise StudyError(f"a call has no result, as the worker of {tries} ended: {result.error}")
    if "raised" in result.arrays:
        error = unpacked_error(np.asarray(result.arrays["raised"]).tobytes())
        error.add_note(f"raised at {result.place} (host/rank/slot/device)")
        raise error
    buffers = [array for name, array in sorted(result.arrays.items()) if name != "result"]
    return pickle.loads(result.arrays["result"].data, buffers=buffers)


class Arrays:
    """The large arrays of open calls and of late ones, each known by a digest, in memory that workers can see."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, SharedArrays] = {}  # the one used last is the last
        self._n_open: Counter[str] = Counter()  # calls that need it

    def keep(self, array: np.ndarray, known: Known) -> str:
        """The name under which nodes get an array for one call, which `done` ends. known: arrays of one caller."""
        seen, name = known.get(id(array), (None, ""))
        with self._lock:
            if seen is not None and seen() is array and name in self._kept:
                self._n_open[name] += 1
                return name
        name, content = named(array)
        known[id(array)] = weakref.ref(array), name
        with self._lock:
            if name not in self._kept:
                kept = SharedArrays.of_bytes(name, content.size)
                kept.arrays[name][:] = content  # a copy: the caller may write to its array
                self._kept[name] = kept  # not before it is whole: Ctrl-C may come at any moment
            self._n_open[name] += 1
        return name

    def content(self, name: str) -> SharedArrays:
        with self._lock:
            return self._kept[name]

    def done(self, names: Sequence[str], forget: Callable[[Sequence[str]], None], most: int = MOST_IDLE) -> None:
        """A call with these arrays has ended. `forget` those not used for longest, beyond so many in no open call."""
        with self._lock:
            for name in names:
                self._n_open[name] -= 1
                self._kept[name] = self._kept.pop(name)
            idle = [name for name in self._kept if not self._n_open[name]]
            n_bytes = sum(self._kept[name].specs[name].nbytes for name in idle)
            if n_bytes > KEPT_SIZE and n_bytes > free_memory():
                most = 0
            gone = idle[: max(len(idle) - most, 0)]
            for name in gone:
                self._kept.pop(name).close()
                del self._n_open[name]
            forget(gone)  # before another call can need one of them
