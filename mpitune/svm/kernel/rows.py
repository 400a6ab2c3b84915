"""Rows of K - 1 on demand, where no matrix fits in memory."""

from __future__ import annotations

import numpy as np

from mpitune._jit import padded
from mpitune._jit.simd import aligned_zeros
from mpitune.svm.kernel.gemm import packed
from mpitune.svm.kernel.rbf import STRIP, Samples, distances_between, expm1_scaled


class Rows:
    """Rows of K - 1 computed when they are asked for; the oldest make room for new ones.

    Args:
        capacity: rows that are kept. See `mpitune.svm.solver.path.Kernel` for the attributes.
    """

    def __init__(self, samples: Samples, gamma: float, capacity: int) -> None:
        self._samples, self._gamma = samples, gamma
        self._owner = np.full(min(capacity, samples.width), -1)
        self._next = 0
        self.rows = aligned_zeros((len(self._owner), samples.width))
        self.slot = np.full(samples.width, -1, np.int32)

    def fetch(self, wanted: np.ndarray) -> None:
        """Compute ``wanted`` rows, none of which is there and which are no more than the capacity."""
        samples = self._samples
        for start in range(0, len(wanted), STRIP):
            numbers = wanted[start : start + STRIP]
            block = aligned_zeros((padded(len(numbers)), samples.width))
            same = np.full(len(block), -1)
            same[: len(numbers)] = numbers
            sq_norms = np.zeros(len(block), np.float32)
            sq_norms[: len(numbers)] = samples.sq_norms[numbers]
            distances_between(packed(samples.x(numbers)), sq_norms, samples.panels, samples.sq_norms, same, block)
            expm1_scaled(block, self._gamma, block)
            for number, row in zip(numbers, block, strict=False):
                self._put(int(number), row)

    def _put(self, number: int, row: np.ndarray) -> None:
        place = self._next
        self._next = (place + 1) % len(self._owner)
        if self._owner[place] >= 0:
            self.slot[self._owner[place]] = -1
        self._owner[place], self.slot[number] = number, place
        self.rows[place] = row
