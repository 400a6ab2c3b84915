"""Squared distances and kernel matrices as one process sees them: its own, or shared with others of its node."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import numpy as np

from mpitune.svm.decide.sources import RbfSource
from mpitune.svm.kernel.rbf import Samples, distances_strip, kernel_minus_one, kernel_strip, n_strips, squared_distances
from mpitune.svm.memory.layout import DISTANCES
from mpitune.svm.memory.matrix_plan import MatrixPlan, choose_plan
from mpitune.svm.memory.pool import Pool, SharedBuffers, SharedMatrix

log = logging.getLogger(__name__)


class Matrices(Protocol):
    """Sources of the RBF kernel, with the matrices that the plan keeps, each made at its first use."""

    plan: MatrixPlan

    def source(self, gamma: float) -> AbstractContextManager[RbfSource]:
        """K - 1 for a gamma, above 0; valid inside the context. Its matrices are only read."""


class PrivateMatrices:
    """Matrices of this process alone; K - 1 is kept until another gamma is asked for."""

    def __init__(self, samples: Samples, plan: MatrixPlan) -> None:
        self.plan, self._samples = plan, samples
        self._distances = squared_distances(samples) if plan.distances else None
        self._gamma: float | None = None
        self._kernel: np.ndarray | None = None

    @contextmanager
    def source(self, gamma: float) -> Iterator[RbfSource]:
        if self.plan.kernel == "whole" and gamma != self._gamma:
            self._gamma = None  # while there is something of both
            self._kernel = kernel_minus_one(self._samples, gamma, distances=self._distances, out=self._kernel)
            self._gamma = gamma
        yield _source(self._samples, gamma, self.plan, self._distances, self._kernel)


class NodeMatrices:
    """Matrices that processes of this node fill together."""

    def __init__(self, samples: Samples, plan: MatrixPlan, matrices: Mapping[str, SharedMatrix]) -> None:
        self.plan, self._samples = plan, samples
        self._matrices = matrices  # the memory of the distances goes with them
        self._pool = Pool([matrix for name, matrix in matrices.items() if name != DISTANCES])
        self._distances: np.ndarray | None = None
        if DISTANCES in matrices:
            self._distances = matrices[DISTANCES].fill(lambda strip, out: distances_strip(samples, strip, out))

    @contextmanager
    def source(self, gamma: float) -> Iterator[RbfSource]:
        if self.plan.kernel != "whole":
            yield _source(self._samples, gamma, self.plan, self._distances, None)
            return
        with self._pool.holding(
            gamma, lambda strip, out: kernel_strip(self._samples, gamma, self._distances, strip, out)
        ) as kernel:
            yield _source(self._samples, gamma, self.plan, self._distances, kernel)


def _source(
    samples: Samples, gamma: float, plan: MatrixPlan, distances: np.ndarray | None, kernel: np.ndarray | None
) -> RbfSource:
    return RbfSource(samples, gamma, distances, kernel, squares=plan.squares, capacity=plan.capacity)


def keep(
    samples: Samples,
    multiclass: str,
    n_points: int,
    memory: int,
    buffers: SharedBuffers | None = None,
    sharers: int = 1,
) -> Matrices:
    """The matrices of the fastest plan for `memory` bytes per process.

    Args:
        samples: all samples.
        multiclass: "ovo" or "ovr".
        n_points: the most that are solved in one call: folds times values of C.
        memory: bytes for each process. Processes that share matrices all use what the first of them was given, so that
            all choose the same plan.
        buffers: for processes of one node: kernel matrices and `DISTANCES`, sized by `layout.buffer_sizes`, as many as
            the node had room for.
        sharers: processes that share the buffers.

    Raises:
        MemoryError: as `choose_plan` does.
    """
    n = n_strips(samples.width)
    there: dict[str, SharedMatrix] = {}
    if buffers is not None:
        there = {name: SharedMatrix(buffers, name, samples.width, n) for name in buffers.arrays}
    if there:
        memory = Pool(list(there.values())[:1]).agree(memory)
    while there:
        n_kernels = len(there.keys() - {DISTANCES})
        plan = choose_plan(
            samples,
            multiclass,
            n_points=n_points,
            memory=memory,
            sharers=sharers,
            kernels=n_kernels,
            distances=DISTANCES in there,
        )
        names = [*list(there)[: plan.kernels], *([DISTANCES] if plan.distances else [])]
        lacking = next((name for name in names if not there[name].reserve()), None)
        if names and lacking is None:
            log.info("%s", plan)
            return NodeMatrices(samples, plan, {name: there[name] for name in names})
        names = list(there)
        there = {name: there[name] for name in names[: names.index(lacking)]} if lacking else {}
    plan = choose_plan(samples, multiclass, n_points=n_points, memory=memory)
    log.info("%s", plan)
    return PrivateMatrices(samples, plan)
