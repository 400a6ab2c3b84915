"""Compilation, once per node."""

from __future__ import annotations

import fcntl
import functools
import logging
import os
from contextlib import closing
from typing import Any

import numpy as np
from numba.core import event

from jit import LANES
from jit.private import open_lock, private_folder
from kernel_svm.grid import solve_gamma
from kernel_svm.kernel import kernel_minus_one, prepare, squared_distances
from kernel_svm.plan import MatrixPlan
from kernel_svm.sources import product
from kernel_svm.thresholds import thresholds

log = logging.getLogger(__name__)


class OneCompiles(event.Listener):
    """When something has to be compiled: one process of this node and user says so and does it, the others wait.

    Where all is on disk already, nobody waits for anybody. A process that has waited compiles what it had begun with,
    and finds the rest on disk.
    """

    def __init__(self) -> None:
        self._begun = False
        self._lock: int | None = None

    def on_start(self, event: Any) -> None:
        """Called by numba before it compiles a function."""
        if self._begun:
            return
        self._begun = True
        self._lock = open_lock(private_folder(local=True) / "warm-up.lock")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self.close()
        else:
            log.warning("compiling the solver (once per machine, about 20 s)")

    def on_end(self, event: Any) -> None:
        """Called by numba when it has compiled a function."""

    def close(self) -> None:
        """Let the next process go on."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@functools.cache
def warm_up() -> None:
    """Have everything compiled, so that no trial is charged for it.

    The first process compiles and fills numba's cache, the others read it. Where no cache folder can be
    written, each process compiles for itself.
    """
    with closing(OneCompiles()) as one, event.install_listener("numba:compile", one):
        x = np.random.default_rng(0).normal(size=(60, 4))
        samples = prepare(x, np.arange(60) % 3)
        distances = squared_distances(samples)
        kernel = kernel_minus_one(samples, 0.1, distances)
        distances.flags.writeable = kernel.flags.writeable = False  # as in another process's shared memory
        folds = [(np.arange(10, 60), np.arange(10))]
        for kind, kept, matrix in (("pairs", None, None), ("pairs", distances, None), ("whole", distances, None),
                                   ("whole", None, kernel), ("rows", None, None)):  # fmt: skip
            solve_gamma(samples, 0.1, [0.01, 10.0], folds, MatrixPlan(False, kind, samples.width, 0, ""), kept, matrix)
        product(np.zeros((1, 1, LANES), np.float32), np.zeros((1, 1)))
        thresholds(np.zeros(1, np.int8), np.ones(1), np.ones(1), np.zeros((1, 1)), np.zeros((1, 1)), 0)
