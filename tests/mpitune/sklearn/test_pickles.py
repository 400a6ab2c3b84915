"""A fitted search on disk, loaded where this package is not installed."""

import pickle
import subprocess
import sys
from pathlib import Path

import joblib
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from mpitune.sklearn import GridSearchCV
from tests.mpitune.sklearn.iris import X, Y

LOAD = """
import os, sys
sys.path[:] = [folder for folder in sys.path if not os.path.exists(os.path.join(folder, "mpitune"))]
import joblib, pickle
from sklearn.datasets import load_iris
model = pickle.load(open(sys.argv[1], "rb")) if sys.argv[1].endswith("pickle") else joblib.load(sys.argv[1])
print(model.predict(load_iris().data).tolist())
"""


def loaded(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-I", "-c", LOAD, path], cwd=path.parent, capture_output=True, text=True)


def test_a_search_names_the_package_that_it_needs_and_its_model_needs_none(tmp_path: Path) -> None:
    grids = (
        (make_pipeline(StandardScaler(), KNeighborsClassifier()), {"kneighborsclassifier__n_neighbors": [1, 3]}),
        (SVC(), {"C": [1, 10]}),
    )
    for number, (model, grid) in enumerate(grids):
        search = GridSearchCV(model, grid, cv=3, workers=0).fit(X, Y)
        for name, dump in (("pickle", pickle.dumps), ("joblib", None)):
            for what, content in (("search", search), ("best", search.best_estimator_)):
                path = tmp_path / f"{number}-{what}.{name}"
                path.write_bytes(dump(content)) if dump else joblib.dump(content, path)
                done = loaded(path)
                if what == "search":
                    assert done.stderr.endswith("ModuleNotFoundError: No module named 'mpitune'\n") and done.returncode
                else:
                    assert done.stdout == f"{search.predict(X).tolist()}\n", done.stderr
