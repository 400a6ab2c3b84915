"""A fitted search on disk, loaded where this package is not installed."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from mpitune.sklearn import GridSearchCV
from tests.mpitune.sklearn.iris import X, Y

LOAD = """
import os, sys
sys.path[:] = [folder for folder in sys.path if not os.path.exists(os.path.join(folder, "mpitune"))]
import pickle
from sklearn.datasets import load_iris
model = pickle.load(open(sys.argv[1], "rb"))
print(model.predict(load_iris().data).tolist())
"""


def loaded(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-I", "-c", LOAD, path], cwd=path.parent, capture_output=True, text=True)


KNN = Pipeline([("scale", StandardScaler()), ("knn", KNeighborsClassifier())])


@pytest.mark.parametrize(
    ("model", "grid"),
    [(KNN, {"knn__n_neighbors": [1, 3]}), (SVC(), {"C": [1, 10]})],
    ids=["shared fits", "grid of SVC"],
)
def test_a_search_names_the_package_that_it_needs_and_its_model_needs_none(
    tmp_path: Path, model: Any, grid: Any
) -> None:
    search = GridSearchCV(model, grid, cv=3, workers=0).fit(X, Y)
    (tmp_path / "search").write_bytes(pickle.dumps(search))
    (tmp_path / "best").write_bytes(pickle.dumps(search.best_estimator_))
    done = loaded(tmp_path / "search")
    assert done.returncode == 1 and done.stderr.endswith("ModuleNotFoundError: No module named 'mpitune'\n")
    assert loaded(tmp_path / "best").stdout == f"{search.predict(X).tolist()}\n"
