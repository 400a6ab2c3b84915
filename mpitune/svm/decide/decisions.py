"""Decision values of all solutions of a training set at once, from K - 1 in float32.

Every value is one sum over a solution's support vectors in the order of their rows, in double.

What most samples of a class add alike is computed once for all solutions. At a small C most multipliers are at their
bound: of a class, most weights of a solution are the same number w. Then

    sum of weight * K  =  w * sum of K over the class  +  sum of (weight - w) * K

and few terms of the last sum are left, while the sum over the class serves all pairs of the class and every C.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpitune._jit import LANES
from mpitune._jit.simd import aligned_zeros, compiled, fma, item, load, part, splat, store, widen
from mpitune.svm.decide.multiclass import Solutions

GROUP = 8  # panels of samples that all weights are multiplied with while they are in the cache


@dataclass(frozen=True)
class Support:
    """The support vectors of all solutions of a training set.

    Attributes:
        rows: int64 (n_support,), rows of the samples that support any solution, ascending.
        rhos: float64 (n_solutions + n_classes,), of all problems, and 0 for the sums over classes.
        terms: what is summed for each solution, see `_terms_of`.
        shares: float64 (n_solutions, n_classes), of the sums over classes in each solution's values.
    """

    rows: np.ndarray
    rhos: np.ndarray
    terms: tuple[np.ndarray, ...]
    shares: np.ndarray

    @classmethod
    def of(cls, solved: Solutions) -> Support:
        """The support vectors of all solutions."""
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
        return cls.made(rows, cuts, np.concatenate(solved.rhos), problems, several_pairs)

    @classmethod
    def made(
        cls, rows: np.ndarray, cuts: np.ndarray, rhos: np.ndarray, problems: tuple[np.ndarray, ...], share: bool
    ) -> Support:
        """From the attributes, ``rhos`` those of solutions alone, and the arguments of `_terms_of`."""
        kinds = np.repeat(np.arange(len(cuts) - 1), np.diff(cuts))
        *terms, shares = _terms_of(kinds, cuts, *problems, share)
        return cls(rows, np.append(rhos, np.zeros(len(cuts) - 1)), tuple(terms), shares)

    def values(self, panels: np.ndarray) -> np.ndarray:
        """Decision values float64 (n_solutions, LANES x panels).

        ``panels`` is K - 1 of the samples, packed, with the support vectors as features.
        """
        out = aligned_zeros((len(self.rhos), LANES * len(panels)), np.float64)
        _values(panels, self.rhos, self.terms, self.shares, out)
        return out[: len(self.shares)]


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
    """What `_values` sums for each solution.

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
        starts: int64 (n_solutions + n_classes + 1,), where the terms of each solution begin, then those of the sums
            over classes; these have none where nothing of the class is shared.
        supporting: int64 (n,), numbers of support vectors.
        own: float64 (n,), their weights, none 0.
        shares: float64 (n_solutions, n_classes), by which the sums over classes are multiplied.
    """
    # How many terms there may be: each class that a problem has, whole, in each of its solutions.
    k, solutions, entries = cuts.size - 1, 0, cuts[-1]
    for m in range(widths.size):
        solutions += widths[m]
        for at in range(first[m], first[m + 1]):
            kind = kinds[places[at]]
            if at == first[m] or kind != kinds[places[at - 1]]:
                entries += widths[m] * (cuts[kind + 1] - cuts[kind])
    starts = np.zeros(solutions + k + 1, np.int64)
    supporting, own = np.empty(entries, np.int64), np.empty(entries)
    shares, shared = np.zeros((solutions, k)), np.zeros(k, np.bool_)
    dense = np.zeros(cuts[-1])  # weights of one solution
    count = solution = read = 0
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
            solution += 1
            starts[solution] = count
        for i in range(problem.size):
            dense[problem[i]] = 0.0
    for kind in range(k):  # the sums over classes, as if each were one more solution
        if shared[kind]:
            for place in range(cuts[kind], cuts[kind + 1]):
                supporting[count], own[count] = place, 1.0
                count += 1
        starts[solutions + kind + 1] = count
    return starts, supporting[:count], own[:count], shares


@compiled
def _values(panels, rhos, terms, shares, out):
    """`Support.values`, into ``out``, with the arrays of `_terms_of`.

    For solution s and sample i:

        out[s, i] = -rhos[s] + sum over u from starts[s] to starts[s + 1]: own[u] * panels[supporting[u], i]
        out[s, i] += sum over classes: shares[s, class] * out[n_solutions + class, i]

    Two panels of samples are computed at a time: a single sum would wait for each of its terms.
    """
    starts, supporting, own = terms
    depth, n_panels, stride = panels.shape[1], panels.shape[0], out.shape[1]
    for group in range(0, n_panels, GROUP):
        last = min(group + GROUP, n_panels)
        for s in range(rhos.size):
            for p in range(group, last, 2):
                q = min(p + 1, last - 1)
                total_p = total_q = splat(-rhos[s])
                for u in range(starts[s], starts[s + 1]):
                    weight = splat(item(own, u))
                    total_p = fma(weight, widen(load(panels, (p * depth + supporting[u]) * LANES)), total_p)
                    total_q = fma(weight, widen(load(panels, (q * depth + supporting[u]) * LANES)), total_q)
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
