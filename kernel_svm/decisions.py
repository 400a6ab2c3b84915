"""Decision values of all solutions of a training set at once, from K - 1 in float32.

Every value is one sum over a problem's support vectors, class by class in the order of their rows, in double: the same
bits whatever else is computed with it.
"""

# mypy: allow-untyped-defs
# Compiled functions have no annotations: numba infers their types.

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jit import LANES
from jit.simd import aligned_zeros, compiled, fma, item, load, splat, store, widen
from kernel_svm.multiclass import Solutions

GROUP = 8  # panels of samples that one problem's weights are multiplied with while they are in the cache


@dataclass(frozen=True)
class Support:
    """The support vectors of all problems of a training set, and their weights one after the other.

    Attributes:
        rows: int64 (n_support,), rows of the samples that support any solution, ascending.
        kinds: int64 (n_support,), their classes.
        places: int64, for each problem the numbers of its support vectors in ``rows``; problem m has first[m] to
            first[m + 1].
        widths: int64 (n_problems,), how many solutions a problem has.
        weights: float64, for each problem (its support vectors, its solutions).
        rhos: float64 (n_solutions,), of all problems.
    """

    rows: np.ndarray
    kinds: np.ndarray
    places: np.ndarray
    first: np.ndarray
    widths: np.ndarray
    weights: np.ndarray
    rhos: np.ndarray
    n_classes: int

    @classmethod
    def of(cls, solved: Solutions) -> Support:
        """The support vectors of all solutions."""
        samples, every = solved.samples, np.concatenate(solved.rows)
        used = np.zeros(samples.width, np.bool_)
        used[every] = True
        rows = np.flatnonzero(used)
        return cls(
            rows,
            np.searchsorted(samples.class_start, rows, side="right") - 1,
            (np.cumsum(used) - 1)[every],
            np.cumsum([0, *map(len, solved.rows)]),
            np.array([len(rho) for rho in solved.rhos]),
            np.concatenate([weights.ravel() for weights in solved.weights]),
            solved.offsets(),
            len(samples.classes),
        )

    def values(self, panels: np.ndarray, factors: np.ndarray | None = None) -> np.ndarray:
        """Decision values float64 (n_solutions, LANES x panels).

        Args:
            panels: K - 1 of the samples, packed, with the support vectors as features.
            factors: float64 (n_classes, LANES x panels), by which what a class adds to a sample's value is multiplied.
        """
        count = LANES * len(panels)
        factors = np.ones((self.n_classes, count)) if factors is None else factors
        out = aligned_zeros((len(self.rhos), count), np.float64)
        arrays = self.kinds, self.places, self.first, self.widths, self.weights, self.rhos
        _values(panels, factors, *arrays, out)
        return out


@compiled
def _values(panels, factors, kinds, places, first, widths, weights, rhos, out):
    depth, stride = panels.shape[1], out.shape[1]
    ends, kind_of = np.empty(factors.shape[0], np.int64), np.empty(factors.shape[0], np.int64)
    for group in range(0, panels.shape[0], GROUP):
        column = at = 0
        for m in range(widths.size):
            width, begin, end = widths[m], first[m], first[m + 1]
            runs = 0  # of support vectors of one class
            for v in range(begin, end):
                if v == begin or kinds[places[v]] != kind_of[runs - 1]:
                    kind_of[runs] = kinds[places[v]]
                    runs += 1
                ends[runs - 1] = v + 1
            for s in range(0, width, 4):  # four solutions at a time, the last one several times if there are fewer
                s_1, s_2, s_3 = min(s + 1, width - 1), min(s + 2, width - 1), min(s + 3, width - 1)
                for p in range(group, min(group + GROUP, panels.shape[0])):
                    total_0, total_1 = splat(-rhos[column + s]), splat(-rhos[column + s_1])
                    total_2, total_3 = splat(-rhos[column + s_2]), splat(-rhos[column + s_3])
                    v = begin
                    for run in range(runs):
                        sum_0, sum_1, sum_2, sum_3 = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
                        for u in range(v, ends[run]):
                            kernel = widen(load(panels, (p * depth + places[u]) * LANES))
                            weight = at + (u - begin) * width
                            sum_0 = fma(splat(item(weights, weight + s)), kernel, sum_0)
                            sum_1 = fma(splat(item(weights, weight + s_1)), kernel, sum_1)
                            sum_2 = fma(splat(item(weights, weight + s_2)), kernel, sum_2)
                            sum_3 = fma(splat(item(weights, weight + s_3)), kernel, sum_3)
                        factor = load(factors, kind_of[run] * stride + p * LANES)
                        total_0, total_1 = fma(sum_0, factor, total_0), fma(sum_1, factor, total_1)
                        total_2, total_3 = fma(sum_2, factor, total_2), fma(sum_3, factor, total_3)
                        v = ends[run]
                    store(out, (column + s) * stride + p * LANES, total_0)
                    store(out, (column + s_1) * stride + p * LANES, total_1)
                    store(out, (column + s_2) * stride + p * LANES, total_2)
                    store(out, (column + s_3) * stride + p * LANES, total_3)
            column += width
            at += (end - begin) * width
