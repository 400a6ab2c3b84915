"""Compilation, once per node, by all processes that need it together, and by others that are started for it (`apart`).

python -m mpitune.svm.compiling           compiles what is not compiled yet
"""

from __future__ import annotations

import functools
import gc
import logging
import multiprocessing
import os
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numba.core import event

from mpitune._jit import LANES, WIDE
from mpitune.folders import private_folder
from mpitune.locks import locked, try_lock
from mpitune.svm.apart import ANNOUNCED, is_compiled, open_or_own, proof, start
from mpitune.svm.decide.decisions import Support
from mpitune.svm.decide.multiclass import Solutions, binary_problems, choose_classes, keep
from mpitune.svm.decide.sources import RbfSource, product
from mpitune.svm.kernel.rbf import Samples, kernel_minus_one, prepare
from mpitune.svm.solver.binary import Paths
from mpitune.svm.solver.path import solve_paths

NICENESS = 10  # of who compiles while others work: ten of them have as much of a processor as one of these

log = logging.getLogger(__name__)


class Announced(event.Listener):
    """Says that something is compiled, before that begins; of several processes of this node and user one says so."""

    def __init__(self) -> None:
        self._lock: int | None = None

    def on_start(self, event: Any) -> None:
        """Called by numba before it compiles a function."""
        if self._lock is None:
            self._lock = open_or_own(ANNOUNCED)
            if try_lock(self._lock):
                log.warning("compiling the solver (once per machine, about 10 to 30 s)")
                # Workers are several already. Where nothing can be kept nobody could help.
                if multiprocessing.parent_process() is None and not is_compiled():
                    _start_helpers(session=True)

    def on_end(self, event: Any) -> None:
        """Called by numba when it has compiled a function."""

    def close(self) -> None:
        """Let others speak again."""
        if self._lock is not None:
            os.close(self._lock)


@functools.cache
def warm_up() -> None:
    """Have everything compiled, so that no trial is charged for it.

    Processes that begin at a time divide the parts among themselves: each compiles what no other is busy with, then
    waits for the rest and finds it in numba's cache. Where no cache folder can be written, each compiles for itself.
    The process of a script starts others that help.
    """
    with closing(Announced()) as announced, event.install_listener("numba:compile", announced):
        compile_parts()
    with suppress(OSError):
        proof().touch()


def give_way() -> None:
    """Have everything compiled while others work, who come first."""
    os.nice(NICENESS)
    with suppress(OSError):  # some kernels divide processors among sessions, then among the processes of each
        Path("/proc/self/autogroup").write_text(str(NICENESS))
    _start_helpers(session=False)
    warm_up()


def _start_helpers(session: bool) -> None:
    for _ in range(min(len(os.sched_getaffinity(0)), len(PARTS)) - 1):
        start("compile_parts", session)


def compile_parts() -> None:
    """Compile what no other process is busy with, then wait for the rest. It says nothing and starts no process.

    Garbage collection is off: numba makes millions of objects, so it would take a tenth of the time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        for number in [number for number in range(len(PARTS)) if not _done(number)]:
            with locked(private_folder(local=True) / _lock_of(number)):
                PARTS[number]()
    finally:
        if collects:
            gc.enable()


def _lock_of(number: int) -> str:
    return f"warm-up-{number}.lock"


def _done(number: int) -> bool:
    """Compile a part, or read it, and return True; return False at once if another process is at it."""
    with open(open_or_own(_lock_of(number))) as lock:
        if not try_lock(lock.fileno()):
            return False
        PARTS[number]()
    return True


def _samples() -> Samples:
    return prepare(np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 3)


def _paths() -> None:
    sign = np.repeat(np.array([1, -1], np.int8), WIDE)
    matrix = np.full((2 * WIDE, 2 * WIDE), -0.5, np.float32)
    matrix[range(2 * WIDE), range(2 * WIDE)] = 0
    solve_paths(matrix, sign[None], [0.01, 10.0], 1e-3, 1000)


def _matrices() -> None:
    samples, half = _samples(), slice(0, WIDE)
    whole = kernel_minus_one(samples, 0.1)
    # numba tells a part of a matrix from a whole
    kernel_minus_one(samples, 0.1, out=whole[half, half], rows=half, columns=half)


def _answers() -> None:
    samples = _samples()
    kernel, rows = np.zeros((samples.width, samples.width), np.float32), np.arange(samples.width)
    solved = Solutions(samples, 2)
    numbers, figures = np.ones((1, 2), np.int64), np.zeros((1, 2))
    paths = Paths(
        np.array([samples.width]), rows[None], np.ones((1, 2, samples.width)), figures, numbers, numbers > 0, figures
    )
    for problem in binary_problems(3, "ovo"):
        keep([solved], problem, paths, rows)
    places, problems = np.zeros((3, 2), np.int64), binary_problems(3, "ovo")
    for _, values in RbfSource(samples, 0.1, None, kernel).decisions(solved, rows):
        choose_classes(values, places, problems, 3)
    Support.of(solved).relative(np.zeros((1, samples.width, LANES), np.float32), 0.1)
    product(np.zeros((1, LANES), np.float32), np.zeros((1, 1)))


# What is compiled apart, the longest first. No kept function is in two: of those that save one at a time, numba could
# give the code of one signature to another.
PARTS = (_paths, _answers, _matrices)


if __name__ == "__main__":
    warm_up()
