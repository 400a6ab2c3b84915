"""The iris data, what a search of them must have in common with scikit-learn's, and an estimator that does grids."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_iris

from mpitune.limit import SearchLimit
from mpitune.sklearn.fits.grouping import Grouping

X, Y = load_iris(return_X_y=True)


def table(search: Any) -> dict[str, Any]:
    """What scikit-learn's table has too, without times."""
    columns = search.cv_results_.items()
    return {name: np.asarray(column).tolist() for name, column in columns if "time" not in name}


def same(ours: Any, reference: Any) -> None:
    """The same table, the same best point, and a refitted model that says the same."""
    assert table(ours) == table(reference)
    assert ours.best_index_ == reference.best_index_ and ours.best_params_ == reference.best_params_
    assert (ours.predict(X) == reference.predict(X)).all()


def caught(search: Any) -> tuple[Any, Grouping, SearchLimit]:
    """A search, where its tasks would be evaluated, and no limit."""
    tasks: list[Any] = []

    class Stop(Exception):
        pass

    def run(given: Any, *_: Any) -> Any:
        tasks.extend(given)
        raise Stop

    search._run = run
    with pytest.raises(Stop):
        search.fit(X, Y)
    del search._run
    return search, Grouping(tasks, search.share), SearchLimit()


class WholeGrid(ClassifierMixin, BaseEstimator):
    """Has the protocol of `fit_grid`, and is fitted by that alone."""

    def __init__(self, label: int = 0):
        self.label = label

    def fit(self, X: Any, y: Any) -> Any:
        raise AssertionError("fitted alone")

    def fit_grid(self, candidates: Any, X: Any, y: Any, splits: Any, **options: Any) -> Iterator[Any]:
        for c, candidate in enumerate(candidates):
            for s, _ in enumerate(splits):
                model = WholeGrid(**candidate)
                model.classes_ = np.unique(y)
                yield SimpleNamespace(candidate=c, split=s, model=model, error=None, seconds=0.0)

    def predict(self, X: Any) -> Any:
        return np.full(len(X), self.label)
