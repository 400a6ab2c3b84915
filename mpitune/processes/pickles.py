"""Calls and results as pickles. Large arrays in a call stay apart, and are known by a digest."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from joblib._memmapping_reducer import _get_backing_memmap, _reduce_memmap_backed

from mpitune.processes.process import WithSource
from mpitune.processes.remade import remade

LARGE_ARRAY = 1 << 20  # bytes of an array that is sent once

Data = Mapping[str, np.ndarray]  # arrays by name

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
        name, content = named(array)
        arrays[name] = content
        return name

    file = io.BytesIO()
    writer = CallPickler(file, keep, LARGE_ARRAY, remakes=True)
    writer.dispatch_table.update(reducers or {})
    writer.dump(thing)
    return file.getvalue()


class CallPickler(WithSource):
    """Pickles a call without its arrays of at least `large` bytes: `keep` gives each the name that stands for it.

    An array in a file that may be written to goes as the file's path, as by joblib's own processes. `remakes`: with
    what is `remade`, such as locks. Calls of joblib that have one run where they are instead.
    """

    def __init__(
        self, file: io.BytesIO, keep: Callable[[np.ndarray], str], large: float, remakes: bool = False
    ) -> None:
        super().__init__(file, 5)
        self._keep, self._large, self._remakes = keep, large, remakes

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
        return _large, (self._keep(thing), thing.dtype, thing.shape, order)


def _file_of(array: np.ndarray) -> np.memmap | None:
    """The file that an array is a part of, if it may be written to."""
    file = _get_backing_memmap(array)
    return file if isinstance(file, np.memmap) and file.mode in ("r+", "w+") and file.filename is not None else None


def named(array: np.ndarray) -> tuple[str, np.ndarray]:
    """The bytes of an array in the order in which they lie, and the name that a digest gives them."""
    content = np.ascontiguousarray(array if not array.flags.f_contiguous else array.T).reshape(-1).view(np.uint8)
    return f"{hashlib.blake2b(content.data, digest_size=16).hexdigest()}-{content.size}", content
