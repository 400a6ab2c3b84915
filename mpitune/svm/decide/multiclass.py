"""Many classes from binary problems: one-vs-one as LIBSVM does it, one-vs-rest as scikit-learn does.

A training set's binary problems are solved along C first; their solutions then give the decision values of all
validation samples, class of support vectors by class, as one matrix product per block of K - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from mpitune._jit.simd import compiled
from mpitune.svm.kernel.rbf import Samples
from mpitune.svm.solver.binary import Paths


@compiled
def _distinct(lanes, columns, betas, rhos, iterations, rows):
    """What is to keep of paths over one matrix; arguments as in `Paths`, and the row of each column's sample.

    Returns, for all paths one after the other: where those of each path begin, int64 (n + 1,); the rows that support
    any of its solutions; the columns of these; how many distinct solutions it has, int64 (n,); each penalty's number of
    one, int64 (n, n_penalties); their rhos, (n, n_penalties), which are those of the smallest penalty; and the
    solutions, float64 (rows, distinct) of each path.
    """
    n, count = rhos.shape
    first, sizes, number = np.zeros(n + 1, np.int64), np.empty(n, np.int64), np.zeros((n, count), np.int64)
    used, chosen, total = np.empty(n * betas.shape[2], np.int64), np.empty(rhos.shape), 0
    for p in range(n):
        # A penalty has a solution of its own if it took iterations, or differs from the one before in any lane.
        distinct = 0
        for c in range(1, count):
            new = iterations[p, c] > 0
            for t in range(lanes[p]):
                if new:
                    break
                new = betas[p, c, t] != betas[p, c - 1, t]
            distinct += new
            number[p, c] = distinct
        for c in range(count - 1, -1, -1):  # downwards: the smallest penalty of a solution is written last
            chosen[p, number[p, c]] = rhos[p, c]
        # The lanes that support any solution of the path.
        sizes[p], first[p + 1] = distinct + 1, first[p]
        for t in range(lanes[p]):
            for c in range(count):
                if betas[p, c, t] != 0.0:
                    used[first[p + 1]] = t
                    first[p + 1] += 1
                    break
        total += sizes[p] * (first[p + 1] - first[p])
    used_rows, used_columns, weights = np.empty(first[n], np.int64), np.empty(first[n], np.int64), np.empty(total)
    at = 0
    for p in range(n):
        for v in range(first[p], first[p + 1]):
            used_columns[v] = columns[p, used[v]]
            used_rows[v] = rows[used_columns[v]]
            for c in range(count):
                weights[at + number[p, c]] = betas[p, c, used[v]]
            at += sizes[p]
    return first, used_rows, used_columns, sizes, number, chosen, weights


@compiled
def _voted(decisions, columns, problems, k):
    """Class index (n_penalties, n) by votes of pairs of classes; arguments of `choose_classes`, first transposed."""
    result, votes = np.empty((columns.shape[1], decisions.shape[1]), np.int64), np.empty(k, np.int64)
    for c in range(columns.shape[1]):
        for i in range(decisions.shape[1]):
            for kind in range(k):
                votes[kind] = 0
            for m in range(columns.shape[0]):
                votes[problems[m, 0 if decisions[columns[m, c], i] > 0.0 else 1]] += 1
            best = 0
            for kind in range(1, k):
                if votes[kind] > votes[best]:
                    best = kind
            result[c, i] = best
    return result


@compiled
def in_doubt(values, places, limits, left, problems, k):
    """Where a decision value near 0 may decide a label, bool (n_problems, n_penalties, n), by votes of pairs.

    Args:
        values: float64 (any, n), decision values.
        places: int64 (n_problems, n_penalties), as the columns of `choose_classes`.
        limits: float64 (n_problems, n_penalties), up to where a value is near 0.
        left: bool (n_penalties,), of which nothing is asked.
        problems: int64 (n_problems, 2), pairs of classes.
        k: number of classes.
    """
    found = np.zeros((*places.shape, values.shape[1]), np.bool_)
    sure, perhaps = np.empty(k, np.int64), np.empty(k, np.int64)  # votes, without and with those in doubt
    for c in range(places.shape[1]):
        for i in range(0 if left[c] else values.shape[1]):
            near = 0
            for kind in range(k):
                sure[kind] = perhaps[kind] = 0
            for q in range(places.shape[0]):
                value = values[places[q, c], i]
                if abs(value) <= limits[q, c]:
                    near += 1
                    perhaps[problems[q, 0]] += 1
                    perhaps[problems[q, 1]] += 1
                else:
                    sure[problems[q, 0 if value > 0.0 else 1]] += 1
            if near == 0:
                continue
            most, rivals = sure.max(), 0
            for kind in range(k):
                perhaps[kind] += sure[kind]
                rivals += perhaps[kind] >= most
            for q in range(places.shape[0]):
                if rivals > 1 and abs(values[places[q, c], i]) <= limits[q, c]:
                    found[q, c, i] = perhaps[problems[q, 0]] >= most or perhaps[problems[q, 1]] >= most
    return found


@dataclass
class Solutions:
    """The binary problems of one training set, for all C.

    Consecutive C often have one solution, and each distinct one is kept once. In the lists, element m is of problem m.

    Attributes:
        samples: all samples.
        n_penalties: values of C.
        problems: (positive, negative), indices of the classes that are separated; the negative is -1 for "all others".
        solution_of: int64 (n_penalties,), the number of the solution for each C.
        rows: int64, rows of the samples that support any of the problem's solutions.
        weights: float64 (len(rows[m]), distinct), y * alpha.
        rhos: float64 (distinct,), thresholds.
        steps: int64 (n_penalties,), iterations.
        ended: bool (n_penalties,), whether the problem converged.
        gaps: float64 (n_penalties,), what is optimal around a threshold, 0 where it is determined; see `binary.Paths`.
    """

    samples: Samples
    n_penalties: int
    problems: list[tuple[int, int]] = field(default_factory=list)
    solution_of: list[np.ndarray] = field(default_factory=list)
    rows: list[np.ndarray] = field(default_factory=list)
    weights: list[np.ndarray] = field(default_factory=list)
    rhos: list[np.ndarray] = field(default_factory=list)
    steps: list[np.ndarray] = field(default_factory=list)
    ended: list[np.ndarray] = field(default_factory=list)
    gaps: list[np.ndarray] = field(default_factory=list)

    def add(self, rows: np.ndarray, weights: np.ndarray, rho: float) -> None:
        """Keep a solution whose values alone are wanted: y * alpha, float64 (len(rows),), and the threshold."""
        some = np.argsort(rows)
        some = some[weights[some] != 0]
        self.rows.append(rows[some])
        self.weights.append(weights[some, None])
        self.rhos.append(np.array([rho]))

    def replace(self, m: int, c: int, rows: np.ndarray, weights: np.ndarray, rho: float, iterations: int) -> None:
        """Have another solution of problem m for C number c alone."""
        every = np.union1d(self.rows[m], rows)
        kept = np.zeros((len(every), self.weights[m].shape[1]))
        kept[np.searchsorted(every, self.rows[m])] = self.weights[m]
        own = np.zeros(len(every))
        own[np.searchsorted(every, rows)] = weights
        number = kept.shape[1]
        self.rows[m], self.weights[m] = every, np.column_stack([kept, own])
        self.rhos[m], self.solution_of[m] = np.append(self.rhos[m], rho), self.solution_of[m].copy()
        self.solution_of[m][c] = number
        self.steps[m] = self.steps[m].copy()
        self.steps[m][c] = iterations

    @cached_property  # asked for when all problems are kept, as the next
    def iterations(self) -> np.ndarray:
        """Over all problems, of each penalty, int64 (n_penalties,)."""
        return np.array(self.steps, np.int64).reshape(-1, self.n_penalties).sum(axis=0)

    @cached_property
    def converged(self) -> np.ndarray:
        """Whether all problems did, of each penalty, bool (n_penalties,)."""
        return np.logical_and.reduce(np.array(self.ended, np.bool_).reshape(-1, self.n_penalties), axis=0)

    @property
    def n_support(self) -> np.ndarray:
        """Distinct support vectors of each penalty, int64 (n_penalties,)."""
        support = np.zeros((self.n_penalties, self.samples.width), np.bool_)
        for rows, weights, number in zip(self.rows, self.weights, self.solution_of, strict=True):
            support[:, rows] |= (weights != 0).T[number]
        return support.sum(axis=1)


def keep(
    solutions: Sequence[Solutions],
    problem: tuple[int, int],
    paths: Paths,
    rows: np.ndarray,
    shift: np.ndarray | None = None,
) -> None:
    """Keep the solved paths of one problem, each in the solutions of its training set.

    ``rows``, int64 (width,), has the row of the sample that each column stands for; ``shift``, float64 (width,), what
    the matrix lacks, see `sources.py`.
    """
    results = _distinct(paths.lanes, paths.columns, paths.betas, paths.rhos, paths.iterations, rows)
    first, used_rows, used_columns, sizes, number, rhos, weights = results
    ends, at = first.tolist(), 0
    for p, (own, size) in enumerate(zip(solutions, sizes.tolist(), strict=True)):
        part = slice(ends[p], ends[p + 1])
        end = at + size * (part.stop - part.start)
        own.problems.append(problem)
        own.solution_of.append(number[p])
        own.rows.append(used_rows[part])
        own.weights.append(weights[at:end].reshape(-1, size))
        own.rhos.append(rhos[p, :size])
        if shift is not None:
            own.rhos[-1] = own.rhos[-1] + shift[used_columns[part]] @ own.weights[-1]
        own.steps.append(paths.iterations[p])
        own.ended.append(paths.converged[p])
        own.gaps.append(paths.gaps[p])
        at = end


def choose_classes(
    decisions: np.ndarray, columns: np.ndarray, problems: Sequence[tuple[int, int]], k: int
) -> np.ndarray:
    """Class index by penalty and sample, int64 (n_penalties, n), of decision values.

    One-vs-one: one vote per pair, for the negative class unless the value is above zero; most votes, and of equals
    the first class (LIBSVM). One-vs-rest: largest value, of equals the last class (scikit-learn's OneVsRestClassifier);
    of two classes there is one problem, whose positive class needs a value above zero.

    Args:
        decisions: float64 (n, any).
        columns: int64 (n_problems, n_penalties), where the values of a binary problem at a penalty are.
        problems: as `binary_problems` has them.
        k: number of classes.
    """
    if problems[0][1] >= 0:
        values = np.ascontiguousarray(decisions.T)
        return _voted(values, np.ascontiguousarray(columns), np.array(problems), k)
    if len(problems) == 1:
        return (decisions[:, columns[0]] > 0).astype(np.int64).T
    return np.array([k - 1 - decisions[:, part[::-1]].argmax(axis=1) for part in columns.T])


def binary_problems(k: int, multiclass: str) -> list[tuple[int, int]]:
    """(positive, negative) class indices of the binary problems of k classes.

    Raises:
        ValueError: ``multiclass`` is neither "ovo" nor "ovr".
    """
    if multiclass == "ovo":
        return [(a, b) for a in range(k) for b in range(a + 1, k)]
    if multiclass == "ovr":
        return [(c, -1) for c in range(k)] if k > 2 else [(1, -1)]
    raise ValueError(f'multiclass is {multiclass!r}: "ovo" or "ovr" is needed')
