"""The grid solver of `mpitune.svm` on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Any

import numpy as np

from mnist_svm.dataset import Dataset, Fit, GridPoint, Solver, Split, grids
from mpitune.devices.driver import Driver
from mpitune.devices.memory_lock import MemoryLock, device_name, spare_bytes
from mpitune.svm.cuda.device import ComputeDevice, Gpu
from mpitune.svm.cuda.grid import fit, solve_gammas
from mpitune.svm.cuda.plan import Loaded
from mpitune.svm.kernel.rbf import prepare


class CupyMemory:
    """Memory of a GPU, and of cupy's pool in this process; a `mpitune.devices.memory_lock.DeviceMemory`."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy

    def total(self) -> int:
        total = self._cupy.cuda.runtime.memGetInfo()[1]
        return total - spare_bytes(total)

    def free(self) -> int:
        self.give_back()
        free, total = self._cupy.cuda.runtime.memGetInfo()
        return free - spare_bytes(total)

    def take(self, n_bytes: int) -> bool:
        """Allocate one block. It stays with the pool, which then cuts the arrays of a launch from it."""
        try:
            self._cupy.cuda.alloc(n_bytes)
        except self._cupy.cuda.memory.OutOfMemoryError:
            return False
        return True

    def give_back(self) -> None:
        self._cupy.get_default_memory_pool().free_all_blocks()


class SharedGpu(Gpu):
    """The GPU of this process. Its workers reserve memory before they use it, those of networks too."""

    def __init__(self) -> None:
        super().__init__()
        self._memory = CupyMemory(self.xp)
        self._lock = MemoryLock(self._memory, device_name(Driver().uuid()))

    def memory(self) -> int:
        return self._memory.total()

    def reserved(self, n_bytes: int) -> AbstractContextManager[int]:
        return self._lock.reserved(n_bytes)


class CudaSolver(Solver):
    """All points of one gamma, or of several, in one launch; images stay on the device from one batch to the next."""

    def __init__(self, multiclass: str, device: ComputeDevice | None = None) -> None:
        self.multiclass = multiclass
        self.device: ComputeDevice = device or SharedGpu()
        self._kept: Loaded | None = None

    def __call__(self, dataset: Dataset, gamma: float, points: Sequence[GridPoint]) -> Iterator[Fit]:
        yield from self.together(dataset, [(gamma, points)])

    def together(self, dataset: Dataset, rows: Sequence[tuple[float, Sequence[GridPoint]]]) -> Iterator[Fit]:
        """A Fit of each point of each row (gamma, points), in their order."""
        if self._kept is None:
            self._kept = Loaded(self.device, prepare(dataset.images, dataset.labels))
        loaded = self._kept
        for points, same in groupby(rows, key=lambda row: list(row[1])):
            gammas = [gamma for gamma, _ in same]
            parts = list(grids(points))
            # What is left of a batch after a crash is not one grid: then gamma by gamma, to keep the order.
            for together in [gammas] if len(parts) == 1 else [[gamma] for gamma in gammas]:
                for penalties, splits in parts:
                    yield from self._solve(loaded, dataset.test_images, together, penalties, splits)

    def _solve(
        self,
        loaded: Loaded,
        test_images: np.ndarray,
        gammas: Sequence[float],
        penalties: Sequence[float],
        splits: Sequence[Split],
    ) -> Iterator[Fit]:
        if splits[0].is_refit:
            for gamma in gammas:
                for penalty in penalties:
                    model = fit(loaded, penalty, gamma, self.multiclass)
                    yield Fit(model.predict(test_images), model.n_support, model.converged)
            return
        cuts = [(split.train, split.held_out) for split in splits]
        for grid in solve_gammas(loaded, gammas, penalties, cuts, self.multiclass):
            for fold in grid:
                yield from (Fit(point.predictions, point.n_support, point.converged) for point in fold)
