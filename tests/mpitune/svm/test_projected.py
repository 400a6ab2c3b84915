"""Steps of all multipliers together: when they are made, where they end, and that they leave nothing behind."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from sklearn.datasets import load_iris
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from mpitune._jit import LANES, padded
from mpitune._jit.simd import aligned_zeros
from mpitune.svm import fit_grid
from mpitune.svm.kernel.rbf import kernel_minus_one, prepare
from mpitune.svm.solver.binary import Binaries
from mpitune.svm.solver.projected import descend, project
from mpitune.svm.solver.smo import set_masks
from mpitune.svm.solver.walk import DONE, PAYS, STATE
from tests.mpitune.svm.problems import require_optimal, solve_path

pytestmark = pytest.mark.numerical

TOLERANCE = 1e-3


def vector(values: np.ndarray) -> np.ndarray:
    """float64, padded with zeros to whole vectors."""
    result = aligned_zeros((padded(len(values)),), np.float64)
    result[: len(values)] = values
    return result


@given(st.integers(2, 60), st.integers(0, 2**32 - 1), st.floats(-6, 6))
def test_the_nearest_multipliers_between_bounds_have_the_sum_zero(n: int, seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    sign = np.where(rng.permutation(n) < max(1, n // 3), 1.0, -1.0)
    bounds = rng.choice([1.0, 1.0, 2.5], n)
    bottom, top = np.where(sign > 0, 0.0, -bounds), np.where(sign > 0, bounds, 0.0)
    wish = 10**scale * rng.normal(size=n)
    target = vector(np.zeros(n))
    assert project(vector(wish), vector(bottom), vector(top), target)
    found = target[:n]
    assert (found >= bottom).all() and (found <= top).all() and abs(found.sum()) <= 1e-12 * np.abs(found).sum()
    shift = brentq(lambda s: np.clip(wish + s, bottom, top).sum(), *np.array([-2, 2]) * (np.abs(wish).max() + 3))
    np.testing.assert_allclose(found, np.clip(wish + shift, bottom, top), atol=1e-9 * (1 + 10**scale))
    assert not target[n:].any()


def problem(gamma: float, n: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """K - 1 and the signs of two clouds of different size."""
    rng = np.random.default_rng(0)
    y = np.where(np.arange(n) % 3, 1, -1)
    samples = prepare(rng.normal(size=(n, 20)) + 0.4 * y[:, None], -y)
    sign = np.zeros(samples.width, np.int8)
    sign[samples.row_of] = y
    return kernel_minus_one(samples, gamma), sign


def test_a_kernel_that_is_nearly_the_identity_takes_a_few_steps() -> None:
    """Pair by pair each C takes several steps for each sample."""
    matrix, sign = problem(1.0)
    penalties = np.array([0.01, 0.1, 1.0, 10.0, 100.0])
    path = solve_path(matrix, sign, penalties, TOLERANCE, 10**7)
    assert path.iterations.sum() < 20
    require_optimal(matrix, sign, path, penalties, TOLERANCE)


def test_steps_that_do_not_pay_are_taken_back() -> None:
    matrix, sign = problem(1e-3)
    width = len(sign)
    columns = np.arange(width)
    blocks = columns[: width // LANES].astype(np.int32)
    f, beta, bounds = -sign.astype(np.float64), vector(np.zeros(width)), np.full(width, 1000.0)
    up, low = np.zeros(width, np.uint8), np.zeros(width, np.uint8)
    set_masks(sign, beta, bounds, up, low)
    before = [part.copy() for part in (f, beta, up, low)]
    rows = (array[None] for array in (blocks, columns, sign, bounds / 1000, bounds, f, beta, up, low))
    problems = Binaries(matrix, np.array([width]), *rows)
    state = np.full((1, len(STATE)), 7)
    descend(problems, np.array([0]), TOLERANCE, 1000, state)
    assert state[0, DONE] == 0 and not state[0, PAYS]
    for part, old in zip((f, beta, up, low), before, strict=True):
        assert np.array_equal(part, old)


@pytest.mark.parametrize("gamma", [0.01, 10.0])
def test_multipliers_at_their_bound_are_exactly_there(gamma: float) -> None:
    """One that is a rounding error away would decide the threshold: of iris, classes of equal size, 12 of 30 labels."""
    x, y = load_iris(return_X_y=True)
    x = StandardScaler().fit_transform(x)
    splits = list(StratifiedKFold(5).split(x, y))
    for fitted in fit_grid(SVC(gamma=gamma), [{"C": 0.01}, {"C": 0.1}], x, y, splits):
        train, _ = splits[fitted.split]
        peer = SVC(C=[0.01, 0.1][fitted.candidate], gamma=gamma).fit(x[train], y[train])
        np.testing.assert_allclose(fitted.model.intercept_, peer.intercept_, atol=2e-3)


@pytest.mark.parametrize("gamma", [1e-3, 0.03, 1.0])
def test_no_more_steps_are_made_than_are_allowed(gamma: float) -> None:
    matrix, sign = problem(gamma)
    path = solve_path(matrix, sign, [1.0, 1e4], 1e-12, 3)
    assert path.iterations.max() <= 3 and abs(path.betas.sum(axis=1)).max() < 1e-9
