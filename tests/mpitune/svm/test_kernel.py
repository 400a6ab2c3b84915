"""Products, distances and K - 1 of the shared solver."""

from __future__ import annotations

import numpy as np
import pytest

from mpitune._jit import LANES
from mpitune._jit.simd import aligned_zeros
from mpitune.svm.kernel.gemm import DEPTH, VECTORS, multiply, packed
from mpitune.svm.kernel.rbf import expm1_scaled, kernel_minus_one, panels_of, prepare, squared_distances
from tests.mpitune.svm.problems import random_samples


@pytest.mark.parametrize("n_features", [1, 7, DEPTH, 2 * DEPTH + 1])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (16, 40), (100, 130)])
def test_products_are_those_of_numpy(n, m, n_features):
    rng = np.random.default_rng(n + m)
    a, b = rng.normal(size=(n, n_features)), rng.normal(size=(m, n_features))
    packed_a, packed_b = packed(a), packed(b)
    out = aligned_zeros((len(packed_a) * LANES, len(packed_b) * LANES))
    multiply(packed_a, packed_b, out)
    np.testing.assert_allclose(out[:n, :m], a @ b.T, atol=1e-4)
    assert not out[n:].any() and not out[:, m:].any()


@pytest.mark.parametrize("n_panels", range(VECTORS - 1, 9))
def test_any_number_of_panels_is_multiplied_and_nothing_beside_is_written(n_panels):
    rng = np.random.default_rng(n_panels)
    a, b = rng.normal(size=(16, 7)), rng.normal(size=(n_panels * LANES, 7))
    out = aligned_zeros((16, n_panels * LANES + 64))
    multiply(packed(a), packed(b)[:n_panels], out[:, : n_panels * LANES])
    np.testing.assert_allclose(out[:, : n_panels * LANES], a @ b.T, atol=1e-4)
    assert not out[:, n_panels * LANES :].any()


@pytest.mark.parametrize("shape", [(1, 1), (2, 8), (40, 3 * LANES + 5)])
@pytest.mark.parametrize("count", [1, LANES, 2 * LANES + 3])
@pytest.mark.parametrize("runs", [1, 5, 3 * LANES])
def test_panels_have_the_columns_in_any_order_and_then_the_last_one(shape, count, runs):
    rng = np.random.default_rng(count)
    matrix = rng.normal(size=shape).astype(np.float32)
    rows = rng.integers(shape[0], size=30)
    columns = (rng.integers(shape[1], size=count)[:, None] + np.arange(runs)).ravel()[:count] % shape[1]
    found = panels_of(matrix, rows, columns)
    lanes = np.append(columns, np.repeat(columns[-1], -count % LANES))
    assert np.array_equal(found, matrix[rows][:, lanes].reshape(30, -1, LANES).swapaxes(0, 1))
    assert not found.ctypes.data % 64


def test_features_that_are_zero_in_a_tile_change_no_bit():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(48, 40)), rng.normal(size=(80, 40))
    a[rng.random(a.shape) < 0.9] = 0
    a[16:32] = 0
    places = rng.permutation(55)[:40]
    wide_a, wide_b = np.zeros((48, 55)), rng.normal(size=(80, 55))
    wide_a[:, np.sort(places)], wide_b[:, np.sort(places)] = a, b
    out, wide = aligned_zeros((48, 80)), aligned_zeros((48, 80))
    multiply(packed(a), packed(b), out)
    multiply(packed(wide_a), packed(wide_b), wide)
    np.testing.assert_allclose(out, a @ b.T, atol=1e-4)
    assert np.array_equal(out, wide)


def test_what_most_samples_have_is_zero_and_distances_are_right():
    rng = np.random.default_rng(0)
    x = np.where(rng.random((400, 30)) < 0.8, -1.73, rng.normal(2.0, 1.0, size=(400, 30)))
    x[:, :3] = 0.1, 5.0, 1e6  # the same in all samples
    x[:, 3] = rng.normal(size=400)
    samples = prepare(x, np.arange(400) % 3)
    assert not samples.x(samples.row_of)[:, :3].any()
    assert np.isclose((samples.x(samples.row_of)[:, 4:] == 0).mean(), 0.8, atol=0.02)
    exact = ((x[:, None] - x[None]) ** 2).sum(-1)
    found = squared_distances(samples)[np.ix_(samples.row_of, samples.row_of)]
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-3)
    assert np.isclose(samples.spread, exact.mean(), rtol=1e-5)


def test_samples_are_sorted_by_class_and_found_again():
    x, y = random_samples(50, 6)
    samples = prepare(x, np.array(["red", "blue", "green"])[y])
    assert samples.classes.tolist() == ["blue", "green", "red"]
    np.testing.assert_allclose(samples.x(samples.row_of) + samples.centre, x, rtol=1e-5)
    for row, label in zip(samples.row_of, samples.labels, strict=True):
        assert samples.class_start[label] <= row < samples.class_start[label + 1]
    assert not (samples.class_start % LANES).any()


@pytest.mark.parametrize("n_features", [1, 3, 784])
def test_distances_are_right_symmetric_and_zero_to_themselves(n_features):
    x, y = random_samples(90, n_features)
    samples = prepare(x, y)
    found = squared_distances(samples)
    exact = ((x[:, None] - x[None]) ** 2).sum(-1)
    np.testing.assert_allclose(found[np.ix_(samples.row_of, samples.row_of)], exact, rtol=1e-5, atol=1e-5 * n_features)
    assert np.array_equal(found, found.T)
    assert not found.diagonal().any()


def test_any_part_has_the_bits_of_the_whole():
    samples = prepare(*random_samples(333, 50))
    whole = squared_distances(samples)
    rows, columns = slice(32, 144), slice(16, 48)
    assert np.array_equal(squared_distances(samples, rows=rows, columns=columns), whole[rows, columns])
    kernel = kernel_minus_one(samples, 0.01)
    assert np.array_equal(kernel_minus_one(samples, 0.01, distances=whole), kernel)
    assert np.array_equal(kernel_minus_one(samples, 0.01, rows=rows, columns=columns), kernel[rows, columns])


def test_expm1_is_accurate_to_one_unit_in_the_last_place():
    x = np.geomspace(1e-12, 200, 16 * 4096, dtype=np.float32).reshape(-1, 256)
    out = np.empty_like(x)
    expm1_scaled(x, 1.0, out)
    exact = np.expm1(-x.astype(np.float64))
    assert (np.abs(out - exact) <= np.spacing(np.abs(exact).astype(np.float32))).all()


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((3, 2)), np.zeros(4), "shape"),
        (np.zeros((3, 2)), np.zeros(3), "fewer than two classes"),
        (np.full((2, 2), np.nan), np.arange(2), "not finite"),
    ],
)
def test_unusable_input_is_refused(x, y, message):
    with pytest.raises(ValueError, match=message):
        prepare(x, y)
