"""The arrays of binary problems, which compiled functions hand to each other as one argument."""

# mypy: allow-untyped-defs
# Compiled functions have no annotations: numba infers their types.

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mpitune._jit import LANES
from mpitune._jit.simd import part


class Binary(NamedTuple):
    """A binary problem at one C, and where its solution stands. `smo` has shapes and dtypes of the arrays."""

    rows: np.ndarray
    slot: np.ndarray
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
    slot: np.ndarray
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


@part
def one_of(problems, n):
    """Problem number ``n``."""
    width = problems.lanes[n]
    return Binary(
        problems.rows, problems.slot, problems.blocks[n, : width // LANES], problems.columns[n, :width],
        problems.sign[n, :width], problems.bounds[n, :width], problems.f[n, :width], problems.beta[n, :width],
        problems.up[n, :width], problems.low[n, :width],
    )  # fmt: skip
