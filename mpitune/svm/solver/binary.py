"""The arrays of binary problems, which compiled functions hand to each other as one argument."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mpitune._jit import LANES
from mpitune._jit.simd import part


class Binary(NamedTuple):
    """A binary problem at one C, and where its solution stands. `smo` has shapes and dtypes of the arrays."""

    rows: np.ndarray
    blocks: np.ndarray
    columns: np.ndarray
    sign: np.ndarray
    bounds: np.ndarray
    f: np.ndarray
    beta: np.ndarray
    up: np.ndarray
    low: np.ndarray


class Binaries(NamedTuple):
    """Binary problems over one matrix: as `Binary`, with a row of each array for each of them.

    These rows are as wide as the matrix; problem n has the first ``lanes[n]`` elements of its own.
    """

    rows: np.ndarray
    lanes: np.ndarray
    blocks: np.ndarray
    columns: np.ndarray
    sign: np.ndarray
    weights: np.ndarray
    bounds: np.ndarray
    f: np.ndarray
    beta: np.ndarray
    up: np.ndarray
    low: np.ndarray


class Ending(NamedTuple):
    """When to end, as `path.solve_paths` is told."""

    tolerance: float
    limit: int
    give_up: bool


class Path(NamedTuple):
    """Solutions of one binary problem along C, an element or a row for each C.

    Attributes:
        columns: int64 (n_lanes,), the column of each lane.
        betas: float64 (n_penalties, n_lanes), y * alpha.
        rhos: float64; the decision value is sum(beta * K) - rho, positive for sign +1.
        iterations: int64.
        converged: bool.
        gaps: float64, how wide the interval is in which every rho is optimal, above 0; 0 where a multiplier is between
            its bounds by more than rounding. Below 0 where every solver ends here, with the rho in the middle: so many
            kernel values of 1, rounded to float32, have an error as large as those of all sums.
    """

    columns: np.ndarray
    betas: np.ndarray
    rhos: np.ndarray
    iterations: np.ndarray
    converged: np.ndarray
    gaps: np.ndarray


class Paths(NamedTuple):
    """Paths of binary problems over one matrix: as `Path`, with a row of each array for each of them.

    ``lanes``, int64 (n,), has how many lanes each problem has. Rows by lane are as wide as the matrix.
    """

    lanes: np.ndarray
    columns: np.ndarray
    betas: np.ndarray
    rhos: np.ndarray
    iterations: np.ndarray
    converged: np.ndarray
    gaps: np.ndarray

    def of(self, n: int) -> Path:
        """The path of problem number ``n``."""
        width = self.lanes[n]
        return Path(self.columns[n, :width], self.betas[n, :, :width], *(array[n] for array in self[3:]))


@part
def one_of(problems, n):
    """Problem number ``n``."""
    width = problems.lanes[n]
    return Binary(
        problems.rows, problems.blocks[n, : width // LANES], problems.columns[n, :width],
        problems.sign[n, :width], problems.bounds[n, :width], problems.f[n, :width], problems.beta[n, :width],
        problems.up[n, :width], problems.low[n, :width],
    )  # fmt: skip
