"""Training sets solved for all C with any kernel, and what was found: the one way to the solver.

    data = Data(x, y, "rbf")
    source = data.source(KernelFunction.of("rbf", gamma, 0, 0.0), len(penalties), len(trainings))
    for solved in solve(data, source, penalties, trainings):   # one for each training set
        labels = solved.labels(indices)                        # (n_penalties, len(indices))

`fit_grid` and `SVC.fit` come this way, and `mnist_svm` with sources of `matrices.plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from mpitune.svm.data import Data, Matrix, TrainingSet, parts_of
from mpitune.svm.decide.multiclass import Solutions, binary_problems, choose_classes, keep
from mpitune.svm.decide.sources import KernelSource, RbfSource
from mpitune.svm.solver.binary import Paths
from mpitune.svm.solver.path import solve_paths

if TYPE_CHECKING:
    from mpitune.svm.libsvm import Pair

TOLERANCE = 1e-3  # of the optimality conditions: LIBSVM's and scikit-learn's default
LIMIT = 10_000_000  # iterations, or 100 per sample if that is more: LIBSVM's, which scikit-learn has left out


@dataclass
class Solved:
    """One training set, for all C.

    Attributes:
        classes: indices of the classes that occur in it.
        left: bool (n_penalties,), whether the fit is left to LIBSVM as a whole; see `libsvm`.
    """

    solutions: Solutions
    source: KernelSource
    training: TrainingSet
    classes: np.ndarray
    left: np.ndarray

    @cached_property
    def problems(self) -> list[tuple[int, int]]:
        """Binary problems of the training set's classes, as numbers in ``classes``, in the order of decision values."""
        return binary_problems(len(self.classes), "ovr" if self.solutions.problems[0][1] < 0 else "ovo")

    def _problem_numbers(self) -> list[int]:
        """Where the solutions of each problem are."""
        number = {problem: m for m, problem in enumerate(self.solutions.problems)}
        names = [*self.classes.tolist(), -1]  # -1, all others, stays -1
        return [number[names[a], names[b]] for a, b in self.problems]

    def values(self, indices: np.ndarray) -> np.ndarray:
        """Decision values of samples, of all solutions, float64 (any, n)."""
        solutions = self.solutions
        rows, values = solutions.samples.row_of[indices], np.empty((sum(map(len, solutions.rhos)), len(indices)))
        for part, some in self.source.decisions(solutions, rows):
            values[:, part] = some.T
        return values

    @cached_property
    def places(self) -> np.ndarray:
        """Which of `values` is that of a problem at a penalty, int64 (n_problems, n_penalties)."""
        start = np.cumsum([0, *map(len, self.solutions.rhos)])
        places: np.ndarray = start[:-1, None] + np.array(self.solutions.solution_of)
        return places[self._problem_numbers()]

    def choose(self, values: np.ndarray) -> np.ndarray:
        """Numbers in ``classes``, int64 (n_penalties, n), from decision values (n, any) of all solutions."""
        return choose_classes(values, self.places, self.problems, len(self.classes))

    def _positions(self) -> np.ndarray:
        """Where in the training set the sample of a row is, int64 (width,); -1 where it is not there."""
        positions = np.full(self.solutions.samples.width, -1)
        positions[self.solutions.samples.row_of[self.training.indices]] = np.arange(len(self.training.indices))
        return positions

    def labels(self, indices: np.ndarray) -> np.ndarray:
        """Labels (n_penalties, n) predicted for samples, which are among those of the data."""
        rows = self.solutions.samples.row_of[indices]
        order = np.argsort(rows)  # neighbours in the matrix are read together
        return self._labels(order, self.source.decisions(self.solutions, rows[order]))

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Labels (n_penalties, n) predicted for any samples (n, n_features), with the RBF kernel."""
        assert isinstance(self.source, RbfSource)
        return self._labels(np.arange(len(x)), self.source.decisions_of_others(self.solutions, x))

    def _labels(self, order: np.ndarray, decisions: Iterable[tuple[slice, np.ndarray]]) -> np.ndarray:
        """Labels from decision values by part, of samples in another ``order``."""
        chosen = np.empty((self.solutions.n_penalties, len(order)), np.int64)
        for part, values in decisions:
            chosen[:, order[part]] = self.choose(values)
        return self.solutions.samples.classes[self.classes[chosen]]

    def attributes(self, c: int) -> dict[str, np.ndarray]:
        """Arrays of penalty number c, one-vs-one, by scikit-learn's names, with its shapes and LIBSVM's signs.

        ``support_`` has indices in the training set.
        """
        solutions, samples, k = self.solutions, self.solutions.samples, len(self.classes)
        numbers = self._problem_numbers()
        position = self._positions()
        labels = np.searchsorted(self.classes, samples.labels[self.training.indices])
        coefficients = np.zeros((k - 1, len(self.training.indices)))
        intercepts, steps = np.empty(k * (k - 1) // 2), np.zeros(k * (k - 1) // 2, np.int32)
        for p, (m, (a, b)) in enumerate(zip(numbers, self.problems, strict=True)):
            which = solutions.solution_of[m][c]
            here, weights = position[solutions.rows[m]], solutions.weights[m][:, which]
            positive = labels[here] == a
            coefficients[b - 1, here[positive]] = weights[positive]
            coefficients[a, here[~positive]] = weights[~positive]
            intercepts[p], steps[p] = -solutions.rhos[m][which], solutions.steps[m][c]
        support = np.flatnonzero(coefficients.any(axis=0))
        support = support[np.argsort(labels[support], kind="stable")]
        return {
            "support_": support.astype(np.int32),
            "_n_support": np.bincount(labels[support], minlength=k).astype(np.int32),
            "dual_coef_": np.ascontiguousarray(coefficients[:, support]),
            "intercept_": intercepts,
            "_num_iter": steps,
            "_probA": np.empty(0),
            "_probB": np.empty(0),
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
        ordered = self._solved.choose(self._values.T)
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


def solve(
    data: Data,
    source: KernelSource,
    penalties: np.ndarray,
    trainings: Sequence[TrainingSet],
    tolerance: float = TOLERANCE,
    max_iter: int = -1,
    *,
    libsvm: bool = True,
    shrinking: bool = True,
    give_up: bool = False,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> list[Solved]:
    """Solve each training set for ascending ``penalties``.

    The points of one training set depend on which C are asked for together, within the tolerance; nothing else affects
    them.

    Args:
        data: samples and labels.
        source: the kernel.
        penalties: float64 (n_penalties,), ascending, above 0.
        trainings: the training sets.
        tolerance: by which a solution may violate the optimality conditions.
        max_iter: iterations per binary problem and C, -1 for LIBSVM's own limit.
        libsvm: have LIBSVM's answers where there is more than one; see `libsvm`. If not, the solver's own are taken.
        shrinking: LIBSVM's option, for what is left to it.
        give_up: once a binary problem has reached the limit, leave out what remains of that C and of larger ones, as
            not converged; a training set then takes one such problem's time at most.
        report: called after each binary problem with how many are solved, for all C and training sets, and of how many.

    Returns:
        What was solved, for each training set.
    """
    samples = data.samples
    limit = max(LIMIT, 100 * len(samples.row_of)) if max_iter == -1 else max_iter
    result = [
        Solved(Solutions(samples, len(penalties)), source, training, np.unique(samples.labels[training.indices]), left)
        for training, left in zip(trainings, np.zeros((len(trainings), len(penalties)), np.bool_), strict=True)
    ]
    share = _LibsvmShare(data, source, tolerance, shrinking) if libsvm else None
    counts = np.full(len(trainings), len(penalties))  # penalties that are still to be solved

    total = len(binary_problems(len(samples.classes), data.multiclass))
    parts = parts_of(samples, trainings, data.multiclass)
    for done, (work, part) in enumerate(zip(data.matrices(source), parts, strict=True), start=1):
        (problem, matrix, rows), (numbers, signs, weights) = work, part
        if numbers:
            solved = [result[n] for n in numbers]
            paths = solve_paths(matrix, signs, penalties, tolerance, limit, weights, counts[numbers], give_up=give_up)
            if give_up:
                counts[numbers] = np.logical_and.accumulate(paths.converged, axis=1).sum(axis=1)
            if share is not None:
                share.take(work, paths, penalties, solved)
            keep([own.solutions for own in solved], problem, paths, rows, source.shift(rows))
        report(done, total)
    return result


def thresholds(paths: Paths, shift: np.ndarray | None) -> np.ndarray:
    """Thresholds (n, n_penalties) for the kernel itself, of which the matrix lacks ``shift`` (width,)."""
    if shift is None:
        return paths.rhos
    each = map(paths.of, range(len(paths.lanes)))
    return np.array([path.rhos + path.betas @ shift[path.columns] for path in each])


class _LibsvmShare:
    """Pairs of classes whose thresholds are not determined: LIBSVM's solutions take the place of those found here."""

    def __init__(self, data: Data, source: KernelSource, tolerance: float, shrinking: bool) -> None:
        from mpitune.svm import libsvm  # and scikit-learn, which takes a second to import, and which `mnist_svm` lacks

        self._rules = libsvm
        self._data, self._source, self._function = data, source, source.function
        self._options = tolerance, shrinking
        self._largest = libsvm.scale(data.x, source.function)

    def take(self, work: Matrix, paths: Paths, penalties: np.ndarray, solved: Sequence[Solved]) -> None:
        """Replace paths of a pair, one for each training set of ``solved``, or leave whole fits to LIBSVM."""
        tolerance, (problem, _, rows) = self._options[0], work
        # Where samples have little to do with any support vector, the threshold decides their labels.
        zero = np.abs(thresholds(paths, self._source.shift(rows))) <= tolerance
        open_ = paths.converged & (zero | (paths.gaps > tolerance))
        for own, rough in zip(solved, paths.converged & self._rules.coarse(paths, self._largest), strict=True):
            own.left |= rough
        if open_.any():
            pair = self._pair(problem)
            for p in np.flatnonzero(open_.any(axis=1)).tolist():
                self._replace(pair, solved[p].training, work, paths, p, penalties, open_[p] & ~solved[p].left)

    def _pair(self, problem: tuple[int, int]) -> Pair:
        members = np.flatnonzero(np.isin(self._data.samples.labels, problem))
        products = self._data.products(members, problem) if self._rules.is_faithful() else None
        return self._rules.Pair(self._data.x, members, self._function, products)

    def _replace(
        self, pair: Pair, training: TrainingSet, work: Matrix, paths: Paths, p: int, penalties: np.ndarray,
        open_: np.ndarray,
    ) -> None:  # fmt: skip
        """Solve a pair of a training set, number ``p`` of ``paths``, again where it is ``open_``."""
        (problem, _, rows), samples = work, self._data.samples
        labels = samples.labels[training.indices]
        own = np.concatenate([np.flatnonzero(labels == label) for label in problem])
        indices, first = training.indices[own], int(np.count_nonzero(labels == problem[0]))
        columns = np.searchsorted(rows, samples.row_of[indices])
        shift = self._source.shift(rows[columns])
        every, lanes = np.zeros(len(rows)), paths.lanes[p]
        for c in np.flatnonzero(open_).tolist():
            bounds = training.sample_weight[own] * (penalties[c] * training.class_weight[labels[own]])
            betas, rho, iterations = pair.solved(indices, first, bounds, *self._options)
            every[columns] = betas
            paths.betas[p, c, :lanes] = every[paths.columns[p, :lanes]]
            paths.rhos[p, c] = rho - (0.0 if shift is None else float(shift @ betas))
            paths.iterations[p, c] = max(1, iterations)
