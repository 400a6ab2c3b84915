"""Whose fault a failure is: a fit or a score that raises on one node alone, by the door of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.model_selection as theirs
from sklearn.datasets import load_iris
from sklearn.tree import DecisionTreeClassifier

from mpitune.engine.dispatch import Dispatch
from mpitune.sklearn import GridSearchCV

tried: set[Any] = set()


def raise_once(*what: Any) -> None:
    """In a worker, as on a node without scratch: what is tried once more, on another one, succeeds there."""
    if tried.isdisjoint({"nowhere", what}):
        tried.add(what)
        raise OSError("no scratch on this node")


class Scratched(DecisionTreeClassifier):
    def fit(self, X: Any, y: Any) -> Any:
        if self.criterion == "gini":
            raise_once(self.max_depth, X.tobytes())
        return super().fit(X, y)


def scorer(model: Any, X: Any, y: Any) -> float:
    if model.criterion == "entropy":
        raise_once(model.max_depth, X.tobytes())
    return float(model.score(X, y))


def test_a_fit_or_score_that_raises_is_tried_on_another_node_before_that_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Dispatch, "has_elsewhere", lambda *of: True)
    grid = {"criterion": ["gini", "entropy"], "max_depth": [1, 3, 0]}  # a depth of 0 is refused on any node
    scores = []
    for kind, how in ((GridSearchCV, {"workers": 1}), (theirs.GridSearchCV, {})):
        search = kind(Scratched(random_state=0), grid, cv=3, scoring=scorer, error_score=-1.0, refit=False, **how)
        with pytest.warns(theirs._validation.FitFailedWarning, match="6 fits failed out of a total of 18"):
            search.fit(*load_iris(return_X_y=True))
        scores.append([search.cv_results_[f"split{split}_test_score"] for split in range(3)])
        tried.add("nowhere")
    assert np.array_equal(*scores)
