"""All C of one gamma, for one fold or several at once; and a single fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from mpitune._jit.simd import aligned_zeros
from mpitune.svm.decide.multiclass import Solutions, binary_problems, keep
from mpitune.svm.decide.sources import KernelSource, RbfSource, decisions, kernel_between, product
from mpitune.svm.kernel.rbf import Samples, kernel_minus_one, prepare, training_mask
from mpitune.svm.kernel.rows import Rows
from mpitune.svm.memory.matrix_plan import MatrixPlan, choose_plan
from mpitune.svm.solver.path import Kernel, Paths, Whole, solve_paths

TOLERANCE = 1e-3  # of the optimality conditions: LIBSVM's and scikit-learn's default
MAX_ITER = 100_000_000  # iterations per binary problem and C

Fold = tuple[np.ndarray, np.ndarray]  # indices of training and of validation samples


@dataclass(frozen=True)
class PointResult:
    """One C on one fold.

    Attributes:
        predictions: (n_validation,), labels as given to `prepare`.
        n_support: distinct support vectors.
        iterations: over all binary problems, none where the solution for a smaller C is still the best.
        converged: False if some binary problem reached the cap of iterations instead of the tolerance.
    """

    predictions: np.ndarray
    n_support: int
    iterations: int
    converged: bool


def solve_gamma(
    samples: Samples,
    gamma: float,
    *,
    penalties: Sequence[float],
    folds: Sequence[Fold],
    plan: MatrixPlan,
    distances: np.ndarray | None = None,
    kernel: np.ndarray | None = None,
    tolerance: float = TOLERANCE,
    max_iter: int = MAX_ITER,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> list[list[PointResult]]:
    """Solve all C of one gamma on each fold.

    Points of one fold depend on which C are asked for together, within the tolerance; nothing else affects them.
    At a C so small that all decision values of one-vs-rest differ by less than the tolerance, predictions are those
    of one of many solutions that satisfy it, here as in LIBSVM; a smaller tolerance determines them.

    Args:
        samples: all samples, of training and validation parts.
        gamma: above 0.
        penalties: every C, above 0, in any order.
        folds: the parts of each fold.
        plan: which matrices are kept, and whether classes are separated one-vs-one or one-vs-rest.
        distances: float32 (width, width), squared distances of all samples, if the plan keeps them. Only read; may lie
            in shared memory.
        kernel: float32 (width, width), K - 1 of all samples for this gamma, if the plan keeps it ("whole"); made here
            if not given. Only read; may lie in shared memory.
        tolerance: by which a solution may violate the optimality conditions.
        max_iter: iterations per binary problem and C, after which it counts as not converged.
        told: hears how many binary problems are solved, for all C and folds, and of how many.

    Returns:
        [fold][C], in the order given.

    Raises:
        ValueError: a class is missing from the training part of a fold, or C or gamma is not above 0.
    """
    order = np.argsort(penalties, kind="stable")
    back = np.argsort(order)
    ascending, trainings = np.asarray(penalties, np.float64)[order], [train for train, _ in folds]
    solutions = solve(
        samples,
        gamma,
        ascending,
        trainings,
        plan,
        distances=distances,
        kernel=kernel,
        tolerance=tolerance,
        max_iter=max_iter,
        told=told,
    )
    source, result = RbfSource(samples, gamma, distances, kernel), []
    for (_, validation), solved in zip(folds, solutions, strict=True):
        points = point_results(solved, _labels(solved, source, samples.row_of[validation]))
        result.append([points[c] for c in back])
    return result


def point_results(solved: Solutions, class_indices: np.ndarray) -> list[PointResult]:
    """Results of each C, from the class indices (n_penalties, n_validation) that its solution predicts."""
    predictions = solved.samples.classes[class_indices]
    figures = (solved.n_support.tolist(), solved.iterations.tolist(), solved.converged.tolist())
    return [PointResult(*point) for point in zip(predictions, *figures, strict=True)]


def solve(
    samples: Samples,
    gamma: float,
    penalties: np.ndarray,
    trainings: Sequence[np.ndarray],
    plan: MatrixPlan,
    *,
    distances: np.ndarray | None,
    kernel: np.ndarray | None,
    tolerance: float,
    max_iter: int,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> list[Solutions]:
    """The binary problems of each training set, int64 indices of samples, for ascending ``penalties``.

    The other arguments are those of `solve_gamma`.

    Raises:
        ValueError: a class is missing from a training set, or C or gamma is not above 0.
    """
    if not (gamma > 0 and penalties.min() > 0):
        raise ValueError(f"gamma is {gamma} and the smallest C {penalties.min()}: both must be above 0")
    masks = np.array([training_mask(samples, training, number) for number, training in enumerate(trainings)])
    source = RbfSource(samples, gamma, distances, squares=plan.squares)
    if plan.kernel == "pairs":
        problems = pairs(samples, source)
    elif plan.kernel == "rows":
        problems = _one_vs_rest(samples, Rows(samples, gamma, plan.capacity))
    else:
        matrix = kernel_minus_one(samples, gamma, distances=distances) if kernel is None else kernel
        problems = _one_vs_rest(samples, Whole(matrix))
    solutions = [Solutions(samples, len(penalties)) for _ in trainings]

    def walked(problem: BinaryProblem) -> tuple[BinaryProblem, Paths]:
        _, matrix, rows, sign = problem
        return problem, solve_paths(matrix, sign * masks.take(rows, axis=1), penalties, tolerance, max_iter, pair=pair)

    pair = plan.kernel == "pairs"
    n_problems = len(binary_problems(len(samples.classes), "ovo" if pair else "ovr"))
    with ThreadPoolExecutor(plan.threads) as pool:
        # Without threads one problem after the other: they may have their memory in common.
        walks = (pool.map if plan.threads > 1 else map)(walked, problems)
        for number, ((classes, _, rows, _), paths) in enumerate(walks, start=1):
            keep(solutions, classes, paths, rows)
            told(number, n_problems)
    return solutions


BinaryProblem = tuple[tuple[int, int], Kernel, np.ndarray, np.ndarray]  # classes, kernel, row of each column, sign


def pairs(samples: Samples, source: KernelSource) -> Iterator[BinaryProblem]:
    """One-vs-one: the matrix of two classes at a time, all in the same memory; of two classes that of all samples."""
    size, every = np.diff(samples.class_start), np.arange(samples.width)
    whole = source.kernel if len(size) == 2 and isinstance(source, RbfSource) else None
    buffer = aligned_zeros((int(np.sort(size)[-2:].sum()) ** 2,)) if whole is None else whole.reshape(-1)
    for a, b in binary_problems(len(samples.classes), "ovo"):
        width = int(size[a] + size[b])
        matrix = buffer[: width * width].reshape(width, width)
        one, other = (slice(int(samples.class_start[c]), int(samples.class_start[c + 1])) for c in (a, b))
        if whole is None:
            source.fill(matrix, one, other)
        sign = np.ones(width, np.int8)
        sign[size[a] :] = -1
        yield (a, b), Whole(matrix), np.concatenate([every[one], every[other]]), sign


def _one_vs_rest(samples: Samples, source: Kernel) -> Iterator[BinaryProblem]:
    rows = np.arange(samples.width)
    for c, _ in binary_problems(len(samples.classes), "ovr"):
        sign = np.full(samples.width, -1, np.int8)
        sign[samples.class_start[c] : samples.class_start[c + 1]] = 1
        yield (c, -1), source, rows, sign


def _labels(solved: Solutions, source: RbfSource, rows: np.ndarray) -> np.ndarray:
    """Class indices (n_penalties, len(rows)) predicted for samples of the matrix."""
    order = np.argsort(rows)  # neighbours in the matrix are read together
    result = np.empty((solved.n_penalties, len(rows)), np.int64)
    for part, values in source.decisions(solved, rows[order]):
        result[:, order[part]] = solved.labels(values)
    return result


@dataclass(frozen=True)
class Classifier:
    """A classifier of one C and gamma; see `fit`. n_support, iterations, converged as in `PointResult`."""

    solved: Solutions
    gamma: float

    @property
    def n_support(self) -> int:
        return int(self.solved.n_support[0])

    @property
    def iterations(self) -> int:
        return int(self.solved.iterations[0])

    @property
    def converged(self) -> bool:
        return bool(self.solved.converged[0])

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Labels (n,) of samples (n, n_features)."""
        samples = self.solved.samples

        def product_of(part: slice) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
            x_part = samples.others(x[part])
            return lambda support, weights: (
                product(kernel_between(*x_part, *samples.some(support), self.gamma), weights).T
            )

        labels = np.empty(len(x), np.int64)
        for part, values in decisions(self.solved, len(x), product_of):
            labels[part] = self.solved.labels(values)[0]
        return samples.classes[labels]


def fit(
    x: np.ndarray,
    y: np.ndarray,
    *,
    C: float,
    gamma: float,
    multiclass: str = "ovo",
    memory: int = 8 << 30,
    tolerance: float = TOLERANCE,
    max_iter: int = MAX_ITER,
) -> Classifier:
    """Fit one support vector classifier.

    Args:
        x: (n, n_features), any numeric type.
        y: (n,), labels.
        C: penalty, above 0.
        gamma: of the kernel, above 0.
        multiclass: "ovo" (one-vs-one) or "ovr" (one-vs-rest).
        memory: bytes that may be used.
        tolerance: by which a solution may violate the optimality conditions.
        max_iter: iterations per binary problem.

    Raises:
        ValueError: the input cannot be used.
        MemoryError: the least that is needed does not fit.
    """
    samples = prepare(x, y)
    plan = choose_plan(samples, multiclass, n_points=1, memory=memory)
    return fit_samples(samples, C=C, gamma=gamma, plan=plan, tolerance=tolerance, max_iter=max_iter)


def fit_samples(
    samples: Samples,
    *,
    C: float,
    gamma: float,
    plan: MatrixPlan,
    distances: np.ndarray | None = None,
    kernel: np.ndarray | None = None,
    tolerance: float = TOLERANCE,
    max_iter: int = MAX_ITER,
) -> Classifier:
    """Fit one classifier to all samples. All arguments are as for `solve_gamma`.

    Args:
        samples: all are used.
        C: penalty, above 0.
        gamma: above 0.
        plan: which matrices are kept.
        distances: float32 (width, width), or None.
        kernel: float32 (width, width), or None.
        tolerance: by which a solution may violate the optimality conditions.
        max_iter: iterations per binary problem.
    """
    everything = [np.arange(len(samples.row_of))]
    penalties = np.array([C], np.float64)
    (solved,) = solve(
        samples,
        gamma,
        penalties,
        everything,
        plan,
        distances=distances,
        kernel=kernel,
        tolerance=tolerance,
        max_iter=max_iter,
    )
    return Classifier(solved, gamma)
