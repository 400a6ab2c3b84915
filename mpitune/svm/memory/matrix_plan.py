"""Which matrices are kept in memory."""

from __future__ import annotations

from dataclasses import dataclass

from mpitune._jit import LANES
from mpitune.svm.decide.multiclass import binary_problems
from mpitune.svm.decide.sources import CHUNK
from mpitune.svm.kernel.rbf import Samples
from mpitune.svm.solver.gathered import MAX_ACTIVE

THREADS = 2  # where processes share a matrix: the cores of those that wait for another gamma's are not idle then


@dataclass(frozen=True)
class MatrixPlan:
    """Which matrices one process keeps; none of it changes a result.

    Attributes:
        distances: whether the squared distances of all samples are kept.
        kernel: "pairs" (K - 1 of one class pair at a time), "whole" (of all samples) or "rows" (computed on demand,
            ``capacity`` of them kept).
        need: bytes at most, this process's part of what it shares included.
        kernels: "whole" matrices, each of one gamma, that the processes of a node share.
        threads: of a process, each with a class of its own: a core stays busy while one of them waits for a matrix.
        squares: whether K - 1 of single classes is kept for a gamma, which the pairs of a class have in common.
    """

    distances: bool
    kernel: str
    capacity: int
    need: int
    description: str
    kernels: int = 1
    threads: int = 1
    squares: bool = False

    def __str__(self) -> str:
        return self.description


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
    binary_problems(k, multiclass)
    part = 4 * width * width // sharers  # of a matrix of all samples
    squares = 0
    if multiclass == "ovo":
        sizes = sorted(int(size) for size in samples.class_start[1:] - samples.class_start[:-1])
        largest, squares = sum(sizes[-2:]), 4 * sum(size**2 for size in sizes) if k > 2 else 0
        solutions = 12 * width * (k - 1) * n_points
        base, kernel, kernels = 4 * largest**2, "pairs", 0
    else:
        solutions = 12 * width * k * n_points
        base, kernel = part, "whole"
    gathered = 8 * MAX_ACTIVE * min(MAX_ACTIVE, width)  # a gathered problem twice
    # Besides: solutions, blocks of K and of decision values, the samples.
    working = gathered + solutions + 4 * CHUNK + 4 * samples.panels.size
    capacity, threads = 0, 1
    if multiclass == "ovr":
        more_threads = THREADS - 1 if sharers > 1 else 0
        kernels = min(kernels, max(0, (memory - working - more_threads * gathered) // part))
        base = part * kernels
        if kernels:
            threads += more_threads
            working += more_threads * gathered
        else:
            capacity = (memory - working) // (4 * width)
            base, kernel = 4 * width * capacity, "rows"
    fits = distances and working + base + part <= memory and kernel != "rows"
    need = working + base + (part if fits else 0)
    kept_squares = 0 < squares <= memory - need
    need += squares if kept_squares else 0
    fewest = min(width, MAX_ACTIVE + LANES)
    if need > memory or (kernel == "rows" and capacity < fewest):
        least = working + (4 * width * fewest if kernel == "rows" else base)
        raise MemoryError(
            f"{multiclass} over {len(samples.row_of)} samples of {k} classes, {n_points} points at once, needs "
            f"{_gb(least)} for each process, {_gb(memory)} are allowed: give more memory, use fewer processes or solve "
            "fewer folds at once"
        )
    text = {
        "pairs": "K of one class pair at a time",
        "whole": "K of all samples"
        + (f" for {kernels} gammas" if kernels > 1 else "")
        + (f", {threads} classes at a time" if threads > 1 else ""),
        "rows": f"rows of K on demand, {capacity} of {width} kept",
    }[kernel]
    kept = "squared distances kept" if fits else "squared distances computed when needed"
    shared = f" ({sharers} processes share them)" if sharers > 1 and (fits or kernel == "whole") else ""
    description = f"{multiclass}: {text}, {kept}{shared}; {_gb(need)} of {_gb(memory)} per process"
    return MatrixPlan(fits, kernel, capacity, need, description, kernels, threads, kept_squares)


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
