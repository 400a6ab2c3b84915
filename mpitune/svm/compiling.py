"""Compilation, once per node, by the first process that needs it, or by one that is started for it (`apart`).

python -m mpitune.svm.compiling           compiles what is not compiled yet
"""

from __future__ import annotations

import functools
import gc
import logging
import os
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path

import numpy as np

from mpitune._jit import WIDE
from mpitune.folders import private_folder
from mpitune.locks import locked
from mpitune.svm.apart import is_compiled, proof
from mpitune.svm.decide.multiclass import Solutions, binary_problems, choose_classes, in_doubt, keep
from mpitune.svm.decide.sources import RbfSource
from mpitune.svm.kernel.rbf import Samples, kernel_minus_one, prepare
from mpitune.svm.solver.binary import Paths
from mpitune.svm.solver.path import solve_paths

NICENESS = 10  # of who compiles while others work: ten of them have as much of a processor as one of these
COMPILES = "warm-up-0.lock"  # of the process that compiles
COMPILING = "compiling the solver (once per machine, about 10 to 30 s)"

log = logging.getLogger(__name__)


@functools.cache
def warm_up() -> None:
    """Have everything compiled, so that no trial is charged for it.

    Of several processes one compiles; the others wait, then find it in numba's cache. Where no cache folder can be
    written, each compiles for itself. Who compiles says so first.
    """
    if not is_compiled(unkept=False):
        with ExitStack() as held:
            with suppress(OSError):  # no folder can be written
                held.enter_context(locked(private_folder(local=True) / COMPILES))
            if not is_compiled(unkept=False):
                log.warning(COMPILING)
                compile_all()
                with suppress(ImportError):  # SciPy and scikit-learn, which `mnist_svm` lacks, as it does LIBSVM
                    import_module("mpitune.svm.libsvm").is_faithful()
                with suppress(OSError):
                    proof().touch()
    compile_all()  # or read it


def give_way() -> None:
    """Have everything compiled while others work, who come first."""
    os.nice(NICENESS)
    with suppress(OSError):  # some kernels divide processors among sessions, then among the processes of each
        Path("/proc/self/autogroup").write_text(str(NICENESS))
    warm_up()


def compile_all() -> None:
    """Compile what is not compiled. Garbage collection is off: numba makes millions of objects, so it takes a tenth."""
    collects = gc.isenabled()
    gc.disable()
    try:
        _paths()
        _answers()
        _matrices()
    finally:
        if collects:
            gc.enable()


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
        in_doubt(values.T.copy(), places, np.zeros((3, 2)), np.zeros(2, np.bool_), np.array(problems), 3)


if __name__ == "__main__":
    warm_up()
