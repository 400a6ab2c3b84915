"""The replica of LIBSVM has LIBSVM's bits: multipliers, threshold and number of iterations."""

import numpy as np
import pytest

from mpitune.svm import libsvm
from mpitune.svm.data import Data, TrainingSet
from mpitune.svm.kernel.functions import KernelFunction
from mpitune.svm.libsvm import Pair
from mpitune.svm.solved import solve
from mpitune.svm.solver.replica import products_of

KERNELS = {
    "rbf": KernelFunction.of("rbf", 0.3, 0, 0.0),
    "narrow rbf": KernelFunction.of("rbf", 30.0, 0, 0.0),
    "linear": KernelFunction.of("linear", 0.0, 0, 0.0),
    "poly": KernelFunction.of("poly", 0.2, 3, 1.0),
}


@pytest.mark.parametrize("shrinking", [True, False])
@pytest.mark.parametrize("kernel", KERNELS)
def test_all_bits_are_libsvms(kernel, shrinking):
    """Samples that occur twice, weights, classes of equal and of unequal size, a training set among more samples."""
    random, compared = np.random.default_rng(0), 0
    for turn in range(24):
        n, features = int(random.integers(6, 160)), int(random.integers(1, 6))
        x = random.normal(size=(n + 7, features))
        x = x.round(1) if turn % 3 == 0 else x
        members = random.permutation(n + 7)
        indices = members[:n]
        first = n // 2 if turn % 2 else int(random.integers(1, n))
        weights = random.uniform(0.2, 3.0, n) if turn % 4 == 0 else np.ones(n)
        bounds = weights * 10 ** random.uniform(-3, 2 if "rbf" in kernel else 0.5)
        function = KERNELS[kernel]
        ours = Pair(x, members, function, products_of(x[members]))
        theirs = Pair(x, members, function, None)
        betas, rho, iterations, _ = ours.solved(indices, first, bounds, 1e-3, shrinking)
        wanted = theirs.solved(indices, first, bounds, 1e-3, shrinking)
        np.testing.assert_array_equal(betas, wanted[0])
        assert (rho, iterations) == wanted[1:3]
        compared += iterations > n  # so often that some samples are left out for a while
    assert compared >= 1


def test_samples_that_are_left_out_are_gathered_away():
    """Of many samples few move after a thousand iterations. Before the end all come back, and some go once more."""
    random, every = np.random.default_rng(1), np.arange(1300)
    x = random.normal(size=(1300, 2))
    indices = np.argsort(np.hypot(*x.T) + 0.3 * random.normal(size=1300))
    arguments = indices, 650, np.full(1300, 30.0), 1e-3, True
    ours, theirs = (Pair(x, every, KERNELS["rbf"], own).solved(*arguments) for own in (products_of(x), None))
    np.testing.assert_array_equal(ours[0], theirs[0])
    assert ours[1:3] == theirs[1:3] and ours[2] > 2500


def test_what_every_solver_ends_at_libsvm_ends_at_too():
    """All multipliers at one bound, proved by sums of the kernel: LIBSVM finds the same on its own way from zero.

    The last C where all of them may be there are looked at closely: where it can hardly be told, nothing is proved.
    """
    random, proved = np.random.default_rng(0), 0
    for turn in range(100):
        every, ends = np.arange(n := 2 * int(random.integers(2, 40 if turn < 10 else 8))), (1e-3, 1e2)
        first = n // 2 - (turn % 4 == 0)
        x, gamma = random.normal(size=(n, 1 + turn % 3)).round(turn % 2), 10 ** random.uniform(-3, 1)
        data, function = Data(x, every >= first, "rbf"), KernelFunction.of("rbf", gamma, 0, 0.0)
        training, source = TrainingSet.without_weights(every, 2), data.source(function, 300, 1)
        for _ in range(2):
            penalties = np.geomspace(*ends, 300)
            solved = solve(data, source, penalties, [training], libsvm=False)[0].solutions
            last = int((np.abs(solved.gaps[0]) <= 1e-3).argmax()) or 299
            known = np.flatnonzero(solved.gaps[0] < 0)
            for c in (*known[:5], *known[known < last][-20:]):
                bounds = np.full(n, penalties[c])
                betas, rho, *_ = Pair(x, every, function, None).solved(every, first, bounds, 1e-3, True)
                np.testing.assert_array_equal(np.abs(betas), bounds)
                assert abs(rho - solved.rhos[0][solved.solution_of[0][c]]) < -solved.gaps[0][c] * libsvm.ROUNDING
                proved += 1
            ends = penalties[[last - 1, last]]
    assert proved > 500


def test_a_machine_that_rounds_otherwise_asks_libsvm_itself(monkeypatch):
    assert libsvm.is_faithful()
    values = libsvm.kernel_values
    libsvm.is_faithful.cache_clear()
    monkeypatch.setattr(libsvm, "kernel_values", lambda *arguments: values(*arguments) * (1 + 1e-6))
    try:
        assert not libsvm.is_faithful()
    finally:
        libsvm.is_faithful.cache_clear()
