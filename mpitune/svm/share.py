"""LIBSVM's share of a grid: which solutions of pairs of classes are replaced by its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mpitune.svm import libsvm
from mpitune.svm.data import Data, Matrix
from mpitune.svm.decide.sources import DoubleSource, KernelSource
from mpitune.svm.solver.binary import Paths

if TYPE_CHECKING:
    from mpitune.svm.solved import Replacement, Solved

DOUBT = 1.5  # times the tolerance: how far LIBSVM's decision values may be from others, nearly always
ROUNDING = 1e-9  # of the multipliers' sum, times the largest kernel value: by which values in double may differ
PATIENCE = 50, 100_000  # iterations for each sample, and in all: where both are passed, a label is not worth more


def thresholds(paths: Paths, shift: np.ndarray | None) -> np.ndarray:
    """Thresholds (n, n_penalties) for the kernel itself, of which the matrix lacks ``shift`` (width,)."""
    if shift is None:
        return paths.rhos
    each = map(paths.of, range(len(paths.lanes)))
    return np.array([path.rhos + path.betas @ shift[path.columns] for path in each])


class LibsvmShare:
    """Pairs of classes whose thresholds are not determined: LIBSVM's solutions take the place of those found here."""

    def __init__(self, data: Data, source: KernelSource, tolerance: float, shrinking: bool) -> None:
        self._data, self._source, self._function = data, source, source.function
        self._tolerance, self._shrinking = tolerance, shrinking
        self._largest = libsvm.scale(data.x, source.function)
        self._pairs: dict[tuple[int, int], libsvm.Pair] = {}
        self._room = data.memory // 4  # bytes

    def take(self, work: Matrix, paths: Paths, penalties: np.ndarray, solved: Sequence[Solved]) -> None:
        """Replace paths of a pair, one for each training set of ``solved``, or leave whole fits to LIBSVM."""
        tolerance, (problem, _, rows) = self._tolerance, work
        # Where samples have little to do with any support vector, the threshold decides their labels.
        zero = np.abs(thresholds(paths, self._source.shift(rows))) <= tolerance
        open_ = paths.converged & (zero | (paths.gaps > tolerance))
        for own, rough in zip(solved, paths.converged & libsvm.coarse(paths, self._largest), strict=True):
            own.left |= rough
        for p in np.flatnonzero(open_.any(axis=1)).tolist():
            own, lanes, every = solved[p], paths.lanes[p], np.zeros(len(rows))
            numbers = np.flatnonzero(open_[p] & ~own.left).tolist()
            for c, used, betas, rho, iterations in self._solved(own, problem, penalties, numbers):
                every[:] = 0.0
                every[np.searchsorted(rows, used)] = betas
                paths.betas[p, c, :lanes] = every[paths.columns[p, :lanes]]
                shift = self._source.shift(used)
                paths.rhos[p, c] = rho - (0.0 if shift is None else float(shift @ betas))
                paths.iterations[p, c] = max(1, iterations)

    def settle(self, solved: Sequence[Solved], penalties: np.ndarray) -> None:
        """Have LIBSVM's solutions where a label of a scored sample may depend on how far LIBSVM goes."""
        wanted: dict[tuple[int, int], dict[int, list[int]]] = {}  # by problem, training set: penalties
        doubts: dict[int, dict[tuple[int, int], np.ndarray]] = {}  # by training set
        for n, own in enumerate(solved):
            assert own.scored is not None
            for q, c in doubts.setdefault(n, own.scored.doubtful(DOUBT * self._tolerance)):
                problem = own.solutions.problems[own.numbers[q]]
                if own.solutions.converged[c] and (problem, c) not in own.exact:
                    wanted.setdefault(problem, {}).setdefault(n, []).append(c)
        replaced: dict[int, list[Replacement]] = {}
        for problem, numbers in wanted.items():
            for n, which in numbers.items():
                q = solved[n].numbers.index(solved[n].solutions.problems.index(problem))
                for c, rows, betas, rho, iterations in self._solved(solved[n], problem, penalties, which, wait=False):
                    replaced.setdefault(n, []).append((q, c, rows, betas, rho, iterations))
        for n, others in replaced.items():
            part = solved[n].scored
            assert part is not None
            part.replace(others)
        double = DoubleSource(self._data.samples, self._function, self._data.x)
        for n, some in doubts.items():
            part = solved[n].scored
            if part is not None and some:
                part.sharpen(some, double, ROUNDING * self._largest)

    def _pair(self, problem: tuple[int, int]) -> libsvm.Pair:
        """The pair, kept with its kernel values while there is room."""
        pair = self._pairs.get(problem)
        if pair is None:
            members = np.flatnonzero(np.isin(self._data.samples.labels, problem))
            products = self._data.products(members, problem) if libsvm.is_faithful() else None
            pair = libsvm.Pair(self._data.x, members, self._function, products)
            self._room -= 4 * len(members) ** 2
            if self._room >= 0:
                self._pairs[problem] = pair
        return pair

    def _solved(
        self, solved: Solved, problem: tuple[int, int], penalties: np.ndarray, numbers: Sequence[int], wait: bool = True
    ) -> list[tuple[int, np.ndarray, np.ndarray, float, int]]:
        """LIBSVM's solutions of a pair for ascending penalties.

        For each its number, the rows of the samples, y * alpha, the threshold, and the number of iterations. Those that
        take more iterations than PATIENCE are left out, unless they are to ``wait`` for.
        """
        training, samples = solved.training, self._data.samples
        labels = samples.labels[training.indices]
        own = np.concatenate([np.flatnonzero(labels == label) for label in problem])
        indices, first = training.indices[own], int(np.count_nonzero(labels == problem[0]))
        weights, of_class = training.sample_weight[own], training.class_weight[labels[own]]
        pair, rows, result = self._pair(problem), samples.row_of[indices], []
        betas, rho, iterations, reached = np.empty(0), 0.0, 0, True
        limit = -1 if wait else max(PATIENCE[0] * len(own), PATIENCE[1])
        for c in numbers:
            if reached:  # else no multiplier has ever been at its bound, and none will be at a larger one
                bounds = weights * (penalties[c] * of_class)
                betas, rho, iterations, reached = pair.solved(
                    indices, first, bounds, self._tolerance, self._shrinking, limit
                )
            if iterations == limit:
                break  # a larger C takes more
            result.append((c, rows, betas, rho, iterations))
            solved.exact[problem, c] = rho
        return result
