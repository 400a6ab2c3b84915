"""The iris data, what a search of them must have in common with scikit-learn's, and an estimator that does grids."""

from typing import Any

import numpy as np
import pytest
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
