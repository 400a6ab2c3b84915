"""Compilation, once per node."""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np
from numba.core import event

from jit.private import locked, private_folder
from kernel_svm.grid import solve_gamma
from kernel_svm.kernel import kernel_minus_one, prepare, squared_distances
from kernel_svm.plan import MatrixPlan


class _Word(event.Listener):
    """Says at the first compilation what is going on."""

    said = False

    def on_start(self, event: Any) -> None:
        if not self.said:
            self.said = True
            print("compiling the solver (once per machine, about 20 s)", file=sys.stderr, flush=True)

    def on_end(self, event: Any) -> None:
        pass


@functools.cache
def warm_up() -> None:
    """Have everything compiled, one process of this node and user after the other.

    The first process compiles and fills numba's cache, the others read it. Where no cache folder can be
    written, each process compiles for itself.
    """
    with (
        event.install_listener("numba:compile", _Word()),
        locked(private_folder(local=True) / "warm-up.lock"),
    ):
        x = np.random.default_rng(0).normal(size=(60, 4))
        samples = prepare(x, np.arange(60) % 3)
        distances = squared_distances(samples)
        kernel = kernel_minus_one(samples, 0.1, distances)
        distances.flags.writeable = kernel.flags.writeable = False  # as in another process's shared memory
        folds = [(np.arange(10, 60), np.arange(10))]
        for kind, kept, matrix in (("pairs", None, None), ("pairs", distances, None), ("whole", distances, None),
                                   ("whole", None, kernel), ("rows", None, None)):  # fmt: skip
            solve_gamma(samples, 0.1, [0.01, 10.0], folds, MatrixPlan(False, kind, samples.width, 0, ""), kept, matrix)
