"""The iris data, and what a search of them must have in common with scikit-learn's."""

from typing import Any

import numpy as np
from sklearn.datasets import load_iris

X, Y = load_iris(return_X_y=True)


def table(search: Any) -> dict[str, Any]:
    """What scikit-learn's table has too, without times."""
    columns = search.cv_results_.items()
    return {
        name: np.asarray(column).tolist() for name, column in columns if "time" not in name and name != "shared_with"
    }


def same(ours: Any, reference: Any) -> None:
    """The same table, the same best point, and a refitted model that says the same."""
    assert table(ours) == table(reference)
    assert ours.best_index_ == reference.best_index_ and ours.best_params_ == reference.best_params_
    assert (ours.predict(X) == reference.predict(X)).all()
