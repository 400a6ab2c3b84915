"""Training sets with weights, solved one-vs-one for all C with any kernel: what estimators are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations

import numpy as np

from mpitune._jit.limits import free_memory
from mpitune.svm.decide.multiclass import Solutions, binary_problems, choose_classes, keep
from mpitune.svm.decide.platt import sigmoids
from mpitune.svm.decide.sources import CHUNK, FINE, DoubleSource, KernelSource, RbfSource, far, fine_distances
from mpitune.svm.grid import pairs
from mpitune.svm.kernel.functions import KernelFunction
from mpitune.svm.kernel.rbf import Samples, kernel_minus_one, prepare, squared_distances
from mpitune.svm.libsvm import Pair, coarse, middle, scale, undetermined
from mpitune.svm.memory.matrix_plan import choose_plan
from mpitune.svm.solver.path import Kernel, Paths, solve_paths

LEAST_MEMORY = 5 * CHUNK  # bytes: plans count four blocks, which small problems do not fill
LIMIT = 10_000_000  # iterations, or 100 per sample if that is more: LIBSVM's, which scikit-learn has left out


@dataclass(frozen=True)
class TrainingSet:
    """Samples to train on.

    Attributes:
        indices: (m,), of samples, none twice.
        sample_weight: float64 (m,), above 0.
        class_weight: float64 (n_classes,), above 0, of all classes of the samples.
    """

    indices: np.ndarray
    sample_weight: np.ndarray
    class_weight: np.ndarray


@dataclass
class Solved:
    """One training set, for all C.

    Attributes:
        classes: indices of the classes that occur in it.
        sigmoids: a and b of each problem of `solutions`, (2, n_penalties).
        left: bool (n_penalties,), whether the fit is left to LIBSVM as a whole; see `libsvm`.
    """

    solutions: Solutions
    source: KernelSource
    training: TrainingSet
    classes: np.ndarray
    left: np.ndarray
    sigmoids: list[np.ndarray] = field(default_factory=list)

    def pairs(self) -> list[tuple[int, int]]:
        """Pairs of classes, in the order of decision values."""
        return list(combinations(self.classes.tolist(), 2))

    def _columns(self) -> dict[tuple[int, int], int]:
        return {problem: m for m, problem in enumerate(self.solutions.problems)}

    def values(self, indices: np.ndarray) -> np.ndarray:
        """Decision values of samples, of all solutions, float64 (any, n)."""
        solutions = self.solutions
        rows, values = solutions.samples.row_of[indices], np.empty((sum(map(len, solutions.rhos)), len(indices)))
        for part, found in self.source.decisions(solutions, rows):
            values[:, part] = found.T
        return values

    @cached_property
    def places(self) -> np.ndarray:
        """Which of `values` is that of a pair at a penalty, int64 (n_pairs, n_penalties)."""
        solutions, problems = self.solutions, self._columns()
        start = np.cumsum([0, *map(len, solutions.rhos)])
        places: np.ndarray = start[:-1, None] + np.array(solutions.solution_of)
        return places[[problems[pair] for pair in self.pairs()]]

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
            m = problems[pair]
            which, (a, b) = solutions.solution_of[m][c], (place[pair[0]], place[pair[1]])
            here, weights = position[solutions.rows[m]], solutions.weights[m][:, which]
            positive = labels[here] == a
            coefficients[b - 1, here[positive]] = weights[positive]
            coefficients[a, here[~positive]] = weights[~positive]
            intercepts[p], steps[p] = -solutions.rhos[m][which], solutions.steps[m][c]
        support = np.flatnonzero(coefficients.any(axis=0))
        support = support[np.argsort(labels[support], kind="stable")]
        slopes = [self.sigmoids[problems[pair]][:, c] for pair in self.pairs()] if self.sigmoids else []
        return {
            "support_": support.astype(np.int32),
            "_n_support": np.bincount(labels[support], minlength=k).astype(np.int32),
            "dual_coef_": np.ascontiguousarray(coefficients[:, support]),
            "intercept_": intercepts,
            "_num_iter": steps,
            "_probA": np.array([a for a, _ in slopes], np.float64),
            "_probB": np.array([b for _, b in slopes], np.float64),
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
        memory: bytes that may be used; half of what is free by default.
        folds: as for `prepare`.
        once: only one kernel function will be asked for: its matrix is made without keeping distances.
        sparse: the samples were given as a sparse matrix.
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        kernel: str,
        memory: int | None = None,
        folds: np.ndarray | None = None,
        once: bool = False,
        sparse: bool = False,
    ) -> None:
        self.x, self.y, self.sparse, self._once = x, y, sparse, once
        features = x if kernel == "rbf" else x[:, :0]
        self.samples: Samples = prepare(features, y, folds)
        self.memory = max(LEAST_MEMORY, free_memory() // 2) if memory is None else memory
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
        weight = training.sample_weight * training.class_weight[samples.labels[training.indices]]
        own[samples.row_of[training.indices]] = weight
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
    shrinking: bool = True,
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
        shrinking: LIBSVM's option, for pairs that are left to it.

    Returns:
        What was solved, for each training set.
    """
    samples = data.samples
    limit = max(LIMIT, 100 * len(samples.row_of)) if max_iter == -1 else max_iter
    source = data.source(function, len(penalties), len(trainings))
    result = [
        Solved(Solutions(samples, len(penalties)), source, training, _different(samples.labels[training.indices]), left)
        for training, left in zip(trainings, np.zeros((len(trainings), len(penalties)), np.bool_), strict=True)
    ]
    largest = scale(data.x, function)
    left_over = _Left(data, function, source, tolerance, shrinking)
    left = np.full(len(trainings), len(penalties))  # penalties that are still to be solved
    for (problem, matrix, rows, _), (numbers, signs, here) in zip(
        pairs(samples, source), data.parts(trainings), strict=True
    ):
        if not numbers:
            continue
        paths = solve_paths(matrix, signs, penalties, tolerance, limit, here, left[numbers], give_up, pair=True)
        if give_up:
            left[numbers] = np.logical_and.accumulate(paths.converged, axis=1).sum(axis=1)
        # Where samples have little to do with any support vector, the threshold decides their labels.
        zero = (np.abs(thresholds(paths, source.shift(rows))) <= tolerance) & (paths.gaps <= tolerance)
        gaps = paths.converged & (zero | (paths.gaps > tolerance))
        for n, rough in zip(numbers, paths.converged & coarse(paths, largest), strict=True):
            result[n].left |= rough
        for p in np.flatnonzero(gaps.any(axis=1)).tolist():
            if seeds is None:
                left_over.solve(trainings[numbers[p]], problem, matrix, rows, paths, p, penalties, zero[p])
            else:
                result[numbers[p]].left |= gaps[p]
        keep([result[n].solutions for n in numbers], problem, paths, rows, source.shift(rows))
        for p, n in enumerate(() if seeds is None else numbers):
            assert seeds is not None
            solved, position = result[n], np.full(samples.width, len(samples.row_of))
            position[samples.row_of[solved.training.indices]] = np.arange(len(solved.training.indices))
            used = np.flatnonzero(signs[p])
            order = used[np.lexsort([position[rows[used]], -signs[p][used]])]
            slopes, some = np.zeros((2, len(penalties))), penalties[: left[n]]
            if len(some):
                slopes[:, : len(some)], determined = sigmoids(
                    matrix, signs[p], here[p], order, some, tolerance, limit, seeds[n]
                )
                solved.left[: len(some)] |= ~determined
            solved.sigmoids.append(slopes)
    return result


def thresholds(paths: Paths, shift: np.ndarray | None) -> np.ndarray:
    """Thresholds (n, n_penalties) for the kernel itself, of which the matrix lacks ``shift`` (width,)."""
    if shift is None:
        return paths.rhos
    found = [paths[p] for p in range(len(paths.lanes))]
    return np.array([path.rhos + path.betas @ shift[path.columns] for path in found])


class _Left:
    """Pairs of classes whose thresholds are not determined: LIBSVM's solutions take the place of those found here."""

    def __init__(
        self, data: Data, function: KernelFunction, source: KernelSource, tolerance: float, shrinking: bool
    ) -> None:
        self._data, self._function, self._source = data, function, source
        self._options = tolerance, shrinking
        self._distant = isinstance(source, RbfSource) and source.double is not None

    def solve(
        self,
        training: TrainingSet,
        problem: tuple[int, int],
        matrix: Kernel,
        rows: np.ndarray,
        paths: Paths,
        p: int,
        penalties: np.ndarray,
        zero: np.ndarray,
    ) -> None:
        """Solve a pair of a training set, number ``p`` of ``paths``, which has this matrix and these rows.

        ``zero``, bool (n_penalties,), has where the threshold is 0 within the tolerance.
        """
        (tolerance, _), data = self._options, self._data
        samples, labels = data.samples, data.samples.labels[training.indices]
        own = np.concatenate([np.flatnonzero(labels == one) for one in problem])
        indices, first = training.indices[own], int(np.count_nonzero(labels == problem[0]))
        weight, of_class = training.sample_weight[own], training.class_weight[list(problem)]
        bounds = weight * np.repeat(of_class, [first, len(own) - first])
        even = bool((bounds == bounds[0]).all())
        open_ = paths.converged[p] & undetermined(paths.gaps[p], even, tolerance)
        even = even and not self._distant  # whose thresholds are as small as values of K
        if even and self._function.name == "rbf" and 2 * first == len(own):
            open_ &= ~middle(penalties * bounds[0], len(own))
        open_ |= paths.converged[p] & zero
        if not open_.any():
            return
        columns = np.searchsorted(rows, samples.row_of[indices])
        # If only rounding can leave a multiplier free, the solver's matrix is exact enough to see whether it does.
        even = even and not zero.any()
        if even:
            values, function, sparse = matrix.rows[np.ix_(columns, columns)], GIVEN, False
        elif self._function.name == "precomputed":
            values, function, sparse = data.x[np.ix_(indices, indices)], GIVEN, False
        else:
            values, function, sparse = data.x[indices], self._function, data.sparse
        pair = Pair(values, first, function, weight, of_class, sparse)
        shift = None if even else self._source.shift(rows[columns])
        every, lanes = np.zeros(len(rows)), paths.lanes[p]
        for c in np.flatnonzero(open_).tolist():
            betas, rho, iterations = pair.solved(penalties[c], *self._options)
            multipliers = np.abs(betas)
            if even and ((multipliers == 0) | (multipliers == multipliers.max())).all():
                continue  # none is free, so it has the middle, as is found here
            every[columns] = betas
            paths.betas[p, c, :lanes] = every[paths.columns[p, :lanes]]
            paths.rhos[p, c] = rho - (0.0 if shift is None else float(shift @ betas))
            paths.iterations[p, c] = max(1, iterations)


GIVEN = KernelFunction.of("precomputed", 0.0, 0, 0.0)
