"""Squared distances and kernel matrices as one process sees them: its own, or shared with others of its node."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

import numpy as np

from mpitune.svm.decide.multiclass import binary_problems
from mpitune.svm.decide.sources import CHUNK, RbfSource
from mpitune.svm.kernel.rbf import Samples, distances_strip, kernel_minus_one, kernel_strip, n_strips, squared_distances
from mpitune.svm.matrices.pool import HEADER, NodeMemory, Pool, SharedMatrix, agree, bytes_of
from mpitune.svm.solver.gathered import MAX_ACTIVE

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MatrixPlan:
    """Which matrices one process keeps; none of it changes a result.

    Attributes:
        distances: whether the squared distances of all samples are kept.
        kernels: matrices K - 1 of all samples, each of one gamma, that are kept for one-vs-rest. For one-vs-one, K - 1
            of one class pair at a time is, and no such matrix.
        need: bytes at most, this process's part of what it shares included.
    """

    distances: bool
    kernels: int
    need: int
    description: str


def choose_plan(
    samples: Samples,
    multiclass: str,
    *,
    n_points: int,
    memory: int,
    sharers: int = 1,
    kernels: int = 1,
    distances: bool = True,
) -> MatrixPlan:
    """The fastest plan that fits ``memory`` bytes per process.

    Args:
        samples: all samples.
        multiclass: "ovo" or "ovr".
        n_points: folds times values of C that are solved in one call at most.
        memory: bytes for each process.
        sharers: processes of this node that share the squared distances and, for one-vs-rest, kernel matrices, each
            counted with its part of them.
        kernels: kernel matrices at most.
        distances: whether squared distances may be kept.

    Raises:
        MemoryError: not even the most frugal plan fits; it says what is needed.
        ValueError: ``multiclass`` is neither "ovo" nor "ovr".
    """
    width, k = samples.width, len(samples.classes)
    binary_problems(k, multiclass)  # refuses any other word
    per_sample = k - 1 if multiclass == "ovo" else k  # problems that a sample is in
    part = 4 * width * width // sharers  # of a matrix of all samples
    # Solutions, a gathered problem twice, blocks of K and of decision values, the samples.
    working = 12 * width * per_sample * n_points + 8 * MAX_ACTIVE * min(MAX_ACTIVE, width)
    working += 4 * CHUNK + 4 * samples.panels.size
    if multiclass == "ovo":
        kernels, base = 0, 4 * int(np.sort(np.diff(samples.class_start))[-2:].sum()) ** 2
    else:
        kernels = max(1, min(kernels, (memory - working) // part))
        base = part * kernels
    if working + base > memory:
        raise MemoryError(
            f"{multiclass} over {len(samples.row_of)} samples of {k} classes, {n_points} points at once, needs "
            f"{_gb(working + base)} for each process, {_gb(memory)} are allowed: give more memory, use fewer "
            "processes or solve fewer folds at once"
        )
    fits = distances and working + base + part <= memory
    need = working + base + (part if fits else 0)
    text = f"K of all samples for {kernels} gammas" if kernels > 1 else "K of all samples"
    text = text if kernels else "K of one class pair at a time"
    kept = "squared distances kept" if fits else "squared distances computed when needed"
    shared = f" ({sharers} processes share them)" if sharers > 1 and (fits or kernels) else ""
    description = f"{multiclass}: {text}, {kept}{shared}; {_gb(need)} of {_gb(memory)} per process"
    return MatrixPlan(fits, kernels, need, description)


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"


class Matrices:
    """Sources of the RBF kernel, with the matrices that the plan keeps, each made at its first use.

    Args:
        shared: where those of the plan are, which processes of this node fill together: kernel matrices, then the
            distances. Without it this process has its own, and keeps K - 1 until another gamma is asked for.
    """

    def __init__(self, samples: Samples, plan: MatrixPlan, shared: NodeMemory | None = None) -> None:
        self.plan, self.shared, self._samples = plan, shared, samples
        self._distances: np.ndarray | None = None
        self._kernel: np.ndarray | None = None
        self._gamma = 0.0
        if shared is not None:
            width, n = samples.width, plan.kernels + plan.distances
            matrices = [SharedMatrix(shared, number, width, n_strips(width)) for number in range(n)]
            self._pool = Pool(shared, matrices[: plan.kernels])
            if plan.distances:
                self._distances = matrices[-1].fill(lambda strip, out: distances_strip(samples, strip, out))
        elif plan.distances:
            self._distances = squared_distances(samples)

    @contextmanager
    def source(self, gamma: float) -> Iterator[RbfSource]:
        """K - 1 for a gamma, above 0; valid inside the context. Its matrices are only read."""
        samples, distances = self._samples, self._distances
        if self.plan.kernels and self.shared is not None:
            with self._pool.holding(
                gamma, lambda strip, out: kernel_strip(samples, gamma, distances, strip, out)
            ) as kernel:
                yield RbfSource(samples, gamma, distances, kernel)
            return
        if self.plan.kernels and gamma != self._gamma:
            self._gamma = 0.0  # while there is something of both
            self._kernel = kernel_minus_one(samples, gamma, distances=distances, out=self._kernel)
            self._gamma = gamma
        yield RbfSource(samples, gamma, distances, self._kernel)


def keep(
    samples: Samples, multiclass: str, n_points: int, memory: int, shared: NodeMemory | None = None, sharers: int = 1
) -> Matrices:
    """The matrices of the fastest plan for `memory` bytes per process.

    Args:
        samples: all samples.
        multiclass: "ovo" or "ovr".
        n_points: the most that are solved in one call: folds times values of C.
        memory: bytes for each process. Processes that share matrices all use what the first of them was given, so that
            all choose the same plan.
        shared: memory of the processes of one node, which they use for nothing else.
        sharers: how many these processes are.

    Raises:
        MemoryError: as `choose_plan` does.
    """
    if shared is not None and sharers > 1 and shared.reserve(HEADER):
        memory = agree(shared, memory)
        plan_of = partial(choose_plan, samples, multiclass, n_points=n_points, memory=memory, sharers=sharers)
        most = plan_of(kernels=sharers)  # all agree on it, so each matrix has one place
        sizes = (bytes_of(number + 1, samples.width) for number in range(most.kernels + most.distances))
        if room := sum(1 for _ in takewhile(shared.reserve, sizes)):
            plan = plan_of(kernels=min(room, most.kernels), distances=room > most.kernels)
            log.info("%s", plan.description)
            return Matrices(samples, plan, shared)
    plan = choose_plan(samples, multiclass, n_points=n_points, memory=memory)
    log.info("%s", plan.description)
    return Matrices(samples, plan)
