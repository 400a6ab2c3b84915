"""Intervals beside SciPy's, the quality of probabilities beside scikit-learn's."""

import numpy as np
import pytest
import scipy.stats
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss

from mpitune.figures.statistics import calibration, proportion


def test_what_is_no_proportion_is_refused() -> None:
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


def test_proportions_are_scipys() -> None:
    for n_wrong, n in ((0, 1), (3, 7), (50, 50), (1234, 4000)):
        ours, theirs = proportion(n_wrong, n), scipy.stats.binomtest(n_wrong, n).proportion_ci(0.95, method="wilson")
        np.testing.assert_allclose((ours.low, ours.high), (theirs.low, theirs.high), rtol=1e-12, atol=1e-15)
