"""What most samples of a class add to decision values alike is computed once for all solutions.

At a small C most multipliers are at their bound: of a class, most weights of a solution are the same number w. Then

    sum of weight * K  =  w * sum of K over the class  +  sum of (weight - w) * K

and few terms of the last sum are left, while the sum over the class serves all pairs of the class and every C.
"""

# mypy: allow-untyped-defs
# Compiled functions have no annotations: numba infers their types.

from __future__ import annotations

import numpy as np

from mpitune._jit import LANES
from mpitune._jit.simd import compiled, fma, load, part, splat, store


@part
def _most_frequent(weights, begin, end, s):
    """The weight of solution s that more than half of the samples from begin to end have, if there is one.

    R. S. Boyer and J. S. Moore, "MJRTY - a fast majority vote algorithm", 1991.
    """
    most, votes = 0.0, 0
    for v in range(begin, end):
        if votes == 0:
            most = weights[v, s]
        votes += 1 if weights[v, s] == most else -1
    return most


@part
def _pays(weights, begin, end, s, share, n_class):
    """Whether no more than half of the weights are left without ``share`` of each of the class's samples."""
    left, there = n_class, 0
    for v in range(begin, end):
        left -= weights[v, s] == share
        there += weights[v, s] != 0.0
    return 2 * left <= there


@compiled
def without_shares(kinds, cuts, places, first, widths, weights):
    """Leave out what most samples of a class have in common.

    Args:
        kinds: int64 (n_support,), classes of the support vectors, ascending.
        cuts: int64 (n_classes + 1,), where those of each class begin.
        places: int64, for each problem the numbers of its support vectors, ascending; problem m has first[m] to
            first[m + 1].
        first: int64 (n_problems + 1,).
        widths: int64 (n_problems,), how many solutions a problem has.
        weights: float64, for each problem (its support vectors, its solutions).

    Returns:
        places, first, weights: as given, of what is left. Each class follows as one more problem, with weights of 1,
        whose values are the sums over the class; without support vectors where nothing of the class is shared.
        shares: float64 (n_solutions, n_classes), by which these are multiplied.
    """
    n, k = widths.size, cuts.size - 1
    rows, entries, solutions = cuts[k], cuts[k], 0
    for m in range(n):
        solutions += widths[m]
        for at in range(first[m], first[m + 1]):
            kind = kinds[places[at]]
            if at == first[m] or kind != kinds[places[at - 1]]:
                rows += cuts[kind + 1] - cuts[kind]
                entries += widths[m] * (cuts[kind + 1] - cuts[kind])
    left, left_first, left_weights = np.empty(rows, np.int64), np.zeros(n + k + 1, np.int64), np.empty(entries)
    shares, shared_by_any = np.zeros((solutions, k)), np.zeros(k, np.bool_)
    count = written = column = read = 0
    for m in range(n):
        width, begin = widths[m], first[m]
        here = weights[read : read + (first[m + 1] - begin) * width].reshape((first[m + 1] - begin, width))
        own = places[begin : first[m + 1]]
        at = 0
        while at < own.size:
            kind, end, shared = kinds[own[at]], at, False
            while end < own.size and kinds[own[end]] == kind:
                end += 1
            for s in range(width):
                share = _most_frequent(here, at, end, s)
                if share != 0.0 and _pays(here, at, end, s, share, cuts[kind + 1] - cuts[kind]):
                    shares[column + s, kind], shared, shared_by_any[kind] = share, True, True
            for place in range(cuts[kind], cuts[kind + 1]):
                there = at < end and own[at] == place
                if there or shared:
                    for s in range(width):
                        left_weights[written + s] = (here[at, s] if there else 0.0) - shares[column + s, kind]
                    left[count] = place
                    count += 1
                    written += width
                at += there
        left_first[m + 1] = count
        column += width
        read += own.size * width
    for kind in range(k):
        if shared_by_any[kind]:
            for place in range(cuts[kind], cuts[kind + 1]):
                left[count], left_weights[written] = place, 1.0
                count += 1
                written += 1
        left_first[n + kind + 1] = count
    return left[:count], left_first, left_weights[:written], shares


@part
def add_shares(shares, values):
    """Add to values of solutions, float64 (n_solutions + n_classes, n), their shares of those of the classes."""
    n, stride = shares.shape[0], values.shape[1]
    for s in range(n):
        for kind in range(shares.shape[1]):
            if shares[s, kind] != 0.0:
                share = splat(shares[s, kind])
                for at in range(0, stride, LANES):
                    total = fma(share, load(values, (n + kind) * stride + at), load(values, s * stride + at))
                    store(values, s * stride + at, total)
