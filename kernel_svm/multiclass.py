"""Many classes from binary problems: one-vs-one as LIBSVM does it, one-vs-rest as scikit-learn does.

A fold's binary problems are solved along C first; their solutions then give the decision values of all
validation samples, class of support vectors by class, as one matrix product per block of K - 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from kernel_svm.kernel import Samples
from kernel_svm.path import Path


@dataclass
class Solutions:
    """The binary problems of one training set, for all C.

    Problem m separates classes ``problems[m] = (positive, negative)``, indices of classes; the negative is -1 for
    "all others". Consecutive C often have one solution; each distinct one is kept once: ``solution_of[m][c]`` is its
    number for penalty c. rows[m]: int64, rows of the samples that support any of problem m's solutions.
    weights[m]: float64 (len(rows[m]), distinct), y * alpha. rhos[m]: float64 (distinct,). steps[m]: int64
    (n_penalties,), iterations.
    n_support: int64 (n_penalties,), distinct support vectors. iterations: int64, over all problems.
    converged: bool, whether all problems did.
    """

    samples: Samples
    n_penalties: int
    problems: list[tuple[int, int]] = field(default_factory=list)
    solution_of: list[np.ndarray] = field(default_factory=list)
    rows: list[np.ndarray] = field(default_factory=list)
    weights: list[np.ndarray] = field(default_factory=list)
    rhos: list[np.ndarray] = field(default_factory=list)
    steps: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.iterations = np.zeros(self.n_penalties, np.int64)
        self.converged = np.ones(self.n_penalties, np.bool_)
        self._support = np.zeros((self.n_penalties, self.samples.width), np.bool_)

    @property
    def n_support(self) -> np.ndarray:
        return self._support.sum(axis=1)

    def add(self, problem: tuple[int, int], path: Path, rows: np.ndarray, shift: np.ndarray | None = None) -> None:
        """Keep a solved path.

        rows: of the samples that its lanes stand for. shift: what the matrix lacks, see `sources.py`; (len(rows),).
        """
        used = path.betas.any(axis=0)
        rows, betas, rhos = rows[used], path.betas[:, used], path.rhos
        if shift is not None:
            rhos = rhos + betas @ shift[used]
        self._support[:, rows] |= betas != 0
        new = np.concatenate([[True], (path.iterations[1:] > 0) | (path.betas[1:] != path.betas[:-1]).any(axis=1)])
        self.problems.append(problem)
        self.solution_of.append(np.cumsum(new) - 1)
        self.rows.append(rows)
        self.weights.append(np.ascontiguousarray(betas[new].T))
        self.rhos.append(rhos[new])
        self.iterations += path.iterations
        self.converged &= path.converged
        self.steps.append(path.iterations)

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """By class of the support vectors: (their rows, weights (n_rows, m), the m decision values they add to)."""
        start = np.concatenate([[0], np.cumsum([len(rho) for rho in self.rhos])])
        first = self.samples.class_start
        for c in range(len(self.samples.classes)):
            parts = []
            used = np.zeros(first[c + 1] - first[c], np.bool_)
            for m, rows in enumerate(self.rows):
                low, high = np.searchsorted(rows, (first[c], first[c + 1]))
                if low < high:
                    parts.append((m, rows[low:high] - first[c], self.weights[m][low:high]))
                    used[parts[-1][1]] = True
            position = np.cumsum(used) - 1
            count = sum(part.shape[1] for _, _, part in parts)
            weights, at = np.zeros((int(used.sum()), count)), 0
            targets = np.empty(count, np.int64)
            for m, rows, part in parts:
                weights[position[rows], at : at + part.shape[1]] = part
                targets[at : at + part.shape[1]] = np.arange(start[m], start[m + 1])
                at += part.shape[1]
            if count:
                yield np.flatnonzero(used) + first[c], weights, targets

    def offsets(self) -> np.ndarray:
        """rho of every distinct solution of every problem, in the order of the decision values."""
        return np.concatenate(self.rhos)

    def labels(self, decisions: np.ndarray) -> np.ndarray:
        """Class index by sample and penalty, int64 (n_penalties, n), of decision values (n, distinct solutions)."""
        start = np.concatenate([[0], np.cumsum([len(rho) for rho in self.rhos])])
        k = len(self.samples.classes)
        result = np.empty((self.n_penalties, len(decisions)), np.int64)
        for c in range(self.n_penalties):
            columns = [start[m] + which[c] for m, which in enumerate(self.solution_of)]
            result[c] = choose_class(decisions[:, columns], self.problems, k)
        return result


def choose_class(decisions: np.ndarray, problems: Sequence[tuple[int, int]], k: int) -> np.ndarray:
    """Class index of each row of decision values (n, n_machines).

    One-vs-one: one vote per pair, for the negative class unless the value is above zero; most votes, and of equals
    the first class (LIBSVM). One-vs-rest: largest value, of equals the last class (scikit-learn's OneVsRestClassifier);
    of two classes there is one problem, whose positive class needs a value above zero.
    """
    if problems[0][1] >= 0:
        votes = np.zeros((k, len(decisions)), np.int32)
        for (positive, negative), values in zip(problems, decisions.T, strict=True):
            won = values > 0
            votes[positive] += won
            votes[negative] += ~won
        return votes.argmax(axis=0)
    if len(problems) == 1:
        return (decisions[:, 0] > 0).astype(np.int64)
    return k - 1 - decisions[:, ::-1].argmax(axis=1)


def binary_problems(k: int, multiclass: str) -> list[tuple[int, int]]:
    """(positive, negative) class indices of the binary problems of k classes.

    Raises ValueError if ``multiclass`` is neither "ovo" nor "ovr".
    """
    if multiclass == "ovo":
        return [(a, b) for a in range(k) for b in range(a + 1, k)]
    if multiclass == "ovr":
        return [(c, -1) for c in range(k)] if k > 2 else [(1, -1)]
    raise ValueError(f'multiclass is {multiclass!r}: "ovo" or "ovr" is needed')
