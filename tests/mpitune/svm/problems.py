"""Samples and problems that tests of several files solve."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from common.images import fold_slices
from mpitune.svm.data import Data, TrainingSet
from mpitune.svm.decide.sources import RbfSource
from mpitune.svm.solved import Solved, solve
from mpitune.svm.solver.binary import Path
from mpitune.svm.solver.path import solve_paths


def folds_of(n: int, k: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(np.delete(np.arange(n), part), np.arange(n)[part]) for part in fold_slices(n, k)]


class Point(NamedTuple):
    """One C on one fold."""

    predictions: list[Any]
    n_support: int
    iterations: int
    converged: bool


def points_of(solved: Solved, predictions: np.ndarray) -> list[Point]:
    """For each C, with its predictions (n_penalties, n)."""
    solutions = solved.solutions
    columns = predictions, solutions.n_support, solutions.iterations, solutions.converged
    return [Point(*point) for point in zip(*(column.tolist() for column in columns), strict=True)]


def solve_folds(
    data: Data, source: RbfSource, penalties: list[float], folds: list[tuple[np.ndarray, np.ndarray]], **options: Any
) -> list[list[Point]]:
    """[fold][C], of the validation samples."""
    trainings = [TrainingSet.without_weights(train, len(data.samples.classes)) for train, _ in folds]
    solved = solve(data, source, np.array(penalties), trainings, libsvm=False, **options)
    return [points_of(own, own.labels(part)) for own, (_, part) in zip(solved, folds, strict=True)]


def solve_path(
    matrix: np.ndarray,
    sign: np.ndarray,
    penalties: list[float] | np.ndarray,
    tolerance: float,
    max_iter: int,
    weights: np.ndarray | None = None,
) -> Path:
    """One binary problem, for every C; arguments as of `solve_paths`, ``sign`` and ``weights`` (width,)."""
    own = None if weights is None else weights[None]
    return solve_paths(matrix, sign[None], penalties, tolerance, max_iter, own).of(0)


def random_samples(n: int, n_features: int, k: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Samples and labels from 0 to k - 1, each of which occurs."""
    rng = np.random.default_rng(seed)
    x = rng.normal(3.0, 2.0, size=(n, n_features))
    return x, np.concatenate([np.arange(k), rng.integers(0, k, n - k)])


def require_optimal(matrix: np.ndarray, sign: np.ndarray, path: Path, penalties: np.ndarray, tolerance: float) -> None:
    """Every solution of a path is one: bounds, the sum of the multipliers, LIBSVM's stopping rule.

    Args:
        matrix: K - 1, float32 (width, width).
        sign: (width,), 1, -1, or 0 for no sample.
        path: its solutions.
        penalties: (n_penalties,), their C.
        tolerance: of the stopping rule; rounding is added.
    """
    assert path.converged.all()
    exact, signs = matrix[np.ix_(path.columns, path.columns)].astype(np.float64), sign[path.columns]
    for bound, beta in zip(penalties, path.betas, strict=True):
        assert (signs * beta >= 0).all() and (signs * beta <= bound).all()
        assert abs(beta.sum()) <= 1e-12 * np.abs(beta).sum()
        gradient = exact @ beta - signs
        rises = (signs != 0) & np.where(signs > 0, beta < bound, beta < 0)
        falls = (signs != 0) & np.where(signs > 0, beta > 0, beta > -bound)
        assert gradient[falls].max() - gradient[rises].min() <= tolerance + 1e-9 * max(1.0, bound)


class Sized:
    """As much of `Samples` as a plan looks at, of any size without the memory."""

    def __init__(self, n: int, k: int, n_features: int = 784) -> None:
        self.class_start = np.linspace(0, n, k + 1).astype(int)
        self.classes, self.row_of, self.width = np.arange(k), np.empty(n, np.int8), n
        self.panels = np.broadcast_to(np.float32(0), (n // 16, n_features, 16))


@st.composite
def problems(draw):
    """Samples, labels, weights or None, and parameters of an SVC with a unique solution."""
    n, k = draw(st.integers(8, 60)), draw(st.integers(2, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    y = np.concatenate([np.arange(k), rng.integers(0, k, n - k)])
    x = rng.normal(size=(n, draw(st.integers(1, 6)))) + draw(st.floats(0, 1.5)) * rng.normal(size=(k, 1))[y]
    if draw(st.booleans()):
        x = x.round(1)  # duplicates, some with different labels
    kernel = draw(st.sampled_from(["rbf", "rbf", "linear", "poly"]))
    weights = rng.choice([0.0, 0.3, 1.0, 2.5], n) if draw(st.booleans()) else None
    if weights is not None:
        weights[:k] = 1.0  # no class is without weight
    return x, np.array([f"class {c}" for c in range(k)])[y], weights, {
        "kernel": kernel,
        "C": 10 ** draw(st.floats(-2, 1)),
        "gamma": draw(st.sampled_from(["scale", "auto", 0.05, 0.7])),
        "degree": draw(st.integers(1, 3)),
        "coef0": draw(st.sampled_from([0.0, 1.0])),
        "class_weight": draw(st.sampled_from([None, "balanced", {"class 0": 2.0}])),
        "decision_function_shape": draw(st.sampled_from(["ovo", "ovr"])),
        "tol": 1e-6,
    }  # fmt: skip
