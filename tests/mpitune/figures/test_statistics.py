"""Intervals that hold what they promise, on data whose truth is known."""

import numpy as np
import pytest
import scipy.stats
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss

from mpitune.figures.statistics import (
    as_good,
    calibration,
    cross_validated,
    mcnemar,
    n_within_one_error,
    proportion,
    standard_error,
)


def test_the_interval_of_a_cross_validation_by_hand() -> None:
    """k = 5: variance of the folds 2.5e-4, factor 1/5 + 1/4, quantile of 4 degrees of freedom 2.7764."""
    errors = np.array([0.01, 0.02, 0.03, 0.04, 0.05])
    half = 2.7764451052 * np.sqrt(0.45 * 2.5e-4)
    assert cross_validated(errors) == pytest.approx((0.03 - half, 0.03 + half), rel=1e-6)
    assert standard_error(errors) == pytest.approx(np.sqrt(0.45 * 2.5e-4))
    grid = np.stack([errors, 2 * errors], axis=1)
    np.testing.assert_allclose(standard_error(grid), np.sqrt(0.45 * 2.5e-4) * np.array([1, 2]))


def test_an_interval_of_too_little_and_what_is_no_proportion_are_refused() -> None:
    for errors in ([0.1], [0.1, np.nan], []):
        with pytest.raises(ValueError, match="two folds"):
            cross_validated(np.array(errors))
    for n_wrong, n in ((2, 1), (-1, 5), (0, 0)):
        with pytest.raises(ValueError, match="is not a proportion"):
            proportion(n_wrong, n)


def test_calibration_agrees_with_scikit_learn() -> None:
    """Its curve is of one class of two, so the probabilities here are those of the answer, and whether it is right."""
    random = np.random.default_rng(2)
    probabilities = random.dirichlet(np.full(3, 0.4), 5000)
    labels = random.integers(0, 3, 5000)
    found, answers = calibration(probabilities, labels), probabilities.argmax(axis=1)
    right, sure = calibration_curve(answers == labels, probabilities.max(axis=1), n_bins=10)
    there = found.counts > 0
    np.testing.assert_allclose(found.accuracy[there], right)
    np.testing.assert_allclose(found.confidence[there], sure)
    assert found.log_loss == pytest.approx(log_loss(labels, probabilities))
    of_classes = [brier_score_loss(labels == label, probabilities[:, label]) for label in range(3)]
    assert found.brier == pytest.approx(sum(of_classes))
    assert found.expected_error == pytest.approx(np.average(abs(right - sure), weights=found.counts[there]))
    assert np.isfinite(calibration(np.array([[1.0, 0.0]]), np.array([1])).log_loss)


def test_as_good_agrees_with_the_interval_of_the_difference() -> None:
    random = np.random.default_rng(3)
    errors = random.uniform(0.1, 0.12, (5, 40))
    best = int(errors.mean(axis=0).argmin())
    paired = as_good(errors, best)
    assert paired[best]
    for other in set(range(40)) - {best}:
        low = cross_validated(errors[:, other] - errors[:, best], level=0.9).low
        assert paired[other] == (low <= 0)
    reach = errors[:, best].mean() + np.sqrt((1 / 5 + 1 / 4) * errors[:, best].var(ddof=1))
    within = errors.mean(axis=0) <= reach
    assert n_within_one_error(errors, errors[:, best]) == within.sum() > 2
    close = next(other for other in np.flatnonzero(paired & within) if other != best)
    errors[2, close] = np.nan
    assert not as_good(errors, best)[close] and n_within_one_error(errors, errors[:, best]) == within.sum() - 1


def test_proportions_and_mcnemars_test_are_scipys() -> None:
    rng = np.random.default_rng(3)
    for n in (1, 7, 50, 4000):
        k = int(rng.integers(n + 1))
        ours, theirs = proportion(k, n), scipy.stats.binomtest(k, n).proportion_ci(0.95, method="wilson")
        np.testing.assert_allclose((ours.low, ours.high), (theirs.low, theirs.high), rtol=1e-12, atol=1e-15)
        a, b = rng.random((2, n)) < 0.3
        first, second = int((a & ~b).sum()), int((b & ~a).sum())
        expected = scipy.stats.binomtest(first, first + second).pvalue if first + second else 1.0
        assert mcnemar(a, b) == pytest.approx(expected, rel=1e-9)
