"""LIBSVM's share of a grid: which solutions of pairs of classes are replaced by its own."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from mpitune.svm import libsvm
from mpitune.svm.data import Data
from mpitune.svm.decide.sources import DoubleSource, KernelSource
from mpitune.svm.solver.binary import Paths

if TYPE_CHECKING:
    from mpitune.svm.solved import KnownPart, Replacement, Solved

DOUBT = 1.5  # times the tolerance: how far LIBSVM's decision values may be from others, nearly always
ROUNDING = 1e-9  # of the multipliers' sum, times the largest kernel value: by which values in double may differ
PATIENCE = 50, 100_000  # iterations for each sample, and in all: where both are passed, a label is not worth more


class LibsvmShare:
    """Pairs of classes whose thresholds are not determined: LIBSVM's solutions take the place of those found here."""

    _latest: ClassVar[Callable[[], LibsvmShare | None]] = lambda: None  # that keeps kernel values

    def __init__(self, data: Data, source: KernelSource, tolerance: float, shrinking: bool) -> None:
        self._data, self._function = data, source.function
        self._tolerance, self._shrinking = tolerance, shrinking
        self._largest = libsvm.scale(data.x, source.function)
        self._pairs: dict[tuple[int, int], libsvm.Pair] = {}

    def leave(self, paths: Paths, solved: Sequence[Solved]) -> None:
        """Leave whole fits to LIBSVM where it computes a pair coarsely; a path for each training set of ``solved``."""
        for own, rough in zip(solved, paths.converged & libsvm.coarse(paths, self._largest), strict=True):
            own.left |= rough

    def settle(self, parts: Sequence[KnownPart]) -> None:
        """Have LIBSVM's solutions where a label of samples may depend on how far LIBSVM goes."""
        # First where a whole interval of thresholds is optimal: LIBSVM's is in it.
        self._replace(parts, [self._doubts(part, open_=True) for part in parts], open_only=True)
        doubts = [self._doubts(part, open_=False) for part in parts]
        self._replace(parts, doubts, open_only=False)
        self._pairs.clear()
        double = DoubleSource(self._data.samples, self._function, self._data.x)
        for part, some in zip(parts, doubts, strict=True):
            part.settled = True
            if some:
                part.sharpen(some, double, ROUNDING * self._largest)

    def _doubts(self, part: KnownPart, *, open_: bool) -> dict[tuple[int, int], np.ndarray]:
        """Samples whose label is in doubt where LIBSVM's value may be so far from ours; if its threshold is, too."""
        gaps = part.solved.gaps
        rounded = -gaps * libsvm.ROUNDING * max(1.0, self._largest)
        beside = np.maximum(gaps, 0) / 2 if open_ else 0.0
        return part.doubtful(np.where(gaps < 0, rounded, beside + DOUBT * self._tolerance))

    def _replace(
        self, parts: Sequence[KnownPart], doubts: Sequence[dict[tuple[int, int], np.ndarray]], *, open_only: bool
    ) -> None:
        """Have LIBSVM's solutions of doubtful pairs; of those alone that have an interval of thresholds, or of all."""
        wanted: dict[tuple[int, int], dict[int, list[int]]] = {}  # by problem, part: penalties
        for n, part in enumerate(parts):
            own = part.solved
            for q, c in doubts[n]:
                problem = own.solutions.problems[own.numbers[q]]
                known = (problem, c) in own.exact or (open_only and own.gaps[q, c] <= self._tolerance)
                if own.solutions.converged[c] and not known:
                    wanted.setdefault(problem, {}).setdefault(n, []).append(c)
        replaced: dict[int, list[Replacement]] = {}
        for problem, numbers in wanted.items():
            for n, which in numbers.items():
                own = parts[n].solved
                q = own.numbers.index(own.solutions.problems.index(problem))
                replaced.setdefault(n, []).extend(self._solved(own, q, which, wait=open_only))
        for n, others in replaced.items():
            parts[n].solved.replace(others)
            parts[n].renew(others, afresh=open_only)

    def complete(self, own: Solved, c: int, *, every: bool) -> list[Replacement]:
        """LIBSVM's solutions at penalty number c that are not there yet, of ``every`` pair or where one is open.

        Where samples have little to do with any support vector, the threshold decides their labels: a pair is open
        where it is near 0, too.
        """
        solutions, result = own.solutions, []
        latest, LibsvmShare._latest = LibsvmShare._latest(), weakref.ref(self)
        if latest is not None and latest is not self:  # models of a gamma are asked one after the other
            latest._pairs.clear()
        for q, m in enumerate(own.numbers):
            zero = abs(solutions.rhos[m][solutions.solution_of[m][c]]) <= self._tolerance
            open_ = own.gaps[q, c] > self._tolerance or own.gaps[q, c] < 0  # as a sample to come may be on the border
            asked = solutions.ended[m][c] and (every or (not own.left[c] and (zero or open_)))
            if asked and (solutions.problems[m], c) not in own.exact:
                result += self._solved(own, q, [c])
        return result

    def _pair(self, problem: tuple[int, int]) -> libsvm.Pair:
        """The pair, kept with its kernel values while there is room."""
        pair = self._pairs.get(problem)
        if pair is None:
            members = np.flatnonzero(np.isin(self._data.samples.labels, problem))
            products = self._data.products(members, problem) if libsvm.is_faithful() else None
            pair = libsvm.Pair(self._data.x, members, self._function, products)
            if 4 * len(members) ** 2 * (1 + len(self._pairs)) <= self._data.memory // 4:
                self._pairs[problem] = pair
        return pair

    def _solved(self, solved: Solved, q: int, numbers: Sequence[int], wait: bool = True) -> list[Replacement]:
        """LIBSVM's solutions of a pair for ascending penalties.

        Those that take more iterations than PATIENCE are left out, unless they are to ``wait`` for.
        """
        training, samples, penalties = solved.training, self._data.samples, solved.penalties
        problem, labels = solved.solutions.problems[solved.numbers[q]], samples.labels[training.indices]
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
            result.append((q, c, rows, betas, rho, iterations))
            solved.exact[problem, c] = rho
        return result
