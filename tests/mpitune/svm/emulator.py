"""A stand-in for a GPU: numpy arrays, and path.cu compiled for the host (emulator.h)."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from mpitune.svm.cuda.device import DEFINITIONS, SOURCE

COMPILER = shutil.which("cc") or shutil.which("gcc")


RACES = ("-DPOSIX_THREADS", "-g", "-fsanitize=thread")  # threads of the system, watched by ThreadSanitizer


@cache
def library(*options: str) -> ctypes.CDLL:
    out = Path(mkdtemp(prefix="path-cu-")) / "path.so"
    flags = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
    # The C library's check of longjmp knows nothing of coroutines.
    flags += ("-U_FORTIFY_SOURCE", *DEFINITIONS, "-pthread", *options, f"-I{SOURCE.parent}")
    source = Path(__file__).with_name("emulator.c")
    subprocess.run([str(COMPILER), *flags, str(source), "-o", str(out), "-lm"], check=True)
    found = ctypes.CDLL(str(out))
    shutil.rmtree(out.parent)
    return found


class Emulator:
    """See `mpitune.svm.cuda.ComputeDevice`. schedule: the order in which threads run, see emulator.h.

    options: further options of the compiler. there: bytes that others leave, of those which `memory` promises.
    """

    xp = np

    def __init__(
        self,
        threads: int = 1,
        shared_memory: int = 1 << 20,
        free: int = 7 << 30,
        schedule: int = 0,
        options: tuple[str, ...] = (),
        there: int = 8 << 30,
    ) -> None:
        self._threads, self.shared_memory, self._free, self._schedule = threads, shared_memory, free, schedule
        self._options, self._there = options, there
        self.asked: list[int] = []  # bytes, of each reservation
        self.launches: list[int] = []  # blocks of each

    def threads(self, lanes: int) -> int:
        return self._threads

    def memory(self) -> int:
        return self._free

    @contextmanager
    def reserved(self, n_bytes: int) -> Iterator[int]:
        self.asked.append(n_bytes)
        yield min(n_bytes, self._there)

    def launch(self, blocks: int, threads: int, shared_memory: int, arguments: tuple[Any, ...]) -> None:
        assert shared_memory <= self.shared_memory
        self.launches.append(blocks)
        kernel = library(*self._options)
        ctypes.c_int.in_dll(kernel, "emulator_schedule").value = self._schedule
        kernel.launch(blocks, threads, ctypes.c_size_t(shared_memory), *map(_as_c, arguments))

    def to_host(self, array: np.ndarray) -> np.ndarray:
        return array.copy()


def _as_c(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        assert value.flags.c_contiguous
        return ctypes.c_void_p(value.ctypes.data)
    return {np.int64: ctypes.c_longlong, np.float64: ctypes.c_double}[type(value)](value)
