"""A step of all free multipliers together: that it ends where they are best, bounds included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jit import padded
from jit.simd import aligned_zeros
from kernel_svm.newton import newton_step
from kernel_svm.smo import set_masks

pytestmark = pytest.mark.numerical


def problem(n: int, seed: int, width: float, bound: float) -> tuple[np.ndarray, ...]:
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
    return matrix, sign, f, beta, up, low, bounds


def objective(matrix: np.ndarray, sign: np.ndarray, beta: np.ndarray) -> float:
    return float(beta @ matrix.astype(np.float64) @ beta / 2 - sign @ beta)


@given(st.integers(2, 80), st.integers(0, 2**32 - 1), st.floats(-3, 1), st.floats(-1, 3))
def test_a_step_lowers_the_objective_between_the_bounds(n: int, seed: int, width: float, bound: float) -> None:
    matrix, sign, f, beta, up, low, bounds = problem(n, seed, 10**width, 10**bound)
    before = objective(matrix, sign, beta)
    assert newton_step(matrix, sign, f, beta, up, low, bounds, 1e-3) > 0
    assert (sign * beta >= 0).all() and (sign * beta <= bounds).all()
    assert abs(beta.sum()) <= 1e-12 * np.abs(beta).sum()
    assert objective(matrix, sign, beta) <= before
    np.testing.assert_allclose(f, matrix.astype(np.float64) @ beta - sign, atol=1e-9 * 10**bound * n)


def test_many_multipliers_reach_their_bounds_in_one_step() -> None:
    """The rest ends where none of it can do better: its gradients are equal."""
    matrix, sign, f, beta, up, low, bounds = problem(100, 3, 0.05, 5.0)
    free = (up & low).astype(bool)
    before = np.ptp(f[free])
    newton_step(matrix, sign, f, beta, up, low, bounds, 1e-3)
    set_masks(sign, beta, bounds, up, low)
    left = (up & low).astype(bool)
    assert 10 < left.sum() < 60 < free.sum()
    assert np.ptp(f[left]) < 1e-3 * before


def test_multipliers_leave_their_bounds_in_one_step() -> None:
    """Ten are free at first; the rest is at 0. Where the step ends nobody has to move."""
    matrix, sign, f, beta, up, low, bounds = problem(100, 5, 0.05, 5.0)
    beta[10:] = 0.0
    f[:] = matrix.astype(np.float64) @ beta - sign
    set_masks(sign, beta, bounds, up, low)
    newton_step(matrix, sign, f, beta, up, low, bounds, 1e-3)
    set_masks(sign, beta, bounds, up, low)
    assert (beta[10:] != 0.0).sum() > 20
    assert f[low > 0].max() - f[up > 0].min() < 1e-3
