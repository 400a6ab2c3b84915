"""What a search has found on disk, loaded by another process where this package is missing."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import joblib
import pytest
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline
from sklearn.svm import SVC

from mpitune.sklearn import GridSearchCV
from mpitune.sklearn.sharing import _FILES, family_of
from tests.mpitune.sklearn.iris import X, Y

VALUES = {"n_estimators": [2, 4], "max_iter": [2, 4], "n_neighbors": [1, 3], "n_components": [1, 2]}
ALONE = """
import os, sys
sys.path[:] = [folder for folder in sys.path if not os.path.exists(os.path.join(folder, "mpitune"))]
import joblib
from sklearn.datasets import load_iris
for model in joblib.load("models"):
    print(model.predict(load_iris().data).tolist())
joblib.load("joblib")
"""


def of_family(kind: Any) -> GridSearchCV:
    """A search whose candidates share fits of that class."""
    family = family_of(kind)
    assert family is not None
    options = {"random_state": 0, "min_child_samples": 5, "verbosity": 0}
    known = kind().get_params()
    model = kind(**{key: value for key, value in options.items() if key in known})
    if kind.__name__.startswith("LGBM"):
        model.set_params(verbose=-1)
    shared = next(value for value in VALUES if family.shares(value))
    grid = {shared: VALUES[shared]}
    if hasattr(kind, "transform") and not hasattr(kind, "predict"):
        model, grid = Pipeline([("a", model), ("knn", KNeighborsClassifier())]), {f"a__{shared}": VALUES[shared]}
    return GridSearchCV(model, grid, cv=2, workers=0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_the_best_models_of_all_families_are_loaded_where_this_package_is_missing(tmp_path: Path) -> None:
    """Searches themselves are pickled and loaded in tests/differential."""
    homes = {home: import_module(f"mpitune.sklearn.sharing.{file}").FAMILIES for home, file in _FILES.items()}
    kinds = [getattr(pytest.importorskip(home), name, None) for home, names in homes.items() for name in names]
    searches = [of_family(kind).fit(X, Y) for kind in kinds if kind is not None]
    assert all(search.plan_.n_saved for search in searches)
    searches.append(GridSearchCV(SVC(), {"C": [1, 10]}, cv=3, workers=0).fit(X, Y))
    joblib.dump(searches, tmp_path / "joblib")
    joblib.dump([search.best_estimator_ for search in searches], tmp_path / "models")
    alone = subprocess.run([sys.executable, "-I", "-c", ALONE], cwd=tmp_path, capture_output=True, text=True)
    assert alone.stdout == "".join(f"{search.predict(X).tolist()}\n" for search in searches), alone.stderr
    assert alone.stderr.endswith("ModuleNotFoundError: No module named 'mpitune'\n")  # a search needs it
