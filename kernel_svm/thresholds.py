"""Thresholds in double, where samples are so far from each other that K - 1 in float32 loses K.

Between two classes of equal size a threshold is then as small as the values of K, such as 1e-20; it decides the labels
of all samples that are far from any support vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kernel_svm.path import Path
from kernel_svm.sources import CHUNK, RbfSource


def refined(
    source: RbfSource,
    rows: np.ndarray,
    paths: Sequence[Path],
    signs: Sequence[np.ndarray],
    weights: Sequence[np.ndarray],
    penalties: np.ndarray,
) -> list[Path]:
    """The paths of one machine for several training sets, with `rhos` that are computed from K in double.

    rows: of each column of the machine's matrix, in the samples. signs, weights: for each path, by column, as
    `solve_path` was given them.
    """
    betas = np.zeros((len(rows), len(paths) * len(penalties)))
    for number, path in enumerate(paths):
        betas[path.columns, number * len(penalties) : (number + 1) * len(penalties)] = path.betas.T
    used = np.flatnonzero(np.any(signs, axis=0))
    others = np.empty((len(used), betas.shape[1]))  # what other samples add to f
    step = max(1, CHUNK // (8 * len(used)))
    for top in range(0, len(used), step):
        part = used[top : top + step]
        values = source.tiny(rows[part], rows[used])
        values[np.arange(len(part)), np.arange(top, top + len(part))] = 0
        others[top : top + len(part)] = values @ betas[used]
    result = []
    for number, path in enumerate(paths):
        own_columns = slice(number * len(penalties), (number + 1) * len(penalties))
        sign = signs[number][used][:, None]
        bound = penalties * weights[number][used][:, None]
        beta, rest = betas[used, own_columns], others[:, own_columns]
        up = (sign != 0) & (beta < np.where(sign > 0, bound, 0.0))
        low = (sign != 0) & (beta > np.where(sign > 0, 0.0, -bound))
        own, free = beta - sign, up & low
        # Two sums: the first is 0 where all multipliers are free, and would hide the second.
        total = np.sum(own, axis=0, where=free) + np.sum(rest, axis=0, where=free)
        least = np.min(own + rest, axis=0, where=up, initial=np.inf)
        most = np.max(own + rest, axis=0, where=low, initial=-np.inf)
        count = free.sum(axis=0)
        result.append(replace(path, rhos=np.where(count > 0, total / np.maximum(count, 1), (least + most) / 2)))
    return result
