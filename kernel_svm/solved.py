"""Training sets with weights, solved one-vs-one for all C with any kernel: what estimators are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path

import numpy as np

from kernel_svm.functions import KernelFunction
from kernel_svm.grid import pairs
from kernel_svm.kernel import Samples, kernel_minus_one, prepare, squared_distances
from kernel_svm.multiclass import Solutions, binary_problems, choose_classes, keep
from kernel_svm.path import solve_paths
from kernel_svm.plan import choose_plan
from kernel_svm.platt import sigmoids
from kernel_svm.sources import FINE, DoubleSource, KernelSource, RbfSource, far, fine_distances
from kernel_svm.thresholds import refined

LIMIT = 10_000_000  # iterations, or 100 per sample if that is more: LIBSVM's, which scikit-learn has left out


def free_memory() -> int:
    """Half of the bytes of memory that Linux says are available, and no less than 1 GiB."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next((line for line in lines if line.startswith("MemAvailable:")), "MemAvailable: 0 kB")
    return max(1 << 30, int(available.split()[1]) * 1024 // 2)


@dataclass(frozen=True)
class TrainingSet:
    """Samples to train on.

    Attributes:
        indices: (m,), of samples, none twice.
        weights: float64 (m,), of their bounds; what is not above 0 is left out.
    """

    indices: np.ndarray
    weights: np.ndarray


@dataclass
class Solved:
    """One training set, for all C.

    Attributes:
        classes: indices of the classes that occur in it. a, b: sigmoids of each problem of `solutions`, (n_penalties,).
    """

    solutions: Solutions
    source: KernelSource
    training: TrainingSet
    classes: np.ndarray
    sigmoids: list[np.ndarray] = field(default_factory=list)

    def pairs(self) -> list[tuple[int, int]]:
        """Pairs of classes, in the order of decision values."""
        return list(combinations(self.classes.tolist(), 2))

    def _columns(self) -> dict[tuple[int, int], int]:
        return {problem: m for m, problem in enumerate(self.solutions.problems)}

    def _value_without(self, pair: tuple[int, int]) -> float:
        """The decision value of a pair without a problem, of which no or only one class has weight."""
        there = _different(self.solutions.samples.labels[self.training.indices[self.training.weights > 0]])
        return float(np.isin(pair[0], there)) - float(np.isin(pair[1], there))

    def values(self, indices: np.ndarray) -> np.ndarray:
        """Decision values of samples: of all solutions, then of pairs without a problem, float64 (any, n)."""
        solutions, there = self.solutions, self._columns()
        without = [self._value_without(pair) for pair in self.pairs() if pair not in there]
        solved = sum(map(len, solutions.rhos))
        rows, values = solutions.samples.row_of[indices], np.empty((solved + len(without), len(indices)))
        values[solved:] = np.array(without)[:, None]
        for part, found in self.source.decisions(solutions, rows) if solved else ():
            values[:solved, part] = found.T
        return values

    @cached_property
    def places(self) -> np.ndarray:
        """Which of `values` is that of a pair at a penalty, int64 (n_pairs, n_penalties)."""
        solutions, problems, pairs = self.solutions, self._columns(), self.pairs()
        start = np.cumsum([0, *map(len, solutions.rhos)])
        problem = np.array([problems.get(pair, -1) for pair in pairs])
        there, places = problem >= 0, np.empty((len(pairs), solutions.n_penalties), np.int64)
        places[~there] = start[-1] + np.arange(len(pairs) - len(problems))[:, None]
        if problems:
            places[there] = (start[:-1, None] + np.array(solutions.solution_of))[problem[there]]
        return places

    def attributes(self, c: int) -> dict[str, np.ndarray]:
        """Arrays of penalty number c, by scikit-learn's names, with its shapes and LIBSVM's signs.

        ``support_`` has indices in the training set.
        """
        solutions, k = self.solutions, len(self.classes)
        samples, problems = solutions.samples, self._columns()
        position = np.full(samples.width, -1)
        position[samples.row_of[self.training.indices]] = np.arange(len(self.training.indices))
        labels = np.searchsorted(self.classes, samples.labels[self.training.indices])
        place = {name: np.searchsorted(self.classes, name) for name in self.classes.tolist()}
        coefficients = np.zeros((k - 1, len(self.training.indices)))
        intercepts, steps = np.empty(k * (k - 1) // 2), np.zeros(k * (k - 1) // 2, np.int32)
        for p, pair in enumerate(self.pairs()):
            m = problems.get(pair)
            if m is None:
                intercepts[p] = self._value_without(pair)
                continue
            which, (a, b) = solutions.solution_of[m][c], (place[pair[0]], place[pair[1]])
            here, weights = position[solutions.rows[m]], solutions.weights[m][:, which]
            positive = labels[here] == a
            coefficients[b - 1, here[positive]] = weights[positive]
            coefficients[a, here[~positive]] = weights[~positive]
            intercepts[p], steps[p] = -solutions.rhos[m][which], solutions.steps[m][c]
        support = np.flatnonzero(coefficients.any(axis=0))
        support = support[np.argsort(labels[support], kind="stable")]
        slopes = np.array([self.sigmoids[problems[pair]][:, c] for pair in self.pairs()]) if self.sigmoids else None
        return {
            "support_": support.astype(np.int32),
            "_n_support": np.bincount(labels[support], minlength=k).astype(np.int32),
            "dual_coef_": np.ascontiguousarray(coefficients[:, support]),
            "intercept_": intercepts,
            "_num_iter": steps,
            "_probA": np.empty(0) if slopes is None else slopes[:, 0],
            "_probB": np.empty(0) if slopes is None else slopes[:, 1],
        }


class KnownPart:
    """Samples, by their indices, that the models of a solved training set are asked about."""

    def __init__(self, solved: Solved, indices: np.ndarray) -> None:
        self._solved, self._indices = solved, indices

    @cached_property
    def _order(self) -> np.ndarray:
        """The samples by their rows: neighbours are read together."""
        return np.argsort(self._solved.solutions.samples.row_of[self._indices])

    @cached_property
    def _values(self) -> np.ndarray:
        """Decision values of the samples in that order."""
        return self._solved.values(self._indices[self._order])

    @cached_property
    def _labels(self) -> np.ndarray:
        k = len(self._solved.classes)
        ordered = choose_classes(self._values.T, self._solved.places, binary_problems(k, "ovo"), k)
        labels = np.empty_like(ordered)
        labels[:, self._order] = ordered
        return labels

    def decisions(self, c: int) -> np.ndarray:
        """Decision values float64 (n, n_pairs) at penalty c."""
        result = np.empty((len(self._indices), len(self._solved.places)))
        result[self._order] = self._values[self._solved.places[:, c]].T
        return result

    def labels(self, c: int) -> np.ndarray:
        """Indices int64 (n,) in the training set's classes, predicted at penalty c."""
        return self._labels[c]


# Of the samples of two classes: numbers of training sets that have some of both, and for each of these signs int8
# (n, width), 0 where a sample is not in it, and weights float64 (n, width).
Part = tuple[list[int], np.ndarray, np.ndarray]


class Data:
    """Samples and what all kernels have in common on them.

    Args:
        x: float64 (n, n_features), or (n, n) for the kernel "precomputed".
        y: int (n,), classes.
        kernel: its name, as in `functions.NAMES`.
        memory: bytes that may be used; what is free by default.
        folds: as for `prepare`.
        once: only one kernel function will be asked for: its matrix is made without keeping distances.
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        kernel: str,
        memory: int | None = None,
        folds: np.ndarray | None = None,
        once: bool = False,
    ) -> None:
        self.x, self._once = x, once
        features = x if kernel == "rbf" else x[:, :0]
        self.samples: Samples = prepare(features, y, folds)
        self.memory = free_memory() if memory is None else memory
        self._distances: np.ndarray | None = None
        self._lent: RbfSource | None = None
        self._fine = False
        self._parts: tuple[Sequence[TrainingSet], list[Part]] = (), []

    def parts(self, trainings: Sequence[TrainingSet]) -> list[Part]:
        """What training sets have of each pair of classes; kept, as all kernels of a search ask for the same."""
        if [*map(id, trainings)] != [*map(id, self._parts[0])]:
            self._parts = trainings, [*_parts(self.samples, trainings)]
        return self._parts[1]

    def source(self, function: KernelFunction, n_penalties: int, n_trainings: int) -> KernelSource:
        """The kernel in float32, or in double where that is needed. Raises MemoryError where it does not fit."""
        plan = choose_plan(self.samples, "ovo", n_points=n_penalties * n_trainings, memory=self.memory)
        if function.name != "rbf":
            return DoubleSource(self.samples, function, self.x)
        if function.gamma * float(self.samples.sq_norms.max()) > FINE:
            if not plan.distances:
                return DoubleSource(self.samples, function, self.x)
            if not self._fine:
                self._distances, self._fine = fine_distances(self.samples, self.x), True
        elif self._once and plan.distances and not far(self.samples, function.gamma):
            if len(self.samples.classes) > 2:
                return RbfSource(self.samples, function.gamma, squares=plan.squares)
            return RbfSource(self.samples, function.gamma, None, kernel_minus_one(self.samples, function.gamma))
        elif self._distances is None and plan.distances:
            self._distances = squared_distances(self.samples)
        double = DoubleSource(self.samples, function, self.x) if far(self.samples, function.gamma) else None
        source = RbfSource(self.samples, function.gamma, self._distances, None, double, plan.squares)
        if self._distances is not None and len(self.samples.classes) == 2:
            self._lend_kernel(source)
        return source

    def _lend_kernel(self, source: RbfSource) -> None:
        """Give it K - 1 of all samples, the matrix of the only pair, in the memory of the one before it.

        That one computes what it is still asked for from the distances, to the same bits.
        """
        memory = None if self._lent is None else self._lent.kernel
        if self._lent is not None:
            self._lent.kernel = None
        source.kernel = kernel_minus_one(self.samples, source.gamma, distances=self._distances, out=memory)
        self._lent = source


def _different(labels: np.ndarray) -> np.ndarray:
    """The different numbers among labels from 0 on, ascending: `np.unique` takes thirty times as long."""
    return np.flatnonzero(np.bincount(labels))


def _parts(samples: Samples, trainings: Sequence[TrainingSet]) -> Iterator[Part]:
    weights = np.zeros((len(trainings), samples.width))
    for own, training in zip(weights, trainings, strict=True):
        own[samples.row_of[training.indices]] = np.maximum(training.weights, 0)
    by_class = np.split(weights, samples.class_start[1:-1], axis=1)
    for a, b in binary_problems(len(by_class), "ovo"):
        numbers = np.flatnonzero((by_class[a] > 0).any(axis=1) & (by_class[b] > 0).any(axis=1)).tolist()
        first, second = by_class[a][numbers], by_class[b][numbers]
        yield numbers, np.hstack([first > 0, -1 * (second > 0)]).astype(np.int8), np.hstack([first, second])


def solve(
    data: Data,
    function: KernelFunction,
    penalties: np.ndarray,
    trainings: Sequence[TrainingSet],
    tolerance: float,
    max_iter: int,
    seeds: Sequence[int] | None = None,
    give_up: bool = False,
) -> list[Solved]:
    """Solve each training set for ascending ``penalties``.

    Args:
        data: samples and labels.
        function: the kernel.
        penalties: float64 (n_penalties,), ascending.
        trainings: the training sets.
        tolerance: by which a solution may violate the optimality conditions.
        max_iter: iterations per binary problem and C, -1 for LIBSVM's own limit.
        seeds: of each training's folds for probabilities, where they are wanted.
        give_up: once a binary problem has reached the limit, leave out what remains of that C and of larger ones, as
            not converged; a training set then takes one such problem's time at most.

    Returns:
        What was solved, for each training set.
    """
    samples = data.samples
    limit = max(LIMIT, 100 * len(samples.row_of)) if max_iter == -1 else max_iter
    source = data.source(function, len(penalties), len(trainings))
    result = [
        Solved(Solutions(samples, len(penalties)), source, training, _different(samples.labels[training.indices]))
        for training in trainings
    ]
    distant = source if isinstance(source, RbfSource) and source.double is not None else None
    left = np.full(len(trainings), len(penalties))  # penalties that are still to be solved
    for (problem, matrix, rows, _), (numbers, signs, here) in zip(
        pairs(samples, source), data.parts(trainings), strict=True
    ):
        if not numbers:
            continue
        paths = solve_paths(matrix, signs, penalties, tolerance, limit, here, left[numbers], give_up, pair=True)
        if give_up:
            left[numbers] = np.logical_and.accumulate(paths.converged, axis=1).sum(axis=1)
        if distant is not None:
            paths = refined(distant, rows, paths, signs, here, penalties)
        keep([result[n].solutions for n in numbers], problem, paths, rows, source.shift(rows))
        for p, n in enumerate(() if seeds is None else numbers):
            assert seeds is not None
            solved, position = result[n], np.full(samples.width, len(samples.row_of))
            position[samples.row_of[solved.training.indices]] = np.arange(len(solved.training.indices))
            used = np.flatnonzero(signs[p])
            order = used[np.lexsort([position[rows[used]], -signs[p][used]])]
            slopes, some = np.zeros((2, len(penalties))), penalties[: left[n]]
            if len(some):
                slopes[:, : len(some)] = sigmoids(matrix, signs[p], here[p], order, some, tolerance, limit, seeds[n])
            solved.sigmoids.append(slopes)
    return result
