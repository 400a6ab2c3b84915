"""Intervals beside SciPy's."""

import numpy as np
import pytest
import scipy.stats

from mpitune.figures.statistics import proportion


def test_what_is_no_proportion_is_refused() -> None:
    for n_wrong, n in ((2, 1), (-1, 5), (0, 0)):
        with pytest.raises(ValueError, match="is not a proportion"):
            proportion(n_wrong, n)


def test_proportions_are_scipys() -> None:
    for n_wrong, n in ((0, 1), (3, 7), (50, 50), (1234, 4000)):
        ours, theirs = proportion(n_wrong, n), scipy.stats.binomtest(n_wrong, n).proportion_ci(0.95, method="wilson")
        np.testing.assert_allclose((ours.low, ours.high), (theirs.low, theirs.high), rtol=1e-12, atol=1e-15)
