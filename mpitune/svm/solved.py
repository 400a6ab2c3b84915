"""Training sets solved for all C with any kernel, and what was found: the one way to the solver.

    data = Data(x, y, "rbf")
    source = data.source(KernelFunction.of("rbf", gamma, 0, 0.0), len(penalties), len(trainings))
    for solved in solve(data, source, penalties, trainings):   # one for each training set
        labels = solved.labels(indices)                        # (n_penalties, len(indices))

`fit_grid` and `SVC.fit` come this way, and `mnist_svm` with sources of `matrices.plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from mpitune.svm.data import Data, TrainingSet, parts_of
from mpitune.svm.decide.multiclass import Solutions, binary_problems, choose_classes, in_doubt, keep
from mpitune.svm.decide.sources import KernelSource, RbfSource
from mpitune.svm.solver.path import solve_paths

if TYPE_CHECKING:
    from mpitune.svm.share import LibsvmShare

TOLERANCE = 1e-3  # of the optimality conditions: LIBSVM's and scikit-learn's default
# A solution for a problem at a penalty, both by number: rows of the samples, y * alpha, threshold, iterations.
Replacement = tuple[int, int, np.ndarray, np.ndarray, float, int]
LIMIT = 10_000_000  # iterations, or 100 per sample if that is more: LIBSVM's, which scikit-learn has left out


@dataclass
class Solved:
    """One training set, for all C.

    Attributes:
        classes: indices of the classes that occur in it.
        penalties: float64 (n_penalties,).
        left: bool (n_penalties,), whether the fit is left to LIBSVM as a whole; see `libsvm`.
        share: LIBSVM's, or None if the solver's own answers are taken.
        scored: what is known of the samples that `solve` was told of.
        exact: LIBSVM's thresholds, where its own solution is there, by problem and number of the penalty.
    """

    solutions: Solutions
    source: KernelSource
    training: TrainingSet
    classes: np.ndarray
    penalties: np.ndarray
    left: np.ndarray
    share: LibsvmShare | None
    exact: dict[tuple[tuple[int, int], int], float] = field(default_factory=dict)
    scored: KnownPart | None = None

    @cached_property
    def gaps(self) -> np.ndarray:
        """`Solutions.gaps` of `problems`, float64 (n_problems, n_penalties)."""
        return np.array([self.solutions.gaps[m] for m in self.numbers])

    def complete(self, c: int, *, every: bool = False) -> None:
        """Have LIBSVM's solutions at penalty number c, of ``every`` pair or where its threshold is not determined."""
        if self.share is not None:
            self.replace(self.share.complete(self, c, every=every))

    def replace(self, others: list[Replacement]) -> None:
        """Have other solutions."""
        for q, c, rows, betas, rho, iterations in others:
            self.solutions.replace(self.numbers[q], c, rows, betas, rho, iterations)

    @cached_property
    def problems(self) -> list[tuple[int, int]]:
        """Binary problems of the training set's classes, as numbers in ``classes``, in the order of decision values."""
        return binary_problems(len(self.classes), "ovr" if self.solutions.problems[0][1] < 0 else "ovo")

    @cached_property
    def numbers(self) -> list[int]:
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

    @property
    def places(self) -> np.ndarray:
        """Which of `values` is that of a problem at a penalty, int64 (n_problems, n_penalties)."""
        start = np.cumsum([0, *map(len, self.solutions.rhos)])
        places: np.ndarray = start[:-1, None] + np.array(self.solutions.solution_of)
        return places[self.numbers]

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
        numbers = self.numbers
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
            intercepts[p] = -self.exact.get((solutions.problems[m], c), solutions.rhos[m][which])
            steps[p] = solutions.steps[m][c]
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
    """Samples, by their indices, that the models of a solved training set are asked about.

    Attributes:
        solved: the training set.
        settled: whether labels that LIBSVM's own tolerance may decide are LIBSVM's.
        unsure: by number of the penalty, the samples whose label depends on how decision values are rounded, by their
            places in ``indices``.
    """

    def __init__(self, solved: Solved, indices: np.ndarray) -> None:
        self.solved, self._indices = solved, indices
        self.settled = False
        self.unsure: dict[int, np.ndarray] = {}

    @cached_property
    def _order(self) -> np.ndarray:
        """The samples by their rows: neighbours are read together."""
        return np.argsort(self.solved.solutions.samples.row_of[self._indices])

    @cached_property
    def _values(self) -> np.ndarray:
        """Decision values of the samples in that order."""
        return self.solved.values(self._indices[self._order])

    @cached_property
    def _places(self) -> np.ndarray:
        """As `Solved.places`; what has replaced a solution has its values at the end."""
        return self.solved.places

    def doubtful(self, limits: np.ndarray) -> dict[tuple[int, int], np.ndarray]:
        """Samples in the order of `_values` whose label a value near 0 may decide, by problem and penalty.

        ``limits``, float64 (n_problems, n_penalties): up to where it is near 0.
        """
        solved = self.solved
        problems, k = np.array(solved.problems), len(solved.classes)
        found = in_doubt(self._values, self._places, limits, solved.left, problems, k)
        return {(q, c): np.flatnonzero(found[q, c]) for q, c in np.argwhere(found.any(axis=2)).tolist()}

    def renew(self, others: list[Replacement], *, afresh: bool) -> None:
        """Know of solutions that have replaced others. Decision values stay, for `sharpen`, if not made ``afresh``."""
        if not others:
            return
        values = self._values[[self._places[q, c] for q, c, *_ in others]]
        if afresh:
            values = self._computed([(rows, betas, rho) for _, _, rows, betas, rho, _ in others], self.solved.source)
        for n, (q, c, *_) in enumerate(others, start=len(self._values)):
            self._places[q, c] = n
        self._values = np.vstack([self._values, values])

    def _computed(
        self, solutions: Iterable[tuple[np.ndarray, np.ndarray, float]], source: KernelSource, some: Any = slice(None)
    ) -> np.ndarray:
        """Decision values of some samples, float64 (any, n), by rows, multipliers and thresholds of solutions."""
        new = Solutions(self.solved.solutions.samples, 1)
        for solution in solutions:
            new.add(*solution)
        rows = new.samples.row_of[self._indices[self._order[some]]]
        values = np.empty((len(new.rows), len(rows)))
        for part, own in source.decisions(new, rows):
            values[:, part] = own.T
        return values

    def sharpen(self, doubts: dict[tuple[int, int], np.ndarray], source: KernelSource, rounding: float) -> None:
        """Have values of doubtful samples, as `doubtful` has them, from a ``source`` in double.

        Note as ``unsure`` those whose value is 0 but for ``rounding``, in relation to the sum of the multipliers; with
        the RBF kernel, whose values are all positive, of each multiplier times its value of the kernel.
        """
        solutions, own = self.solved.solutions, []
        for q, c in doubts:
            m = self.solved.numbers[q]
            which = solutions.solution_of[m][c]
            own.append((solutions.rows[m], solutions.weights[m][:, which], solutions.rhos[m][which]))
        some = np.unique(np.concatenate(list(doubts.values())))
        values = self._computed([*own, *((rows, np.abs(betas), -abs(rho)) for rows, betas, rho in own)], source, some)
        unsure: dict[int, list[np.ndarray]] = {}
        for n, (q, c) in enumerate(doubts):
            self._values[self._places[q, c], some] = values[n]
            size = values[len(doubts) + n] if source.function.name == "rbf" else np.abs(own[n][1]).sum()
            unsure.setdefault(c, []).append(some[np.abs(values[n]) <= rounding * size])
        self.unsure = {c: self._order[np.unique(each)] for c, own in unsure.items() if len(each := np.concatenate(own))}

    def labels(self, c: int) -> np.ndarray:
        """Indices int64 (n,) in the training set's classes, predicted at penalty c."""
        solved, labels = self.solved, np.empty(len(self._indices), np.int64)
        if solved.share is not None and not self.settled:
            solved.share.settle([self])
        columns = self._places[:, [c]]
        labels[self._order] = choose_classes(self._values.T, columns, solved.problems, len(solved.classes))[0]
        return labels


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
    scored: Sequence[np.ndarray] = (),
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
        scored: for each training set the samples whose labels will be asked for, by their indices: `Solved.scored`.
            With ``libsvm``, labels that LIBSVM's own tolerance may decide are LIBSVM's, too.
        report: called after each binary problem with how many are solved, for all C and training sets, and of how many.

    Returns:
        What was solved, for each training set.
    """
    samples = data.samples
    limit = max(LIMIT, 100 * len(samples.row_of)) if max_iter == -1 else max_iter
    if libsvm:
        from mpitune.svm.share import LibsvmShare  # scikit-learn takes a second to import, and `mnist_svm` lacks it
    share = LibsvmShare(data, source, tolerance, shrinking) if libsvm else None
    result = [
        Solved(
            Solutions(samples, len(penalties)), source, training, np.unique(samples.labels[training.indices]),
            penalties, left, share,
        )
        for training, left in zip(trainings, np.zeros((len(trainings), len(penalties)), np.bool_), strict=True)
    ]  # fmt: skip
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
                share.leave(paths, solved)
            keep([own.solutions for own in solved], problem, paths, rows, source.shift(rows))
        report(done, total)
    for own, indices in zip(result, scored, strict=bool(scored)):
        own.scored = KnownPart(own, indices)
    if share is not None:
        share.settle([own.scored for own in result if own.scored is not None])
    return result
