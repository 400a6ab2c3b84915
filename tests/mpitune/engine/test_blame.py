"""Whose fault a failure is, with real processes: a node where every fit raises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

# Rank 1 tells its workers that they have no scratch: fits of one criterion raise there, and scores of the other.
SCRIPT = """
import json, os, sys, warnings
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    os.environ["NO_SCRATCH"] = "1"
import sklearn.model_selection as theirs
from sklearn.datasets import load_iris
from sklearn.tree import DecisionTreeClassifier
from mpitune.sklearn import GridSearchCV

class Scratched(DecisionTreeClassifier):
    def fit(self, X, y):
        if "NO_SCRATCH" in os.environ and self.criterion == "gini":
            raise OSError("no scratch on this node")
        return super().fit(X, y)

def scorer(model, X, y):
    if "NO_SCRATCH" in os.environ:
        raise OSError("no scratch for scores")
    return model.score(X, y)

def found(kind, **more):
    grid = {"criterion": ["gini", "entropy"], "max_depth": [1, 3, 0]}  # a depth of 0 is refused
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        search = kind(Scratched(random_state=0), grid, cv=3, scoring=scorer, error_score=-1.0, **more)
        search.fit(*load_iris(return_X_y=True))
    scores = [search.cv_results_[f"split{split}_test_score"].tolist() for split in range(3)]
    failed = [line for w in seen for line in str(w.message).splitlines() if "fits failed out of" in line]
    return [scores, search.best_params_, failed]

ours = found(GridSearchCV, workers=1)
if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
    print(json.dumps([ours, found(theirs.GridSearchCV)]))
"""


@pytest.mark.slow
def test_a_fit_or_score_that_raises_is_tried_on_another_node_before_that_is_recorded(
    program: Any, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = program(tmp_path / "script.py", ranks=2, cwd=tmp_path)
    ours, theirs = json.loads(done.stdout)
    assert ours == theirs and theirs[2] == ["6 fits failed out of a total of 18."]
