"""Calls and results as pickles. Large arrays in a call stay apart, and are known by a digest."""

from __future__ import annotations

import hashlib
import io
import pickle
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from joblib._memmapping_reducer import _get_backing_memmap, _reduce_memmap_backed

from mpitune.devices.choose import free_memory
from mpitune.errors import StudyError
from mpitune.experiment import Data
from mpitune.joblib.remade import remade
from mpitune.memory.shared_arrays import SharedArrays
from mpitune.processes.process import WithSource, unpacked_error
from mpitune.trial import Result

LARGE = 1 << 20  # bytes of an array that is sent once
MOST_IDLE = 8  # arrays kept for later calls
SMALL = 1 << 28  # bytes of them for which there always is room

# Arrays that one caller has sent, with their names, by identity.
Known = dict[int, tuple[weakref.ref[np.ndarray], str]]

_reading: tuple[Data, bool] = {}, False  # of the call that is read: its arrays, and whether it may write to them


def _large(name: str, dtype: np.dtype, shape: tuple[int, ...], order: Any) -> np.ndarray:
    """A large array of the call that is read: a read-only view, or a copy where that is asked for."""
    data, writeable = _reading
    array: np.ndarray = data[name].view(dtype).reshape(shape, order=order)
    return array.copy(order="K") if writeable else array


def read_call(content: bytes, data: Data, writeable: bool = False) -> Any:
    """What `packed_call` has packed, with views of the arrays, or with copies."""
    global _reading
    _reading = data, writeable
    return pickle.loads(content)


def packed_call(
    thing: Any, arrays: dict[str, np.ndarray], reducers: Mapping[type, Callable[[Any], Any]] | None = None
) -> bytes:
    """A thing without its large arrays, whose contents are added to those of that name.

    reducers: of classes, what stands for their objects, as in `copyreg`.
    """

    def keep(array: np.ndarray) -> str:
        name, content = _named(array)
        arrays[name] = content
        return name

    file = io.BytesIO()
    writer = Writer(file, keep, LARGE, remakes=True)
    writer.dispatch_table.update(reducers or {})
    writer.dump(thing)
    return file.getvalue()


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


class Writer(WithSource):
    """Pickles a call without its arrays of at least `large` bytes: `keep` gives each the name that stands for it.

    An array in a file that may be written to goes as the file's path, as by joblib's own processes. `remakes`: with
    what is `remade`, such as locks. Calls of joblib that have one run where they are instead.
    """

    def __init__(
        self, file: io.BytesIO, keep: Callable[[np.ndarray], str], large: float, remakes: bool = False
    ) -> None:
        super().__init__(file, 5)
        self._keep, self._large, self._remakes = keep, large, remakes
        self.names: list[str] = []

    def reducer_override(self, thing: Any) -> Any:
        if self._remakes and (new := remade(thing)) is not NotImplemented:
            return new
        if not isinstance(thing, np.ndarray):
            return super().reducer_override(thing)
        if (file := _file_of(thing)) is not None:
            return _reduce_memmap_backed(thing, file)
        plain = type(thing) in (np.ndarray, np.memmap) and not thing.dtype.hasobject
        if not plain or thing.nbytes < max(self._large, 1):
            return NotImplemented
        order = "F" if thing.flags.f_contiguous and not thing.flags.c_contiguous else "C"
        name = self._keep(thing)
        self.names.append(name)
        return _large, (name, thing.dtype, thing.shape, order)


def _file_of(array: np.ndarray) -> np.memmap | None:
    """The file that an array is a part of, if it may be written to."""
    file = _get_backing_memmap(array)
    return file if isinstance(file, np.memmap) and file.mode in ("r+", "w+") and file.filename is not None else None


def _named(array: np.ndarray) -> tuple[str, np.ndarray]:
    """The bytes of an array in the order in which they lie, and the name that a digest gives them."""
    content = np.ascontiguousarray(array if not array.flags.f_contiguous else array.T).reshape(-1).view(np.uint8)
    return f"{hashlib.blake2b(content.data, digest_size=16).hexdigest()}-{content.size}", content


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
        name, content = _named(array)
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
            if n_bytes > SMALL and n_bytes > free_memory():
                most = 0
            gone = idle[: max(len(idle) - most, 0)]
            for name in gone:
                self._kept.pop(name).close()
                del self._n_open[name]
            forget(gone)  # before another call can need one of them
