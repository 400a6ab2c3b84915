"""The binary solver against an independent one in double precision."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from mpitune.svm.kernel.rbf import kernel_minus_one, prepare
from mpitune.svm.solver.gathered import MAX_ACTIVE
from mpitune.svm.solver.path import solve_paths
from tests.mpitune.svm.problems import require_optimal, solve_path

TOLERANCE = 1e-3


def objective(kernel, y, beta):
    return 0.5 * beta @ kernel @ beta - y @ beta


def violation(kernel, y, beta, bound):
    """LIBSVM's measure: how far the gradient is from allowing a threshold; not above the tolerance at the end."""
    gradient, alpha = kernel @ beta - y, y * beta
    up = np.where(y > 0, alpha < bound, alpha > 0)
    low = np.where(y > 0, alpha > 0, alpha < bound)
    return gradient[low].max(initial=-np.inf) - gradient[up].min(initial=np.inf)


def best_objective(kernel, y, bound):
    """The dual solved by sequential quadratic programming, from the middle of its box."""
    size = min((y > 0).sum(), (y < 0).sum())
    start = bound / 2 * np.where(y > 0, size / (y > 0).sum(), -size / (y < 0).sum())
    found = minimize(
        lambda b: objective(kernel, y, b) / bound,
        start,
        jac=lambda b: (kernel @ b - y) / bound,
        bounds=[(0, bound) if label > 0 else (-bound, 0) for label in y],
        constraints={"type": "eq", "fun": lambda b: b.sum() / bound, "jac": lambda b: np.ones_like(b) / bound},
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-12},
    )
    return objective(kernel, y, found.x)


def solve(x, y, gamma, penalties, **options):
    """Solutions (n_penalties, n) in the order of x, the path, and the exact kernel."""
    samples, (matrix, sign) = prepare(x, -y), problem(x, y, gamma)
    options = {"tolerance": TOLERANCE, "max_iter": 10**7, **options}
    path = solve_path(matrix, sign, penalties, **options)
    betas = np.zeros((len(penalties), samples.width))
    betas[:, path.columns] = path.betas
    exact = np.exp(-gamma * ((x[:, None] - x[None]) ** 2).sum(-1))
    return betas[:, samples.row_of], path, exact


@st.composite
def problems(draw):
    n = draw(st.integers(2, 24))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    y = np.where(rng.permutation(n) < draw(st.integers(1, n - 1)), 1, -1)
    x = rng.normal(size=(n, draw(st.integers(1, 5)))) + draw(st.floats(0, 2)) * y[:, None]
    if draw(st.booleans()):
        x = x.round()  # duplicates, some with different labels
    gamma = 10 ** draw(st.floats(-3, 1))
    penalties = np.sort(10 ** np.array(draw(st.lists(st.floats(-2, 2), min_size=1, max_size=5))))
    return x, y, gamma, penalties


@given(problems(), st.sampled_from([TOLERANCE, 1e-5]))
def test_solutions_are_optimal(problem, tolerance):
    x, y, gamma, penalties = problem
    betas, path, kernel = solve(x, y, gamma, penalties, tolerance=tolerance)
    assert path.converged.all()
    for bound, beta in zip(penalties, betas, strict=True):
        assert (y * beta >= 0).all() and (y * beta <= bound).all()
        assert abs(beta.sum()) <= 1e-12 * np.abs(beta).sum()
        rounding = 1e-6 * max(1, gamma)  # of the kernel: squared distances are float32
        assert violation(kernel, y, beta, bound) <= tolerance + rounding * np.abs(beta).sum()
        best = best_objective(kernel, y, bound)
        # The optimality conditions bound the loss by tolerance * |beta - best|_1 / 2.
        allowed = 1e-4 * abs(best) if tolerance < TOLERANCE else tolerance * np.abs(beta).sum()
        assert objective(kernel, y, beta) <= best + allowed + 1e-12


def separable(n, seed=0):
    rng = np.random.default_rng(seed)
    y = np.where(np.arange(n) % 2, 1, -1)
    return rng.normal(size=(n, 8)) + 0.4 * y[:, None], y


def problem(x, y, gamma):
    """K - 1 and the sign of each of its columns."""
    samples = prepare(x, -y)  # the positive class first
    sign = np.zeros(samples.width, np.int8)
    sign[samples.row_of] = y
    return kernel_minus_one(samples, gamma), sign


@pytest.mark.parametrize("gamma", [1e-4, 1e-2, 1.0])
def test_long_paths_with_gathered_problems_stay_optimal(gamma):
    matrix, sign = problem(*separable(400), gamma)
    penalties = np.geomspace(1e-3, 1e4, 12)
    require_optimal(matrix, sign, solve_path(matrix, sign, penalties, TOLERANCE, 10**7), penalties, TOLERANCE)


def test_noisy_samples_of_few_dimensions_do_not_creep_at_a_large_c() -> None:
    """Pairs alone take 125,000 iterations, and 16,000 where each C begins at zero."""
    x = (rng := np.random.default_rng(0)).normal(size=(900, 6))
    y = np.where(x[:, 0] * x[:, 1] + rng.normal(size=900) > 0, 1, -1)
    matrix, sign = problem(x, y, 0.02)
    for penalties in (np.logspace(-12, 4, 17), np.logspace(0, 3, 4)):  # f at 1e-12, scaled to 1e4, would be rounding
        path = solve_path(matrix, sign, penalties, 1e-3, 10**7)
        require_optimal(matrix, sign, path, penalties, 1e-3)
    assert path.iterations[2:].sum() < 10_000


@pytest.mark.slow
def test_paths_of_more_active_samples_than_are_gathered_stay_optimal():
    (matrix, sign), penalties = problem(*separable(MAX_ACTIVE + 1000, seed=1), 0.01), np.array([1e3])
    path = solve_path(matrix, sign, penalties, TOLERANCE, 10**7)
    assert path.iterations.max() > 4 * MAX_ACTIVE
    require_optimal(matrix, sign, path, penalties, TOLERANCE)


def test_a_solution_without_bounded_vectors_serves_every_larger_penalty():
    x, y = separable(60)
    betas, path, _ = solve(x, y, 1.0, [0.1, 100.0, 1e3, 1e9])
    assert path.iterations[1] > 0 and not path.iterations[2:].any()
    assert np.array_equal(betas[1], betas[2]) and np.array_equal(betas[1], betas[3])


def test_what_reaches_the_cap_of_iterations_is_reported():
    x, y = separable(200)
    betas, path, _ = solve(x, y, 0.01, [10.0, 1000.0], max_iter=7)
    assert path.iterations.tolist() == [7, 7]
    assert not path.converged.any()
    assert abs(betas.sum(axis=1)).max() < 1e-9


# At gamma = 1 steps of all multipliers pay. Four problems share a vector of the matrix; what is left over has its own.
@pytest.mark.parametrize(("gamma", "folds"), [(0.05, 3), (1.0, 5), (1.0, 6), (1.0, 40)])
def test_several_problems_of_one_matrix_give_the_bits_of_each_alone(gamma, folds):
    x, y = separable(150, seed=5)
    samples = prepare(x, -y, np.arange(150) % folds)
    signs = np.zeros((folds, samples.width), np.int8)
    weights = np.random.default_rng(0).uniform(0.5, 2, signs.shape)
    for number, sign in enumerate(signs):
        kept = np.arange(150) % folds != number
        sign[samples.row_of[kept]] = y[kept]
    signs[1, :16] = 0  # fewer lanes than the others

    matrix = kernel_minus_one(samples, gamma)
    penalties, counts = [0.01, 1.0, 100.0], np.resize([3, 2, 3], folds)
    together = solve_paths(matrix, signs, penalties, TOLERANCE, 10**7, weights, counts)
    for number, count in enumerate(counts):
        own = solve_path(matrix, signs[number], penalties[:count], TOLERANCE, 10**7, weights[number])
        path = together.of(number)
        assert own.converged.all() and np.array_equal(path.columns, own.columns)
        for name in ("betas", "rhos", "iterations", "converged"):
            found = getattr(path, name)
            assert np.array_equal(found[:count], getattr(own, name)), name
            assert not found[count:].any(), name
