"""One binary problem solved for every C of a list, from the smallest to the largest.

`walk` has how; here is what Python calls, and what it is given back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpitune._jit import LANES
from mpitune._jit.simd import aligned_zeros
from mpitune.svm.solver.binary import Binaries, Ending, Paths
from mpitune.svm.solver.walk import walk

TOGETHER = 32  # problems that are solved at a time, so that one training set for each sample takes no more memory


def solve_paths(
    matrix: np.ndarray,
    signs: np.ndarray,
    penalties: Sequence[float] | np.ndarray,
    tolerance: float,
    max_iter: int,
    weights: np.ndarray | None = None,
    counts: np.ndarray | None = None,
    give_up: bool = False,
) -> Paths:
    """Solve binary problems over one matrix for ascending ``penalties``.

    Args:
        matrix: K - 1, float32 (width, width), its width whole vectors.
        signs: int8 (n, width), +1 and -1 for the samples of each problem, 0 for other columns.
        penalties: every C, ascending, above 0.
        tolerance: by which a solution may violate the optimality conditions.
        max_iter: iterations per C, after which it is given up and reported as not converged.
        weights: float64 (n, width), above 0 for the samples of a problem; the bound of a multiplier is C times its
            sample's weight, 1 if not given.
        counts: int64 (n,), how many penalties of each problem are solved, all if not given. The others have not
            converged, with zeros for their solution.
        give_up: leave out all C above the first that did not converge, too.
    """
    n, width = signs.shape
    every = np.asarray(penalties, np.float64)
    shape = n, len(every)
    weights = np.ones((n, width)) if weights is None else weights
    counts = np.full(n, len(every)) if counts is None else counts
    paths = Paths(
        np.empty(n, np.int64), np.empty((n, width), np.int64), np.empty((*shape, width)), np.empty(shape),
        np.empty(shape, np.int64), np.empty(shape, np.bool_), np.empty(shape),
    )  # fmt: skip
    ending = Ending(tolerance, max_iter, give_up)
    for first in range(0, n, TOGETHER):
        some = slice(first, first + TOGETHER)
        given = signs[some], weights[some], counts[some]
        into = Paths(*(array[some] for array in paths))
        walk(binaries(matrix, into.lanes, into.columns), given, every, ending, into)
    return paths


def binaries(matrix: np.ndarray, lanes: np.ndarray, columns: np.ndarray) -> Binaries:
    """Room for binary problems with these lanes, int64 (n,), in these columns, int64 (n, width)."""
    n, width = columns.shape
    doubles, marks = aligned_zeros((4, n, width), np.float64), np.empty((2, n, width), np.uint8)
    return Binaries(
        matrix, lanes, np.empty((n, width // LANES), np.int32), columns,
        np.empty((n, width), np.int8), *doubles, *marks,
    )  # fmt: skip
