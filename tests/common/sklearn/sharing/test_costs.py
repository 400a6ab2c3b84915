"""What fits are expected to take: plans say it, and the coordinator keeps slots busy by it, and fits shared."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.decomposition import PCA
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_selection import SelectKBest
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from benchmarks.svm_division import play
from common.engine.queue import Costs
from common.sklearn import GridSearchCV
from common.sklearn.costs import expected
from common.sklearn.folds import Folds
from common.sklearn.grids import graph_of, shape_of
from common.trial import Batch


class _Caught(Exception):
    pass


class _Catches(GridSearchCV):
    """A search that stops where its tasks would be evaluated."""

    def _run(self, tasks: Any) -> Any:
        self.tasks = tasks
        raise _Caught


def study_of(estimator: Any, grid: Any, n: int, p: int, cv: int = 5, classes: int = 10) -> Folds:
    """The study of a search, whose samples are of that size and all zero."""
    y: Any = np.arange(n) % classes if classes > 1 else np.linspace(0, 1, n)
    search = _Catches(estimator, grid, cv=cv, workers=0, refit=False)
    with pytest.raises(_Caught):
        search.fit(np.zeros((n, p)), y)
    return Folds(search, search.tasks)


TREES = [10, 20, 30, 40, 50, 60, 70]
ROWS: dict[str, Any] = {
    "kNN": (
        KNeighborsClassifier(),
        {"n_neighbors": list(range(1, 31)), "weights": ["uniform", "distance"], "metric": ["euclidean", "manhattan"]},
        1797, 64,
    ),
    "forest": (RandomForestClassifier(random_state=0), {"n_estimators": TREES, "max_depth": [5, None]}, 1797, 64),
    "boosting": (
        GradientBoostingClassifier(random_state=0),
        {"n_estimators": [25, 50, 75, 100], "learning_rate": [0.05, 0.1]},
        1797, 64,
    ),
    "histograms": (
        HistGradientBoostingClassifier(random_state=0),
        {"max_iter": [25, 50, 75, 100], "learning_rate": [0.05, 0.1]},
        1797, 64,
    ),
    "kernel ridge": (
        KernelRidge(kernel="rbf"),
        {"alpha": list(np.logspace(-3, 2, 25)), "gamma": [0.003, 0.01, 0.03]},
        1500, 20, 5, 1,
    ),
    "ridge": (Ridge(), {"alpha": list(np.logspace(-3, 4, 50))}, 20_000, 500, 5, 1),
    "pipeline": (
        Pipeline([("scale", StandardScaler()), ("pca", PCA(svd_solver="full")), ("knn", KNeighborsClassifier())]),
        {"pca__n_components": [5, 10, 15, 20, 30, 40], "knn__n_neighbors": list(range(1, 20, 2))},
        5000, 784, 3,
    ),
    "three steps": (
        Pipeline([("select", SelectKBest()), ("pca", PCA(svd_solver="full")), ("ridge", RidgeClassifier())]),
        {
            "select__k": [30, 35, 40, 45, 50],
            "pca__n_components": [5, 10, 15, 20, 25],
            "ridge__alpha": list(np.logspace(-2, 3, 8)),
        },
        1797, 64, 3,
    ),
}  # fmt: skip


def batches_of(name: str) -> tuple[Folds, list[Batch], Callable[[Batch], float]]:
    """The study of a row, its batches, and the seconds that a batch is expected to take."""
    study = study_of(*ROWS[name])
    tasks = {task.key: task for task in study.tasks}

    def seconds(batch: Batch) -> float:
        members = {tasks[trial.key].candidate: tasks[trial.key] for trial in batch}
        return expected(graph_of(members, study.sharing), shape_of(study.tasks[0])).shared

    (search,) = study.searches()
    batches = list(next(search))
    return study, batches, seconds


@pytest.mark.parametrize("n_slots", [2, 3])
@pytest.mark.parametrize("name", ROWS)
def test_slots_are_busy_and_fits_are_shared(name: str, n_slots: int) -> None:
    """The coordinator plays with slots that take as long as expected."""
    study, batches, seconds = batches_of(name)
    whole = sum(map(seconds, batches))
    costs = Costs(study.cost, study.split_batch, lambda batch: study.shared_cost(batch, n_slots), study.surprise())
    assert play(1, batches, costs, seconds) == pytest.approx((whole, whole))  # one slot divides nothing
    end, work = play(n_slots, batches, costs, seconds)
    assert work / (n_slots * end) > 0.82, (end, work, whole)
    assert work < 1.25 * whole, "recomputed in vain"
    assert end < 1.31 * whole / n_slots
    if name in ("kernel ridge", "three steps", "boosting", "histograms"):
        assert work / (n_slots * end) > 0.9


@pytest.mark.parametrize(("name", "n_slots"), [("kernel ridge", 3), ("kernel ridge", 2), ("pipeline", 6), ("ridge", 2)])
def test_a_division_ends_sooner_although_it_computes_more(name: str, n_slots: int) -> None:
    study, batches, seconds = batches_of(name)
    shared = Costs(study.cost, study.split_batch, lambda batch: study.shared_cost(batch, n_slots), study.surprise())
    end, work = play(n_slots, batches, shared, seconds)
    undivided, least = play(n_slots, batches, Costs(study.cost), seconds)
    assert end < 0.95 * undivided and work > least


def test_costs_of_candidates_add_up_to_the_plan() -> None:
    """A batch with what it shares costs what its graph does; so do its parts, with what they compute again."""
    for name in ROWS:
        study = study_of(*ROWS[name])
        (search,) = study.searches()
        batch = next(search)[0]
        tasks = {task.key: task for task in study.tasks}
        members = {tasks[trial.key].candidate: tasks[trial.key] for trial in batch}
        found = expected(graph_of(members, study.sharing), shape_of(study.tasks[0]))
        once = sum(found.once.values()) if len(found.once) == 1 else 0.0
        assert found.above + once + sum(found.of.values()) == pytest.approx(found.shared)
        assert study.shared_cost(batch, 2) == pytest.approx(found.above + once)
        assert found.shared < found.alone
        assert sum(map(study.cost, batch)) == pytest.approx(sum(found.of.values()))
        parts = study.split_batch(batch)
        assert len(parts) > 1 and sorted(t.key for part in parts for t in part) == sorted(t.key for t in batch)


class _Own(ClassifierMixin, BaseEstimator):
    def __init__(self, a: int = 1):
        self.a = a

    def fit(self, X: Any, y: Any) -> Any:
        return self


def test_whatever_is_searched_has_a_cost() -> None:
    """Values that are none, steps that do nothing, classes that nobody knows, grids of SVC."""
    pipe = Pipeline([("scale", StandardScaler()), ("model", SVC())])
    for model, grid in (
        (_Own(), {"a": [1, "x", None]}),
        (KNeighborsClassifier(), {"n_neighbors": [0, None, "x", 3.5, np.nan]}),
        (pipe, {"scale": ["passthrough", StandardScaler()], "model": [SVC(C=2), RidgeClassifier(), "passthrough"]}),
        (SVC(), {"C": [1, 2], "gamma": [0.1, "scale"]}),
        (RandomForestClassifier(random_state=0), {"max_depth": [None, -1, 3], "n_estimators": [1, -5]}),
    ):
        study = study_of(model, grid, 60, 4)
        (search,) = study.searches()
        for batch in next(search):
            assert all(0 <= study.cost(trial) < 1 for trial in batch)
            assert study.shared_cost(batch, 2) >= 0 and study.split_batch(batch)
