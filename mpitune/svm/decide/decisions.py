"""Decision values of all solutions of a training set at once, from K - 1 in float32.

Every value is one sum over a solution's support vectors, class by class in the order of their rows, in double.

What most samples of a class add alike is computed once for all solutions. At a small C most multipliers are at their
bound: of a class, most weights of a solution are the same number w. Then

    sum of weight * K  =  w * sum of K over the class  +  sum of (weight - w) * K

and few terms of the last sum are left, while the sum over the class serves all pairs of the class and every C.
"""

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

GROUP = 8  # panels of samples that all weights are multiplied with while they are in the cache
SMALLEST = np.float32(-80.0)  # logarithm of a value that adds nothing to 1; numbers below float32's least are slow


@dataclass(frozen=True)
class Support:
    """The support vectors of all solutions of a training set.

    Attributes:
        rows: int64 (n_support,), rows of the samples that support any solution, ascending.
        cuts: int64 (n_classes + 1,), where those of each class begin in ``rows``.
        rhos: float64 (n_solutions + n_classes,), of all problems, and 0 for the sums over classes.
        terms: what is summed for each solution, see `_terms_of`.
        shares: float64 (n_solutions, n_classes), of the sums over classes in each solution's values.
    """

    rows: np.ndarray
    cuts: np.ndarray
    rhos: np.ndarray
    terms: tuple[np.ndarray, ...]
    shares: np.ndarray

    @classmethod
    def of(cls, solved: Solutions, relative: bool = False) -> Support:
        """The support vectors of all solutions.

        If K will be `relative`, no sums are shared: where the largest terms of one cancel, float64 does not hold the
        least.
        """
        samples, every = solved.samples, np.concatenate(solved.rows)
        used = np.zeros(samples.width, np.bool_)
        used[every] = True
        rows = np.flatnonzero(used)
        problems = (
            (np.cumsum(used) - 1)[every],
            np.cumsum([0, *map(len, solved.rows)]),
            np.array([len(rho) for rho in solved.rhos]),
            np.concatenate([weights.ravel() for weights in solved.weights]),
        )
        several_pairs = len(samples.classes) > 2  # otherwise there is next to nothing to share
        cuts = np.searchsorted(rows, samples.class_start)
        return cls.made(rows, cuts, np.concatenate(solved.rhos), problems, several_pairs and not relative)

    @classmethod
    def made(
        cls, rows: np.ndarray, cuts: np.ndarray, rhos: np.ndarray, problems: tuple[np.ndarray, ...], share: bool
    ) -> Support:
        """From the attributes, ``rhos`` those of solutions alone, and the problems of `_terms_of`."""
        kinds = np.repeat(np.arange(len(cuts) - 1), np.diff(cuts))
        *terms, shares = _terms_of(kinds, cuts, *problems, share)
        return cls(rows, cuts, np.append(rhos, np.zeros(len(cuts) - 1)), tuple(terms), shares)

    def values(self, panels: np.ndarray, factors: np.ndarray | None = None) -> np.ndarray:
        """Decision values float64 (n_solutions, LANES x panels).

        Args:
            panels: K - 1 of the samples, packed, with the support vectors as features.
            factors: float64 (n_classes, LANES x panels), by which what a class adds to a sample's value is multiplied.
        """
        count = LANES * len(panels)
        factors = np.ones((len(self.cuts) - 1, count)) if factors is None else factors
        out = aligned_zeros((len(self.rhos), count), np.float64)
        _values(panels, factors, self.rhos, self.terms, self.shares, out)
        return out[: len(self.shares)]

    def relative(self, distances: np.ndarray, gamma: float) -> tuple[np.ndarray, np.ndarray]:
        """K relative to that of the nearest support vector of the class, which float32 can hold, and that.

        They are made of squared distances of the samples, packed as for `values`, which are overwritten, and are the
        arguments of `values`.
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
def _share(weights):
    """The weight that more than half of a class have, if it is worth sharing; else 0.

    Args:
        weights: of those that support any solution; 0 where they do not support this one.

    It is worth it if at most half as many weights are left without it, those of all that differ from it. R. S. Boyer
    and J. S. Moore, "MJRTY - a fast majority vote algorithm", 1991.
    """
    most, votes = 0.0, 0
    for weight in weights:
        if votes == 0:
            most = weight
        votes += 1 if weight == most else -1
    left = there = 0
    for weight in weights:
        left += weight != most
        there += weight != 0.0
    return most if 2 * left <= there else 0.0


@compiled
def _terms_of(kinds, cuts, places, first, widths, weights, share):
    """What `_values` sums for each solution, in runs of support vectors of one class.

    Args:
        kinds: int64 (n_support,), classes of the support vectors, ascending.
        cuts: int64 (n_classes + 1,), where those of each class begin.
        places: int64, for each problem the numbers of its support vectors, ascending; problem m has first[m] to
            first[m + 1].
        first: int64 (n_problems + 1,).
        widths: int64 (n_problems,), how many solutions a problem has.
        weights: float64, for each problem (its support vectors, its solutions).
        share: leave out what most samples of a class have in common.

    Returns:
        runs: int64 (n_solutions + n_classes + 1,), where the runs of each solution begin, then those of the sums over
            classes; these have none where nothing of the class is shared.
        classes: int64 (n_runs,).
        starts: int64 (n_runs + 1,), where a run begins in the following.
        supporting: int64 (n,), numbers of support vectors.
        own: float64 (n,), their weights, none 0.
        shares: float64 (n_solutions, n_classes), by which the sums over classes are multiplied.
    """
    # How many runs and terms there may be: each class that a problem has, whole, in each of its solutions.
    k, solutions, n_runs, entries = cuts.size - 1, 0, cuts.size - 1, cuts[-1]
    for m in range(widths.size):
        solutions += widths[m]
        for at in range(first[m], first[m + 1]):
            kind = kinds[places[at]]
            if at == first[m] or kind != kinds[places[at - 1]]:
                n_runs += widths[m]
                entries += widths[m] * (cuts[kind + 1] - cuts[kind])
    runs, starts = np.zeros(solutions + k + 1, np.int64), np.zeros(n_runs + 1, np.int64)
    classes = np.empty(n_runs, np.int64)
    supporting, own = np.empty(entries, np.int64), np.empty(entries)
    shares, shared = np.zeros((solutions, k)), np.zeros(k, np.bool_)
    dense = np.zeros(cuts[-1])  # weights of one solution
    run = count = solution = read = 0
    for m in range(widths.size):
        problem = places[first[m] : first[m + 1]]
        of_problem = weights[read : read + problem.size * widths[m]].reshape((problem.size, widths[m]))
        read += of_problem.size
        for s in range(widths[m]):
            for i in range(problem.size):
                dense[problem[i]] = of_problem[i, s]
            for i in range(problem.size):
                kind = kinds[problem[i]]
                if i > 0 and kind == kinds[problem[i - 1]]:
                    continue
                begin, end = cuts[kind], cuts[kind + 1]
                common = _share(dense[begin:end]) if share else 0.0
                shares[solution, kind] = common
                shared[kind] = shared[kind] or common != 0.0
                # All of the class, since what is shared must be taken from those that this problem does not have.
                for place in range(begin, end):
                    weight = dense[place] - common
                    if weight != 0.0:
                        supporting[count], own[count] = place, weight
                        count += 1
                if count > starts[run]:
                    classes[run] = kind
                    run += 1
                    starts[run] = count
            solution += 1
            runs[solution] = run
        for i in range(problem.size):
            dense[problem[i]] = 0.0
    for kind in range(k):  # the sums over classes, as if each were one more solution
        if shared[kind]:
            for place in range(cuts[kind], cuts[kind + 1]):
                supporting[count], own[count] = place, 1.0
                count += 1
            classes[run] = kind
            run += 1
            starts[run] = count
        runs[solutions + kind + 1] = run
    return runs, classes[:run], starts[: run + 1], supporting[:count], own[:count], shares


@compiled
def _values(panels, factors, rhos, terms, shares, out):
    """`Support.values`, into ``out``, with the arrays of `_terms_of`.

    For solution s and sample i:

        out[s, i] = -rhos[s]
        for each run of the solution:                      support vectors of one class
            out[s, i] += factors[class of the run, i] * sum over u of the run: own[u] * panels[supporting[u], i]
        out[s, i] += sum over classes: shares[s, class] * out[n_solutions + class, i]

    Two panels of samples are computed at a time: a single sum would wait for each of its terms.
    """
    runs, classes, starts, supporting, own = terms
    depth, n_panels, stride = panels.shape[1], panels.shape[0], out.shape[1]
    for group in range(0, n_panels, GROUP):
        last = min(group + GROUP, n_panels)
        for s in range(rhos.size):
            for p in range(group, last, 2):
                q = min(p + 1, last - 1)
                total_p = total_q = splat(-rhos[s])
                for run in range(runs[s], runs[s + 1]):
                    sum_p = sum_q = splat(0.0)
                    for u in range(starts[run], starts[run + 1]):
                        weight = splat(item(own, u))
                        sum_p = fma(weight, widen(load(panels, (p * depth + supporting[u]) * LANES)), sum_p)
                        sum_q = fma(weight, widen(load(panels, (q * depth + supporting[u]) * LANES)), sum_q)
                    total_p = fma(sum_p, load(factors, classes[run] * stride + p * LANES), total_p)
                    total_q = fma(sum_q, load(factors, classes[run] * stride + q * LANES), total_q)
                store(out, s * stride + p * LANES, total_p)
                store(out, s * stride + q * LANES, total_q)
    n = shares.shape[0]
    for s in range(n):
        for kind in range(shares.shape[1]):
            if shares[s, kind] != 0.0:
                share = splat(shares[s, kind])
                for at in range(0, stride, LANES):
                    total = fma(share, load(out, (n + kind) * stride + at), load(out, s * stride + at))
                    store(out, s * stride + at, total)
