"""The searches on the engine beside scikit-learn's: the same table, in this process, in workers, under mpirun."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sklearn.model_selection as theirs
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, make_scorer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from common import UsageError
from common.sklearn import GridSearchCV, RandomizedSearchCV
from tests.helpers import journal_lines

X, Y = load_iris(return_X_y=True)
GRID = {"C": [0.1, 1.0, 10.0], "gamma": [0.1, 1.0, "scale"]}


def table(search: Any) -> dict[str, Any]:
    return {name: np.asarray(column).tolist() for name, column in search.cv_results_.items() if "time" not in name}


def same(ours: Any, reference: Any) -> None:
    assert table(ours) == table(reference)
    assert ours.best_index_ == reference.best_index_ and ours.best_params_ == reference.best_params_
    assert (ours.predict(X) == reference.predict(X)).all()


SCRIPT = """
import json, sys
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_iris
from common.sklearn import GridSearchCV

class Nearest(ClassifierMixin, BaseEstimator):
    def __init__(self, power=2, weigh=None):
        self.power, self.weigh = power, weigh
    def fit(self, X, y):
        self.classes_ = np.unique(y)
        self.means_ = np.stack([X[y == c].mean(0) for c in self.classes_])
        return self
    def predict(self, X):
        return self.classes_[self.weigh(np.abs(X[:, None] - self.means_) ** self.power).sum(2).argmin(1)]

X, y = load_iris(return_X_y=True)
workers = int(sys.argv[1])
search = GridSearchCV(Nearest(weigh=lambda d: d + 0.0), {"power": [0.5, 1, 2]}, cv=3, workers=workers).fit(X, y)
again = GridSearchCV(Nearest(weigh=abs), {"power": [1]}, cv=3, workers=1, scoring=lambda e, X, y: 0.25).fit(X, y)
print(json.dumps([search.best_params_["power"], search.best_score_, again.best_score_, float(search.score(X, y))])
      + "\\n", end="")
"""


@pytest.mark.parametrize("ranks, workers", [(0, 2), pytest.param(2, 1, marks=pytest.mark.slow)])
def test_a_script_without_a_guard(program: Any, tmp_path: Path, ranks: int, workers: int) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = program(tmp_path / "script.py", workers, ranks=ranks, cwd=tmp_path)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == max(ranks, 1) and all(line == lines[0] for line in lines)
    assert lines[0][2] == 0.25 and lines[0][1] > 0.9


@pytest.mark.parametrize("workers", [0, 1])
def test_several_scores_and_train_scores(workers: int) -> None:
    arguments = {"scoring": ["accuracy", "f1_macro"], "refit": "f1_macro", "return_train_score": True, "cv": 3}
    grid = {"C": [0.01, 1.0]}
    reference = theirs.GridSearchCV(LogisticRegression(), grid, **arguments).fit(X, Y)
    same(GridSearchCV(LogisticRegression(), grid, workers=workers, **arguments).fit(X, Y), reference)


def test_random_candidates_are_scikit_learns() -> None:
    arguments = {"n_iter": 4, "random_state": 3, "cv": 3}
    space = {"max_depth": range(1, 9), "min_samples_leaf": range(1, 9)}
    tree = DecisionTreeClassifier(random_state=0)
    reference = theirs.RandomizedSearchCV(tree, space, **arguments).fit(X, Y)
    same(RandomizedSearchCV(tree, space, workers=0, **arguments).fit(X, Y), reference)


@pytest.mark.parametrize("with_scaler", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_grid_of_svc(monkeypatch: pytest.MonkeyPatch, with_scaler: bool, weighted: bool) -> None:
    """Solved together unless that is turned off; the same scores either way."""
    estimator: Any = SVC(tol=1e-6)
    grid: dict[str, Any] = GRID
    if with_scaler:
        estimator = Pipeline([("scale", StandardScaler()), ("svc", estimator)])
        grid = {"scale__with_mean": [True, False], **{f"svc__{name}": values for name, values in GRID.items()}}
    fit_params = {}
    if weighted:
        fit_params = {"svc__sample_weight" if with_scaler else "sample_weight": np.linspace(0.5, 2.0, len(Y))}
    reference = theirs.GridSearchCV(estimator, grid, cv=3).fit(X, Y, **fit_params)
    fits = []
    fit = SVC.fit
    monkeypatch.setattr(SVC, "fit", lambda self, *args, **kwargs: fits.append(1) or fit(self, *args, **kwargs))
    same(GridSearchCV(estimator, grid, cv=3, workers=0, return_train_score=False).fit(X, Y, **fit_params), reference)
    solved_together = not (with_scaler and weighted)
    assert (len(fits) == 1) == solved_together  # the refit
    fits.clear()
    same(GridSearchCV(estimator, grid, cv=3, workers=0, accelerate=False).fit(X, Y, **fit_params), reference)
    assert len(fits) == 1 + 3 * len(reference.cv_results_["params"])


def test_why_a_grid_is_not_solved_together_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    GridSearchCV(SVC(), {"kernel": ["linear", "rbf"]}, cv=3, workers=0, verbose=1).fit(X, Y)
    assert "3 of 6 fits are not solved as a grid: the kernel is 'linear', not 'rbf'" in capsys.readouterr().err


class Counting(TransformerMixin, BaseEstimator):
    """Writes a line for each fit."""

    def __init__(self, file: str, shift: float = 0.0):
        self.file, self.shift = file, shift

    def fit(self, X: Any, y: Any = None) -> Any:
        with open(self.file, "a") as file:
            file.write("fit\n")
        return self

    def transform(self, X: Any) -> Any:
        return X + self.shift


@pytest.mark.parametrize("last", [SVC(), LogisticRegression()])
def test_equal_transformers_are_fitted_once_for_each_fold(tmp_path: Path, last: Any) -> None:
    file = tmp_path / "fits"
    estimator = Pipeline([("count", Counting(str(file))), ("last", last)])
    grid = {"count__shift": [0.0, 1.0], "last__C": [0.1, 1.0, 10.0]}
    search = GridSearchCV(estimator, grid, cv=3, workers=0, refit=False).fit(X, Y)
    assert len(file.read_text().splitlines()) == 3 * 2
    reference = theirs.GridSearchCV(estimator, grid, cv=3, refit=False).fit(X, Y)
    assert table(search) == table(reference)


class Sleepy(ClassifierMixin, BaseEstimator):
    def __init__(self, naps: float = 0.0):
        self.naps = naps

    def fit(self, X: Any, y: Any) -> Any:
        if self.naps < 0:
            os._exit(3)
        time.sleep(self.naps)
        self.classes_ = np.unique(y)
        return self

    def predict(self, X: Any) -> Any:
        return np.full(len(X), self.classes_[0])


def test_a_candidate_that_never_ends_or_kills_its_worker_blocks_nothing() -> None:
    one_split = [(np.arange(0, 150, 2), np.arange(1, 150, 2))]
    search = GridSearchCV(
        Sleepy(),
        {"naps": [0.0, 3600.0, -1.0]},
        cv=one_split,
        workers=2,
        trial_timeout=2.0,
        error_score=-1.0,
        refit=False,
    )
    with pytest.warns(theirs._validation.FitFailedWarning, match="2 fits failed"):
        search.fit(X, Y)
    assert search.cv_results_["mean_test_score"].tolist()[1:] == [-1.0, -1.0]
    assert search.cv_results_["mean_test_score"][0] > 0.3


def test_a_folder_keeps_the_search_and_refuses_another(tmp_path: Path) -> None:
    def search(*penalties: float) -> GridSearchCV:
        return GridSearchCV(LogisticRegression(), {"C": penalties}, cv=3, workers=1, results=tmp_path / "r")

    first = search(0.1, 1.0).fit(X, Y)
    journal = journal_lines(tmp_path / "r")
    assert len(journal) == 6 and journal[0]["params"] == {"split": 0, "param_C": 0.1}
    same(search(0.1, 1.0).fit(X, Y), first)
    assert len(journal_lines(tmp_path / "r")) == 6
    with pytest.raises(UsageError, match="data_sha256"):
        search(0.1, 1.0).fit(X + 1.0, Y)
    with pytest.raises(UsageError, match="c00001/f0 with param_C = 1.0, this program asks for 2.0"):
        search(0.1, 2.0).fit(X, Y)


class GridOfMeans(ClassifierMixin, BaseEstimator):
    """Its own fit_grid: the documented protocol."""

    def __init__(self, label: int = 0):
        self.label = label

    def fit(self, X: Any, y: Any) -> Any:
        raise AssertionError("fitted alone")

    def fit_grid(
        self, candidates: Any, X: Any, y: Any, splits: Any, sample_weight: Any = None, parts: Any = None
    ) -> Iterator[Any]:
        for c, candidate in enumerate(candidates):
            for s, _ in enumerate(splits):
                model = GridOfMeans(**candidate)
                model.classes_ = np.unique(y)
                yield SimpleNamespace(candidate=c, split=s, model=model, error=None, seconds=0.0)

    def predict(self, X: Any) -> Any:
        return np.full(len(X), self.label)


def test_an_estimator_that_does_a_whole_grid() -> None:
    scoring = make_scorer(accuracy_score)
    search = GridSearchCV(GridOfMeans(), {"label": [0, 7]}, cv=3, workers=0, refit=False, scoring=scoring).fit(X, Y)
    assert search.cv_results_["mean_test_score"].round(6).tolist() == [0.333333, 0.0]


def test_an_error_is_raised_where_that_is_asked_for() -> None:
    for workers in (0, 1):
        search = GridSearchCV(
            LogisticRegression(), {"C": [-1.0]}, cv=2, workers=workers, error_score="raise", accelerate=False
        )
        with pytest.raises(ValueError, match="'C' parameter of LogisticRegression must be a float"):
            search.fit(X, Y)
