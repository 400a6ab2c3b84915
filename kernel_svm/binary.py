"""The arrays of one binary problem, which compiled functions hand to each other as one argument."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


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
