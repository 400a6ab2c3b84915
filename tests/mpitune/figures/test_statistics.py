"""Intervals and tests beside SciPy's, the quality of probabilities beside scikit-learn's."""

import numpy as np
import pytest
import scipy.stats
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss

from mpitune.figures.statistics import calibration, mcnemar, proportion


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
