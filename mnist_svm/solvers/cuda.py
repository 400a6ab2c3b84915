"""The grid solver of `kernel_svm` on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from kernel_svm.cuda.device import Device, Gpu
from kernel_svm.cuda.grid import fit, solve_gammas
from kernel_svm.cuda.plan import Loaded
from kernel_svm.kernel import prepare
from mnist_svm.problem import Fit, Point, Problem, grids


class CudaSolver:
    """All points of one gamma, or of several, in one launch; images stay on the device from one batch to the next.

    Two slots on one GPU share its memory: where each wants more than is left, fits fail and are tried once more.
    """

    def __init__(self, multiclass: str, device: Device | None = None) -> None:
        self.multiclass = multiclass
        self.device: Device = device or Gpu()
        self._kept: Loaded | None = None

    def __call__(self, problem: Problem, gamma: float, points: Sequence[Point]) -> Iterator[Fit]:
        yield from self.together(problem, [(gamma, points)])

    def together(self, problem: Problem, rows: Sequence[tuple[float, Sequence[Point]]]) -> Iterator[Fit]:
        """A Fit of each point of each row (gamma, points), in their order."""
        if self._kept is None:
            self._kept = Loaded(self.device, prepare(problem.images, problem.labels))
        loaded = self._kept
        for points, same in groupby(rows, key=lambda row: list(row[1])):
            gammas = [gamma for gamma, _ in same]
            if points[0].fold is None:
                for gamma in gammas:
                    for penalty, _ in points:
                        model = fit(loaded, penalty, gamma, self.multiclass)
                        yield Fit(model.predict(problem.test_images), model.n_support, model.converged)
                continue
            parts, everything = list(grids(points)), np.arange(len(problem.labels))
            # What is left of a batch after a crash is not one grid: then gamma by gamma, to keep the order.
            for together in [gammas] if len(parts) == 1 else [[gamma] for gamma in gammas]:
                for penalties, folds in parts:
                    cuts = [(np.delete(everything, problem.folds[f]), everything[problem.folds[f]]) for f in folds]
                    for grid in solve_gammas(loaded, together, penalties, cuts, self.multiclass):
                        for fold in grid:
                            yield from (Fit(point.predictions, point.n_support, point.converged) for point in fold)
