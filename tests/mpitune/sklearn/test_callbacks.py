"""scikit-learn's callbacks, since version 1.9: those of a search hear of its fits as in one process, wherever made."""

import textwrap
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.model_selection as theirs
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from mpitune.sklearn import GridSearchCV, HalvingGridSearchCV
from tests.helpers import wait_until
from tests.mpitune.sklearn.iris import X, Y, table

callback = pytest.importorskip("sklearn.callback")

KNN = KNeighborsClassifier(), {"n_neighbors": [1, 3, 5], "weights": ["uniform", "distance"]}
GRID = {"logisticregression__C": [0.01, 0.1, 1.0]}
WEIGHTED = {"sample_weight": [1.0] * 150}


class Notes:
    """A callback of a user's own."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def setup(self, estimator: Any, context: Any) -> None:
        self.heard.append("setup")

    def teardown(self, estimator: Any, context: Any) -> None:
        self.heard.append("teardown")

    def on_fit_task_begin(self, estimator: Any, context: Any, *, X: Any = None, metadata: Any = None) -> None:
        self.heard.append(("begin", _path(context), None if X is None else X.shape, len(metadata or ())))

    def on_fit_task_end(self, estimator: Any, context: Any, *, y: Any = None) -> None:
        self.heard.append(("end", _path(context), type(estimator).__name__, None if y is None else len(y)))


class Passed(Notes):
    """One that scikit-learn hands on to estimators."""

    max_propagation_depth = None


def _path(context: Any) -> tuple[int, ...]:
    return (*_path(context.parent), context.task_id) if context.parent else (context.task_id,)


@pytest.mark.parametrize(
    ("workers", "kind", "model", "grid", "given"),
    [
        (0, GridSearchCV, *KNN, {}),
        (2, GridSearchCV, *KNN, {}),
        (0, GridSearchCV, SVC(), {"C": [0.1, 1.0, 10.0]}, WEIGHTED),
        (2, GridSearchCV, LogisticRegression(max_iter=20), {"C": [0.1, 1.0, 10.0]}, WEIGHTED),
        pytest.param(0, HalvingGridSearchCV, *KNN, {}, marks=pytest.mark.slow),
        pytest.param(2, HalvingGridSearchCV, *KNN, {}, marks=pytest.mark.slow),
    ],
)
def test_they_hear_of_each_fit_as_of_scikit_learns(
    workers: int, kind: Any, model: Any, grid: Any, given: Any, tmp_path: Path
) -> None:
    """Also of fits that candidates share; with a folder that knows all results, too."""
    heard, tables = [], []
    own: dict[str, Any] = {"workers": workers, "results": tmp_path / "results" if workers else None}
    for one, more in ((getattr(theirs, kind.__name__), {}), (kind, own), (kind, own)):
        search = one(model, grid, cv=3, **more, **({} if kind is GridSearchCV else {"random_state": 0}))
        search.set_callbacks(notes := Notes(), bar := callback.ProgressBar()).fit(X, Y, **given)
        assert (notes.heard[0], notes.heard[-1], bar._listener_handles) == ("setup", "teardown", {})
        heard.append(sorted(notes.heard, key=str))
        tables.append(table(search))
    assert heard[0] == heard[1] == heard[2] and tables[0] == tables[1] == tables[2]


class Waits(ClassifierMixin, BaseEstimator):
    """A fit of number n ends once a callback has heard of that before."""

    def __init__(self, number: int = 0, folder: str = ""):
        self.number, self.folder = number, folder

    def fit(self, X: Any, y: Any) -> Any:
        if self.number:
            assert wait_until((Path(self.folder) / str(self.number - 1)).exists)
        self.classes_ = y
        return self

    def predict(self, X: Any) -> Any:
        return [0] * len(X)


class Marks(Notes):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def on_fit_task_end(self, estimator: Any, context: Any) -> None:
        (self.folder / str(context.task_id)).touch()


@pytest.mark.parametrize("workers", [0, 1])
def test_they_hear_of_a_fit_as_soon_as_it_has_ended(workers: int, tmp_path: Path) -> None:
    search = GridSearchCV(Waits(folder=str(tmp_path)), {"number": range(5)}, cv=[(np.arange(75), np.arange(75, 150))])
    search.set_params(workers=workers, refit=False, error_score="raise").set_callbacks(Marks(tmp_path)).fit(X, Y)


def test_where_they_hear_of_what_fits_do_scikit_learn_makes_the_fits() -> None:
    rows = []
    for kind, more in ((theirs.GridSearchCV, {}), (GridSearchCV, {"workers": 2})):
        monitor, passed = callback.ScoringMonitor(scoring="accuracy"), Passed()
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=20).set_callbacks(monitor))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            kind(model, GRID, cv=3, **more).fit(X, Y)
            kind(LogisticRegression(max_iter=20), {"C": [0.1, 1.0]}, cv=3, **more).set_callbacks(passed).fit(X, Y)
        n_said = sum("scikit-learn makes these: so it makes all" in str(warning.message) for warning in said)
        assert n_said == (2 if more else 0)
        rows.append((list(monitor.get_logs(include_lineage=True).data), passed.heard))
    assert rows[0] == rows[1] and len(rows[0][0]) > 50


def test_a_hook_that_raises_ends_the_search() -> None:
    class Fails(Notes):
        def on_fit_task_end(self, estimator: Any, context: Any) -> None:
            raise ZeroDivisionError("a hook that fails")

    with pytest.raises(ZeroDivisionError, match="a hook that fails"):
        GridSearchCV(*KNN, cv=2, workers=1).set_callbacks(Fails()).fit(X, Y)


IN_A_JOB = """
    from sklearn.callback import ScoringMonitor
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score

    monitored = LogisticRegression().set_callbacks(ScoringMonitor(scoring="accuracy"))
    cross_val_score(monitored, *load_iris(return_X_y=True), n_jobs=2)
"""


@pytest.mark.slow
def test_calls_on_several_machines_are_refused(program: Any, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(textwrap.dedent(IN_A_JOB))
    done = program("-m", "mpitune", "script.py", ranks=2, cwd=tmp_path, status=2)
    assert 'made by joblib.parallel_config("loky")' in done.stderr
