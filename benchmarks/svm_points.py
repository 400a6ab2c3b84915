"""The grid of support vector machines that benchmarks solve, and some of its points."""

from __future__ import annotations

import numpy as np

from common.images import fold_slices

PENALTIES = np.logspace(-3, 6, 5)
GAMMAS = np.logspace(-6, -2, 5)
FOLDS = 5

GridPoint = tuple[int, int]  # numbers of gamma and C


def splits(n: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(np.delete(np.arange(n), part), np.arange(n)[part]) for part in fold_slices(n, FOLDS)]


def spread(count: int) -> list[GridPoint]:
    """Points of the grid, each as far as possible from those before it, from a corner on."""
    grid = [(g, c) for g in range(len(GAMMAS)) for c in range(len(PENALTIES))]
    chosen = [grid[0]]
    while len(chosen) < min(count, len(grid)):
        chosen.append(max(grid, key=lambda point: min(steps(point, other) for other in chosen)))
    return chosen


def steps(a: GridPoint, b: GridPoint) -> float:
    return float(np.hypot(a[0] - b[0], a[1] - b[1]))
