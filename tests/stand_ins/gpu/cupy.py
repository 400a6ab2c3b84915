"""cupy for a machine without a GPU: numpy's arrays, and the emulator for path.cu. Found by PYTHONPATH only.

It says what of cupy the solver uses; what else is asked for is numpy's. In the environment:

STAND_IN_FAULT: a fault that is to be found, of FAULTS or of `launch`.
STAND_IN_MEMORY: a folder in which each process says what it holds of the device's STAND_IN_BYTES.
"""

from __future__ import annotations

import atexit
import os
import signal
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy

from mpitune.svm.cuda.device import SOURCE
from tests.mpitune.svm.emulator import Emulator

__version__ = "0.stand-in"
FAULT = os.environ.get("STAND_IN_FAULT", "")
# What a fault makes of path.cu: (what is there, what is put in its place).
FAULTS = {
    "race": ("        SYNC();\n        delta = p->scratch->delta;", "        delta = p->scratch->delta;"),
    "mask": ("p->flags[t] & LOW) ? (float)", "p->flags[t] & UP) ? (float)"),
    "intercept": ("sums.linear / sums.free", "sums.linear / (sums.free + 1.0)"),
    "same": ("sums.support > 0.0 && sums.free == sums.support", "sums.support > 0.0"),
    "scale": ("fmin(sums.linear / sums.quadratic, ratio)", "fmin(0.5 * sums.linear / sums.quadratic, ratio)"),
    "bound": ("fmin(delta, fmin(room_i, room_j))", "fmin(delta, room_i)"),
}  # fmt: skip


class ndarray(numpy.ndarray):
    """An array of the device: its products can be rounded as a GPU's tensor cores round them."""

    def __matmul__(self, other: Any) -> Any:
        if FAULT == "tf32" and self.dtype == numpy.float32:
            return (_tf32(self) @ _tf32(other)).view(ndarray)
        return super().__matmul__(other)

    def get(self) -> numpy.ndarray:
        return numpy.array(self)


def _tf32(array: Any) -> numpy.ndarray:
    """float32 with the ten bits of TF32's mantissa."""
    bits = numpy.ascontiguousarray(array, numpy.float32).view(numpy.ndarray).view(numpy.uint32)
    return ((bits + numpy.uint32(0x1000)) & numpy.uint32(0xFFFFE000)).view(numpy.float32)


def __getattr__(name: str) -> Any:
    return getattr(numpy, name)


def asarray(a: Any, dtype: Any = None) -> Any:
    return numpy.asarray(a, dtype).view(ndarray)


def empty(shape: Any, dtype: Any = float) -> Any:
    return numpy.full(shape, 77, dtype).view(ndarray)  # what was there before


def zeros(shape: Any, dtype: Any = float) -> Any:
    return numpy.zeros(shape, dtype).view(ndarray)


def asnumpy(array: Any) -> numpy.ndarray:
    return numpy.array(array)


class RawModule:
    def __init__(self, code: str, options: tuple[str, ...]) -> None:
        self._folder: Any = None
        flags: tuple[str, ...] = ()
        if FAULT in FAULTS:
            there, instead = FAULTS[FAULT]
            assert code.count(there) == 1, "the fault has no place in path.cu any more"
            self._folder = tempfile.TemporaryDirectory()
            Path(self._folder.name, SOURCE.name).write_text(code.replace(there, instead))
            flags = (f"-I{self._folder.name}",)
        self._flags, self._launches = flags, 0

    def get_function(self, name: str) -> Any:
        assert name == "walk_paths"
        return self

    def __call__(self, grid: Any, block: Any, arguments: Any, shared_mem: int) -> None:
        if FAULT == "hang":
            time.sleep(1e6)
        if FAULT == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if FAULT == "leak":
            _lost.append(numpy.zeros(1000))
        self._launches += 1  # the order of threads is another one each time
        Emulator(schedule=self._launches, options=self._flags).launch(grid[0], block[0], shared_mem, arguments)


# Memory that processes share.

TOTAL = int(os.environ.get("STAND_IN_BYTES", 80 << 30))
_FOLDER = os.environ.get("STAND_IN_MEMORY")
_held = 0
_lost: list[Any] = []


class OutOfMemoryError(MemoryError):
    pass


def _hold(n_bytes: int) -> None:
    global _held
    _held = n_bytes
    if _FOLDER:
        mine = Path(_FOLDER, f"{os.getpid()}.held")
        mine.with_suffix(".new").write_text(str(n_bytes))
        mine.with_suffix(".new").rename(mine)


def _free() -> int:
    if not _FOLDER:
        return TOTAL - _held
    held = {int(file.stem): int(file.read_text()) for file in Path(_FOLDER).glob("*.held")}
    return TOTAL - sum(n_bytes for pid, n_bytes in held.items() if os.path.exists(f"/proc/{pid}"))


def _alloc(n_bytes: int) -> None:
    if n_bytes > _free():
        raise OutOfMemoryError(f"{n_bytes} bytes")
    _hold(n_bytes)
    if _FOLDER:
        with open(Path(_FOLDER, "log"), "a") as log:
            print(os.getpid(), n_bytes, _free(), file=log)


atexit.register(_hold, 0)


def get_default_memory_pool() -> Any:
    return SimpleNamespace(free_all_blocks=lambda: _hold(0), used_bytes=lambda: sum(each.nbytes for each in _lost))


cuda = SimpleNamespace(
    is_available=lambda: True,
    alloc=_alloc,
    memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
    runtime=SimpleNamespace(memGetInfo=lambda: (_free(), TOTAL)),
    Device=lambda: SimpleNamespace(attributes={
        "MaxSharedMemoryPerBlockOptin": 1 << 16, "KernelExecTimeout": int(FAULT == "display"),
    }),
)  # fmt: skip
