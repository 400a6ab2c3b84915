"""A search that shares, beside scikit-learn's, which fits every candidate from nothing."""

import logging
from typing import Any

import numpy as np
import pytest
import sklearn.model_selection as theirs

from mpitune.sklearn import GridSearchCV


def compared(
    caplog: pytest.LogCaptureFixture, estimator: Any, grid: Any, X: Any, y: Any, atol: float = 0.0, **arguments: Any
) -> GridSearchCV:
    """Our search, after all scores were seen to be scikit-learn's; the shared fits did not fall back to single ones."""
    share, weights = arguments.pop("share", "exact"), arguments.pop("fit_params", {})
    arguments = {"cv": 3, "refit": False, **arguments}
    reference = theirs.GridSearchCV(estimator, grid, **arguments).fit(X, y, **weights)
    with caplog.at_level(logging.INFO, logger="mpitune.sklearn.graph_walk"):
        ours = GridSearchCV(estimator, grid, workers=0, share=share, **arguments).fit(X, y, **weights)
    assert not [record for record in caplog.records if record.name == "mpitune.sklearn.graph_walk"], caplog.text
    for name, column in reference.cv_results_.items():
        if "score" in name and "time" not in name and "rank" not in name:
            np.testing.assert_allclose(ours.cv_results_[name], column, rtol=0, atol=atol, err_msg=name)
    return ours
