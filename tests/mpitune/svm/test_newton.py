"""A step of all free multipliers together: that it ends where they are best, bounds included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpitune._jit import LANES, padded
from mpitune._jit.simd import aligned_zeros, compiled
from mpitune.svm.kernel.rbf import kernel_minus_one, prepare
from mpitune.svm.solver import newton, smo
from mpitune.svm.solver.binary import Binary
from tests.mpitune.svm.problems import require_optimal, solve_path

# Functions that only compiled ones call, for Python.
newton_step, set_masks = compiled(newton.newton_step.py_func), compiled(smo.set_masks.py_func)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.numerical,
    pytest.mark.xdist_group("newton"),
]  # one process compiles the step


def problem(n: int, seed: int, width: float, bound: float) -> Binary:
    """K - 1 of n samples, and multipliers between their bounds whose sum is 0, with their gradient."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6))
    size = padded(n)
    matrix = aligned_zeros((size, size))
    matrix[:n, :n] = np.expm1(-width * ((x[:, None] - x) ** 2).sum(axis=2))
    sign = np.zeros(size, np.int8)
    sign[:n] = np.where(np.arange(n) % 2, 1, -1)
    bounds, beta = np.full(size, bound), aligned_zeros((size,), np.float64)
    half = rng.uniform(0.1, 0.9, n // 2) * bound
    beta[: 2 * (n // 2)] = np.stack([-half, half], axis=1).ravel()
    f = aligned_zeros((size,), np.float64)
    f[:] = matrix.astype(np.float64) @ beta - sign
    up, low = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    set_masks(sign, beta, bounds, up, low)
    lanes = np.arange(size)
    blocks = lanes[: size // LANES].astype(np.int32)
    return Binary(matrix, blocks, lanes, sign, bounds, f, beta, up, low)


def objective(own: Binary) -> float:
    return float(own.beta @ own.rows.astype(np.float64) @ own.beta / 2 - own.sign @ own.beta)


@given(st.integers(2, 80), st.integers(0, 2**32 - 1), st.floats(-3, 1), st.floats(-1, 3))
def test_a_step_lowers_the_objective_between_the_bounds(n: int, seed: int, width: float, bound: float) -> None:
    own = problem(n, seed, 10**width, 10**bound)
    before = objective(own)
    assert newton_step(own) > 0
    assert (own.sign * own.beta >= 0).all() and (own.sign * own.beta <= own.bounds).all()
    assert abs(own.beta.sum()) <= 1e-12 * np.abs(own.beta).sum()
    assert objective(own) <= before
    gradient = own.rows.astype(np.float64) @ own.beta - own.sign
    np.testing.assert_allclose(own.f, gradient, atol=1e-9 * 10**bound * n)


def test_noisy_samples_of_few_dimensions_do_not_creep_at_a_large_c() -> None:
    """Pairs alone take 125,000 iterations."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(900, 6))
    y = np.where(x[:, 0] * x[:, 1] + rng.normal(size=900) > 0, 1, -1)
    samples = prepare(x, -y)
    sign = np.zeros(samples.width, np.int8)
    sign[samples.row_of] = y
    matrix, penalties = kernel_minus_one(samples, 0.02), np.array([1.0, 10.0, 100.0, 1000.0])
    path = solve_path(matrix, sign, penalties, 1e-3, 10**7)
    assert path.iterations[2:].sum() < 40_000
    require_optimal(matrix, sign, path, penalties, 1e-3)
