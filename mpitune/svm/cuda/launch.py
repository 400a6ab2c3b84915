"""Many paths in one launch: their lanes packed one behind the other, their solutions taken apart again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpitune._jit import WIDE
from mpitune.svm.cuda.device import SCRATCH, STATE, ComputeDevice
from mpitune.svm.solver.path import Path


@dataclass(frozen=True)
class Lanes:
    """The lanes of one binary problem.

    Attributes:
        blocks: int32 (n_lanes / 16,), the blocks of 16 columns of the matrix that hold a sample.
        sign: int8 (n_lanes,), +1, -1, or 0 where there is none.
    """

    blocks: np.ndarray
    sign: np.ndarray

    @classmethod
    def of(cls, sign: np.ndarray) -> Lanes:
        """From the sign of each column of the matrix, int8 (width,)."""
        by_block = sign.reshape(-1, WIDE)
        blocks = np.flatnonzero(by_block.any(axis=1)).astype(np.int32)
        return cls(blocks, by_block[blocks].ravel())

    @property
    def columns(self) -> np.ndarray:
        return (self.blocks[:, None].astype(np.int64) * WIDE + np.arange(WIDE)).ravel()

    def __len__(self) -> int:
        return len(self.sign)

    def bytes(self, n_penalties: int) -> int:
        """On the device, for a launch: solutions, state, blocks and sign."""
        return len(self) * (8 * n_penalties + STATE + 2)


def solve_paths(
    device: ComputeDevice,
    kernels: Any,
    matrices: Sequence[tuple[int, int]],
    problems: Sequence[tuple[int, Lanes]],
    penalties: np.ndarray,
    tolerance: float,
    max_iter: int,
) -> list[Path]:
    """Solve every problem for ascending ``penalties``, each in a thread block of its own.

    Args:
        device: where the kernel runs.
        kernels: float32 array on the device that holds every K - 1.
        matrices: (first element, width) of each matrix in ``kernels``.
        problems: (number of its matrix, its lanes) of each. Blocks start in this order: the longest should come first.
        penalties: float64 (n_penalties,), ascending.
        tolerance: by which a solution may violate the optimality conditions.
        max_iter: iterations per C, as for `mpitune.svm.solver.path.solve_path`.

    Returns:
        The path of each problem, in the same order.
    """
    xp, count = device.xp, len(penalties)
    first = np.concatenate([[0], np.cumsum([len(lanes) for _, lanes in problems])]).astype(np.int64)
    total, most = int(first[-1]), max(len(lanes) for _, lanes in problems)
    fits = SCRATCH + STATE * most <= device.shared_memory
    begins, widths = np.array([matrices[number] for number, _ in problems], np.int64).T
    betas, rhos = xp.empty(count * total), xp.empty((len(problems), count))
    iterations, converged = xp.empty((len(problems), count), np.int64), xp.empty((len(problems), count), np.bool_)
    arguments = (
        kernels,
        xp.asarray(np.ascontiguousarray(begins)),
        xp.asarray(np.ascontiguousarray(widths)),
        xp.asarray(first),
        xp.asarray(np.concatenate([lanes.blocks for _, lanes in problems])),
        xp.asarray(np.concatenate([lanes.sign for _, lanes in problems])),
        xp.asarray(np.asarray(penalties, np.float64)),
        np.int64(count),
        np.float64(tolerance),
        np.int64(max_iter),
        np.int64(0) if fits else xp.empty(STATE * total, np.uint8),
        betas,
        rhos,
        iterations,
        converged,
    )
    shared_memory = SCRATCH + STATE * most if fits else SCRATCH
    device.launch(len(problems), device.threads(most), shared_memory, arguments)
    betas, rhos, iterations, converged = (device.to_host(array) for array in (betas, rhos, iterations, converged))
    parts = zip(np.split(betas, count * first[1:-1]), rhos, iterations, converged, strict=True)
    return [
        Path(lanes.columns, part.reshape(count, -1), *figures)
        for (_, lanes), (part, *figures) in zip(problems, parts, strict=True)
    ]
