"""Sources of the solver's matrices."""

import numpy as np
import pytest

from mpitune._jit.simd import aligned_zeros
from mpitune.svm.decide.sources import DoubleSource, RbfSource
from mpitune.svm.kernel.functions import KernelFunction
from mpitune.svm.kernel.rbf import STRIP, kernel_minus_one, prepare, squared_distances
from tests.mpitune.svm.problems import random_samples

CLASSES = 3
PER_CLASS = STRIP + STRIP // 2  # a class has more rows than a strip, and not a multiple


def filled(source, samples, a, b):
    one, other = (slice(int(samples.class_start[c]), int(samples.class_start[c + 1])) for c in (a, b))
    size = one.stop - one.start + other.stop - other.start
    out = aligned_zeros((size, size))
    out[:] = np.nan
    source.fill(out, one, other)
    return out, np.concatenate([np.arange(one.start, one.stop), np.arange(other.start, other.stop)])


@pytest.mark.parametrize("kept", [False, True])
def test_the_matrix_of_two_classes_has_the_bits_of_the_whole(kept):
    samples = prepare(*random_samples(CLASSES * PER_CLASS, 7, CLASSES))
    source = RbfSource(samples, 0.1, squared_distances(samples) if kept else None)
    whole = kernel_minus_one(samples, 0.1)
    for pair in ((0, 1), (0, 2), (1, 2)):
        found, rows = filled(source, samples, *pair)
        assert np.array_equal(found, whole[np.ix_(rows, rows)])


@pytest.mark.parametrize("name", ["linear", "poly"])
def test_a_matrix_computed_in_double_is_symmetric_and_right(name):
    x, y = random_samples(CLASSES * PER_CLASS, 7, CLASSES)
    samples = prepare(x[:, :0], y)
    function = KernelFunction.of(name, 0.5, 3, 1.0)
    source = DoubleSource(samples, function, x)
    found, rows = filled(source, samples, 0, 2)
    order = np.full(samples.width, -1)
    order[samples.row_of] = np.arange(len(x))
    there = order[rows] >= 0
    own = x[order[rows[there]]]
    half = function.diagonal(own) / 2
    np.testing.assert_allclose(
        found[np.ix_(there, there)], function(own, own) - half - half[:, None], rtol=2e-4, atol=1e-3
    )
    assert np.array_equal(found, found.T)
    assert not found[~there].any()
