"""A search that shares, beside scikit-learn's, which fits every candidate from nothing."""

import logging
from typing import Any

import numpy as np
import pytest
import sklearn.model_selection as theirs
from sklearn import ensemble

from mpitune.sklearn import GridSearchCV

ENSEMBLES: list[Any] = [
    ensemble.RandomForestClassifier(random_state=1),
    ensemble.RandomForestClassifier(random_state=1, max_samples=0.5),
    ensemble.RandomForestRegressor(random_state=1, max_features=0.5),
    ensemble.ExtraTreesClassifier(random_state=1, class_weight="balanced"),
    ensemble.ExtraTreesRegressor(random_state=1, bootstrap=True),
    ensemble.GradientBoostingClassifier(random_state=1, subsample=0.7, max_depth=2),
    ensemble.GradientBoostingRegressor(random_state=1, n_iter_no_change=1, max_depth=1),
    ensemble.HistGradientBoostingClassifier(random_state=1, min_samples_leaf=5, max_features=0.5),
    ensemble.HistGradientBoostingRegressor(random_state=1, min_samples_leaf=5, early_stopping=True, n_iter_no_change=1),
    ensemble.HistGradientBoostingClassifier(
        random_state=1, min_samples_leaf=5, early_stopping=True, scoring="accuracy"
    ),
]


def number_of(model: Any) -> str:
    """The parameter of an ensemble that says how many members it has."""
    return "max_iter" if type(model).__name__.startswith("Hist") else "n_estimators"


def compared(
    caplog: pytest.LogCaptureFixture, estimator: Any, grid: Any, X: Any, y: Any, atol: float = 0.0, **arguments: Any
) -> GridSearchCV:
    """Our search, after all scores were seen to be scikit-learn's; the shared fits did not fall back to single ones."""
    weights = arguments.pop("fit_params", {})
    arguments = {"cv": 3, "refit": False, **arguments}
    reference = theirs.GridSearchCV(estimator, grid, **arguments).fit(X, y, **weights)
    with caplog.at_level(logging.INFO, logger="mpitune.sklearn.fits.graph_walk"):
        ours = GridSearchCV(estimator, grid, workers=0, **arguments).fit(X, y, **weights)
    assert not [record for record in caplog.records if record.name == "mpitune.sklearn.fits.graph_walk"], caplog.text
    for name, column in reference.cv_results_.items():
        if "score" in name and "time" not in name and "rank" not in name:
            np.testing.assert_allclose(ours.cv_results_[name], column, rtol=0, atol=atol, err_msg=name)
    return ours
