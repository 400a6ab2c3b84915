"""Decision values of all solutions of a training set at once, from K - 1 in float32.

Every value is one sum over a problem's support vectors, class by class in the order of their rows, in double: the same
bits whatever else is computed with it. A weight of 0 changes no sum, so what supports none of some solutions is left
out where these are computed: at large C few samples support any.
"""

# mypy: allow-untyped-defs
# Compiled functions have no annotations: numba infers their types.

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jit import LANES
from jit.simd import aligned_zeros, choose, compiled, fma, item, less, load, mul, splat, store, sub, widen
from kernel_svm.multiclass import Solutions

TILE = 4  # solutions of a problem that are computed together, in registers
GROUP = 8  # panels of samples that a tile's weights are multiplied with while they are in the cache
SMALLEST = np.float32(-80.0)  # logarithm of a value that adds nothing to 1; numbers below float32's least are slow


@dataclass(frozen=True)
class Support:
    """The support vectors of all problems of a training set, and their weights one after the other.

    Attributes:
        rows: int64 (n_support,), rows of the samples that support any solution, ascending.
        kinds: int64 (n_support,), their classes.
        rhos: float64 (n_solutions,), of all problems.
        tiles: what supports TILE solutions of a problem, and their weights, see `_tiled`.
    """

    rows: np.ndarray
    kinds: np.ndarray
    rhos: np.ndarray
    n_classes: int
    tiles: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, solved: Solutions) -> Support:
        """The support vectors of all solutions."""
        samples, every = solved.samples, np.concatenate(solved.rows)
        used = np.zeros(samples.width, np.bool_)
        used[every] = True
        rows = np.flatnonzero(used)
        kinds = np.searchsorted(samples.class_start, rows, side="right") - 1
        places, first = (np.cumsum(used) - 1)[every], np.cumsum([0, *map(len, solved.rows)])
        widths = np.array([len(rho) for rho in solved.rhos])
        weights = np.concatenate([weights.ravel() for weights in solved.weights])
        tiles = _tiled(kinds, places, first, widths, weights)
        return cls(rows, kinds, solved.offsets(), len(samples.classes), tiles)

    def values(self, panels: np.ndarray, factors: np.ndarray | None = None) -> np.ndarray:
        """Decision values float64 (n_solutions, LANES x panels).

        Args:
            panels: K - 1 of the samples, packed, with the support vectors as features.
            factors: float64 (n_classes, LANES x panels), by which what a class adds to a sample's value is multiplied.
        """
        count = LANES * len(panels)
        factors = np.ones((self.n_classes, count)) if factors is None else factors
        out = aligned_zeros((len(self.rhos), count), np.float64)
        _values(panels, factors, self.rhos, self.tiles, out)
        return out

    def relative(self, distances: np.ndarray, gamma: float) -> tuple[np.ndarray, np.ndarray]:
        """K relative to that of the nearest support vector of the class, which float32 can hold, and that.

        Args:
            distances: squared distances of the samples, packed as for `values`; overwritten.
            gamma: of the RBF kernel.

        Returns:
            The arguments of `values`.
        """
        nearest = aligned_zeros((self.n_classes, LANES * len(distances)))
        cuts = np.searchsorted(self.kinds, np.arange(self.n_classes + 1))
        _relative(distances, cuts, gamma, nearest)
        return np.exp(distances, out=distances), np.exp(-gamma * nearest.astype(np.float64))


@compiled
def _relative(panels, cuts, gamma, nearest):
    """Write distances to the nearest of each class, features from ``cuts[kind]`` on, and logarithms to panels."""
    depth, stride = panels.shape[1], nearest.shape[1]
    factor, least = splat(np.float32(-gamma)), splat(SMALLEST)
    for p in range(panels.shape[0]):
        for kind in range(nearest.shape[0]):
            first, last = (p * depth + cuts[kind]) * LANES, (p * depth + cuts[kind + 1]) * LANES
            if first == last:
                continue
            closest = load(panels, first)
            for at in range(first, last, LANES):
                value = load(panels, at)
                closest = choose(less(value, closest), value, closest)
            store(nearest, kind * stride + p * LANES, closest)
            for at in range(first, last, LANES):
                value = mul(factor, sub(load(panels, at), closest))
                store(panels, at, choose(less(value, least), least, value))


@compiled
def _tiled(kinds, places, first, widths, weights):
    """What `_values` reads, tile by tile, and in a tile class by class of the support vectors.

    Args:
        kinds: int64 (n_support,), classes of the support vectors.
        places: int64, for each problem the numbers of its support vectors; problem m has first[m] to first[m + 1].
        first: int64 (n_problems + 1,).
        widths: int64 (n_problems,), how many solutions a problem has.
        weights: float64, for each problem (its support vectors, its solutions).

    Returns:
        solutions: int64 (n_tiles, TILE), the numbers of a tile's solutions; the last is there several times if a
            problem has too few.
        runs: int64 (n_tiles + 1,), where the runs of support vectors of one class begin that a tile has.
        classes: int64 (n_runs,).
        ends: int64 (n_runs,), where a run ends in the following, which it begins where the one before it ends.
        supporting: int64 (n,), numbers of support vectors.
        own: float64 (n, TILE), their weights.
    """
    tiles = entries = 0
    for m in range(widths.size):
        of_problem = -(-widths[m] // TILE)
        tiles += of_problem
        entries += of_problem * (first[m + 1] - first[m])
    solutions, runs = np.empty((tiles, TILE), np.int64), np.zeros(tiles + 1, np.int64)
    classes, ends = np.empty(entries, np.int64), np.empty(entries, np.int64)
    supporting, own = np.empty(entries, np.int64), np.empty((entries, TILE))
    tile = count = n_runs = column = at = 0
    for m in range(widths.size):
        width = widths[m]
        for s in range(0, width, TILE):
            last = min(s + TILE, width) - 1
            for q in range(TILE):
                solutions[tile, q] = column + min(s + q, last)
            for v in range(first[m], first[m + 1]):
                row, used = at + (v - first[m]) * width, False
                for q in range(TILE):
                    own[count, q] = weights[row + min(s + q, last)]
                    used = used or own[count, q] != 0.0
                if used:
                    supporting[count], kind = places[v], kinds[places[v]]
                    if n_runs == runs[tile] or kind != classes[n_runs - 1]:
                        classes[n_runs] = kind
                        n_runs += 1
                    count += 1
                    ends[n_runs - 1] = count
            tile += 1
            runs[tile] = n_runs
        column += width
        at += (first[m + 1] - first[m]) * width
    return solutions, runs, classes[:n_runs].copy(), ends[:n_runs].copy(), supporting[:count], own[:count]


@compiled
def _values(panels, factors, rhos, tiles, out):
    """`Support.values`, into ``out``; the vectors of a tile's four solutions stay in registers."""
    solutions, runs, classes, ends, supporting, own = tiles
    depth, stride = panels.shape[1], out.shape[1]
    for group in range(0, panels.shape[0], GROUP):
        begin = 0
        for tile in range(solutions.shape[0]):
            s_0, s_1, s_2, s_3 = solutions[tile, 0], solutions[tile, 1], solutions[tile, 2], solutions[tile, 3]
            end = begin
            for p in range(group, min(group + GROUP, panels.shape[0])):
                total_0, total_1 = splat(-rhos[s_0]), splat(-rhos[s_1])
                total_2, total_3 = splat(-rhos[s_2]), splat(-rhos[s_3])
                end = begin
                for run in range(runs[tile], runs[tile + 1]):
                    sum_0, sum_1, sum_2, sum_3 = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
                    for u in range(end, ends[run]):
                        kernel = widen(load(panels, (p * depth + supporting[u]) * LANES))
                        sum_0 = fma(splat(item(own, TILE * u)), kernel, sum_0)
                        sum_1 = fma(splat(item(own, TILE * u + 1)), kernel, sum_1)
                        sum_2 = fma(splat(item(own, TILE * u + 2)), kernel, sum_2)
                        sum_3 = fma(splat(item(own, TILE * u + 3)), kernel, sum_3)
                    factor = load(factors, classes[run] * stride + p * LANES)
                    total_0, total_1 = fma(sum_0, factor, total_0), fma(sum_1, factor, total_1)
                    total_2, total_3 = fma(sum_2, factor, total_2), fma(sum_3, factor, total_3)
                    end = ends[run]
                store(out, s_0 * stride + p * LANES, total_0)
                store(out, s_1 * stride + p * LANES, total_1)
                store(out, s_2 * stride + p * LANES, total_2)
                store(out, s_3 * stride + p * LANES, total_3)
            begin = end
