"""Decision values of all solutions of a training set at once, from K - 1 in float32.

Every value is one sum over a problem's support vectors, class by class in the order of their rows, in double: the same
bits whatever tile it is in. A weight of 0 changes no sum, so what supports none of some solutions is left out where
these are computed: at large C few samples support any. At small C most of a class add alike, see `shares`.
"""

# mypy: allow-untyped-defs
# Compiled functions have no annotations: numba infers their types.

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpitune._jit import LANES
from mpitune._jit.simd import (
    aligned_zeros,
    choose,
    compiled,
    fma,
    item,
    less,
    load,
    mul,
    part,
    splat,
    store,
    sub,
    widen,
)
from mpitune.svm.decide.multiclass import Solutions
from mpitune.svm.decide.shares import add_shares, without_shares

SIZES = 1, 2, 4  # of tiles: solutions of a problem that are computed together, in registers
TILE = SIZES[-1]
GROUP = 8  # panels of samples that a tile's weights are multiplied with while they are in the cache
SMALLEST = np.float32(-80.0)  # logarithm of a value that adds nothing to 1; numbers below float32's least are slow


@dataclass(frozen=True)
class Support:
    """The support vectors of all problems of a training set, and their weights one after the other.

    Attributes:
        rows: int64 (n_support,), rows of the samples that support any solution, ascending.
        cuts: int64 (n_classes + 1,), where those of each class begin in ``rows``.
        rhos: float64 (n_solutions + n_classes or 0,), of all problems, and 0 for the sums over classes.
        tiles: what supports some solutions of a problem, and their weights, see `_tiled`.
        shares: float64 (n_solutions, n_classes or 0), of the sums over classes in each solution's values.
    """

    rows: np.ndarray
    cuts: np.ndarray
    rhos: np.ndarray
    tiles: tuple[np.ndarray, ...]
    shares: np.ndarray

    @classmethod
    def of(cls, solved: Solutions, relative: bool = False) -> Support:
        """The support vectors of all solutions.

        Args:
            solved: the solutions.
            relative: K will be `relative`. No sums are shared then: where the largest terms of one cancel, float64 does
                not hold the least.
        """
        samples, every = solved.samples, np.concatenate(solved.rows)
        used = np.zeros(samples.width, np.bool_)
        used[every] = True
        rows = np.flatnonzero(used)
        places, first = (np.cumsum(used) - 1)[every], np.cumsum([0, *map(len, solved.rows)])
        widths = np.array([len(rho) for rho in solved.rhos])
        weights = np.concatenate([weights.ravel() for weights in solved.weights])
        several_pairs = len(samples.classes) > 2  # otherwise there is next to nothing to share
        cuts, problems = np.searchsorted(rows, samples.class_start), (places, first, widths, weights)
        return cls.made(rows, cuts, solved.offsets(), problems, several_pairs and not relative)

    @classmethod
    def made(
        cls,
        rows: np.ndarray,
        cuts: np.ndarray,
        rhos: np.ndarray,
        problems: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
        share: bool,
    ) -> Support:
        """From arrays.

        Args:
            rows: as the attribute.
            cuts: as the attribute.
            rhos: float64 (n_solutions,).
            problems: places, first, widths and weights of `_tiled`.
            share: leave out what most samples of a class have in common, see `shares`.
        """
        (places, first, widths, weights), n_classes = problems, len(cuts) - 1
        kinds, shares = np.repeat(np.arange(n_classes), np.diff(cuts)), np.zeros((len(rhos), 0))
        if share:
            places, first, weights, shares = without_shares(kinds, cuts, places, first, widths, weights)
            widths, rhos = np.append(widths, np.ones(n_classes, np.int64)), np.append(rhos, np.zeros(n_classes))
        return cls(rows, cuts, rhos, _tiled(kinds, places, first, widths, weights), shares)

    def values(self, panels: np.ndarray, factors: np.ndarray | None = None) -> np.ndarray:
        """Decision values float64 (n_solutions, LANES x panels).

        Args:
            panels: K - 1 of the samples, packed, with the support vectors as features.
            factors: float64 (n_classes, LANES x panels), by which what a class adds to a sample's value is multiplied.
        """
        count = LANES * len(panels)
        factors = np.ones((len(self.cuts) - 1, count)) if factors is None else factors
        out = aligned_zeros((len(self.rhos), count), np.float64)
        _values(panels, factors, self.rhos, self.tiles, self.shares, out)
        return out[: len(self.shares)]

    def relative(self, distances: np.ndarray, gamma: float) -> tuple[np.ndarray, np.ndarray]:
        """K relative to that of the nearest support vector of the class, which float32 can hold, and that.

        Args:
            distances: squared distances of the samples, packed as for `values`; overwritten.
            gamma: of the RBF kernel.

        Returns:
            The arguments of `values`.
        """
        nearest = aligned_zeros((len(self.cuts) - 1, LANES * len(distances)))
        _relative(distances, self.cuts, gamma, nearest)
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


@part
def _cuts(weights, best, chosen):
    """Cut the solutions of a problem into tiles that take the least time.

    At large C few samples support a solution, so that it takes less time alone than with those of its neighbours in
    between. A support vector of a tile costs a conversion and a multiplication for each solution.

    Args:
        weights: float64 (n_support, n_solutions).
        best: int64 (n_solutions + 1,), written: the cost of the first so many solutions.
        chosen: int64 (n_solutions + 1,), written: how many solutions their last tile has.
    """
    supporting = np.zeros((len(SIZES), best.size), np.int64)  # those of a tile of each size that ends there
    for v in range(weights.shape[0]):
        last = -TILE - 1
        for s in range(weights.shape[1]):
            if weights[v, s] != 0.0:
                last = s
            for k in range(len(SIZES)):
                supporting[k, s + 1] += last > s - SIZES[k]
    best[0] = 0
    for e in range(1, best.size):
        for k in range(len(SIZES)):
            if SIZES[k] <= e:
                cost = best[e - SIZES[k]] + (1 + SIZES[k]) * supporting[k, e]
                if k == 0 or cost < best[e]:
                    best[e], chosen[e] = cost, SIZES[k]


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
        sizes: int64 (n_tiles,), how many solutions a tile has, neighbours in C.
        solutions: int64 (n_tiles,), the number of the first of them.
        runs: int64 (n_tiles + 1,), where the runs of support vectors of one class begin that a tile has.
        classes: int64 (n_runs,).
        ends: int64 (n_runs,), where a run ends in the following, which it begins where the one before it ends.
        supporting: int64 (n,), numbers of support vectors.
        own: float64 (n_weights,), their weights, as many for each as its tile has solutions.
    """
    tiles = entries = 0
    for m in range(widths.size):
        tiles += widths[m]
        entries += widths[m] * (first[m + 1] - first[m])
    sizes, solutions, runs = np.empty(tiles, np.int64), np.empty(tiles, np.int64), np.zeros(tiles + 1, np.int64)
    classes, ends = np.empty(entries, np.int64), np.empty(entries, np.int64)
    supporting, own = np.empty(entries, np.int64), np.empty(entries + TILE)
    tile = count = n_runs = column = at = written = 0
    for m in range(widths.size):
        width, n_support = widths[m], first[m + 1] - first[m]
        here = weights[at : at + n_support * width].reshape((n_support, width))
        best, chosen = np.empty((2, width + 1), np.int64)
        _cuts(here, best, chosen)
        end = width
        while end > 0:
            begin = end - chosen[end]
            sizes[tile], solutions[tile] = end - begin, column + begin
            for v in range(n_support):
                used = False
                for s in range(begin, end):
                    own[written + s - begin] = here[v, s]
                    used = used or here[v, s] != 0.0
                if used:
                    written += end - begin
                    supporting[count] = places[first[m] + v]
                    kind = kinds[supporting[count]]
                    if n_runs == runs[tile] or kind != classes[n_runs - 1]:
                        classes[n_runs] = kind
                        n_runs += 1
                    count += 1
                    ends[n_runs - 1] = count
            tile += 1
            runs[tile] = n_runs
            end = begin
        column += width
        at += n_support * width
    return (
        sizes[:tile],
        solutions[:tile],
        runs[: tile + 1],
        classes[:n_runs].copy(),
        ends[:n_runs].copy(),
        supporting[:count],
        own[:written],
    )


@compiled
def _values(panels, factors, rhos, tiles, shares, out):
    """`Support.values`, into ``out``; the sums of a tile's solutions stay in registers.

    For each tile, solution s of it and sample i, with the runs and numbers of `_tiled`:

        out[s, i] = -rhos[s]
        for each run of the tile:                      support vectors of one class
            out[s, i] += factors[class of the run, i] * sum over u of the run: own[u, s] * panels[supporting[u], i]

    `_one`, `_two` and `_four` are this for tiles of so many solutions, written out as vectors must have names to stay
    in registers. In ``of_tile`` they get where the tile begins in ``supporting`` and in ``own``.
    """
    sizes, solutions, runs, classes, ends, supporting, own = tiles
    for group in range(0, panels.shape[0], GROUP):
        last = min(group + GROUP, panels.shape[0])
        begin = at = 0
        for tile in range(sizes.size):
            size, some = sizes[tile], slice(runs[tile], runs[tile + 1])
            of_tile = classes[some], ends[some], supporting, own, begin, at
            for p in range(group, last, 1 if size == TILE else 2):
                two = p, min(p + 1, last - 1)
                if size == 1:
                    _one(panels, factors, rhos, solutions[tile], of_tile, two, out)
                elif size == 2:
                    _two(panels, factors, rhos, solutions[tile], of_tile, two, out)
                else:
                    _four(panels, factors, rhos, solutions[tile], of_tile, p, out)
            if runs[tile] < runs[tile + 1]:
                end = ends[runs[tile + 1] - 1]
                at += (end - begin) * size
                begin = end
    add_shares(shares, out)


@part
def _one(panels, factors, rhos, s, of_tile, two, out):
    """Values of solution s for two panels of samples: a single sum would wait for each of its terms."""
    classes, ends, supporting, own, u, w = of_tile
    depth, stride = panels.shape[1], out.shape[1]
    p, q = two
    total_p = total_q = splat(-rhos[s])
    for run in range(ends.size):
        sum_p = sum_q = splat(0.0)
        while u < ends[run]:
            weight = splat(item(own, w))
            sum_p = fma(weight, widen(load(panels, (p * depth + supporting[u]) * LANES)), sum_p)
            sum_q = fma(weight, widen(load(panels, (q * depth + supporting[u]) * LANES)), sum_q)
            u += 1
            w += 1
        total_p = fma(sum_p, load(factors, classes[run] * stride + p * LANES), total_p)
        total_q = fma(sum_q, load(factors, classes[run] * stride + q * LANES), total_q)
    store(out, s * stride + p * LANES, total_p)
    store(out, s * stride + q * LANES, total_q)


@part
def _two(panels, factors, rhos, s, of_tile, two, out):
    """Values of solutions s and s + 1 for two panels of samples."""
    classes, ends, supporting, own, u, w = of_tile
    depth, stride = panels.shape[1], out.shape[1]
    p, q = two
    total_p0 = total_q0 = splat(-rhos[s])
    total_p1 = total_q1 = splat(-rhos[s + 1])
    for run in range(ends.size):
        sum_p0 = sum_q0 = sum_p1 = sum_q1 = splat(0.0)
        while u < ends[run]:
            of_p = widen(load(panels, (p * depth + supporting[u]) * LANES))
            of_q = widen(load(panels, (q * depth + supporting[u]) * LANES))
            weight_0, weight_1 = splat(item(own, w)), splat(item(own, w + 1))
            sum_p0, sum_q0 = fma(weight_0, of_p, sum_p0), fma(weight_0, of_q, sum_q0)
            sum_p1, sum_q1 = fma(weight_1, of_p, sum_p1), fma(weight_1, of_q, sum_q1)
            u += 1
            w += 2
        factor_p = load(factors, classes[run] * stride + p * LANES)
        factor_q = load(factors, classes[run] * stride + q * LANES)
        total_p0, total_q0 = fma(sum_p0, factor_p, total_p0), fma(sum_q0, factor_q, total_q0)
        total_p1, total_q1 = fma(sum_p1, factor_p, total_p1), fma(sum_q1, factor_q, total_q1)
    store(out, s * stride + p * LANES, total_p0)
    store(out, s * stride + q * LANES, total_q0)
    store(out, (s + 1) * stride + p * LANES, total_p1)
    store(out, (s + 1) * stride + q * LANES, total_q1)


@part
def _four(panels, factors, rhos, s, of_tile, p, out):
    """Values of solutions s to s + 3 for one panel of samples."""
    classes, ends, supporting, own, u, w = of_tile
    depth, stride = panels.shape[1], out.shape[1]
    total_0, total_1 = splat(-rhos[s]), splat(-rhos[s + 1])
    total_2, total_3 = splat(-rhos[s + 2]), splat(-rhos[s + 3])
    for run in range(ends.size):
        sum_0 = sum_1 = sum_2 = sum_3 = splat(0.0)
        while u < ends[run]:
            kernel = widen(load(panels, (p * depth + supporting[u]) * LANES))
            sum_0, sum_1 = fma(splat(item(own, w)), kernel, sum_0), fma(splat(item(own, w + 1)), kernel, sum_1)
            sum_2, sum_3 = fma(splat(item(own, w + 2)), kernel, sum_2), fma(splat(item(own, w + 3)), kernel, sum_3)
            u += 1
            w += 4
        factor = load(factors, classes[run] * stride + p * LANES)
        total_0, total_1 = fma(sum_0, factor, total_0), fma(sum_1, factor, total_1)
        total_2, total_3 = fma(sum_2, factor, total_2), fma(sum_3, factor, total_3)
    store(out, s * stride + p * LANES, total_0)
    store(out, (s + 1) * stride + p * LANES, total_1)
    store(out, (s + 2) * stride + p * LANES, total_2)
    store(out, (s + 3) * stride + p * LANES, total_3)
