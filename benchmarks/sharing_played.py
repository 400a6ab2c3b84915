"""Searches that share fits, played: how busy slots are, and what memory in common would spare.

    python -m benchmarks.sharing_played [--results FILE]

The real coordinator plays with slots of one node that take as long as `mpitune.sklearn.costs` expects. "busy" is the
share of the time of all slots in which they work. "work" is the work of all slots over the work of a single slot: the
parts of a divided batch compute their common work again. "in common" is the best time if workers of the node could use
each other's fitted transformers and samples, over the time without that. A worker then reads them at no cost. If
another worker is about to have them, it waits or computes them itself, whichever is sooner. Batches are divided as now,
or as if they shared nothing, whichever ends sooner.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.feature_selection import SelectFromModel, SelectKBest
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.machine import circumstances, publish, table
from benchmarks.svm_division import play
from mpitune.engine.queue import Costs
from mpitune.sklearn import GridSearchCV
from mpitune.sklearn.costs import expected, shape_of
from mpitune.sklearn.fit_graph import StepFit
from mpitune.sklearn.folds import Folds
from mpitune.sklearn.formulas import Shape, after
from mpitune.sklearn.groups import graph_of
from mpitune.trial import Batch

SLOTS = (2, 3, 4, 8, 16, 32)


class Caught(Exception):
    """The tasks of a search are known."""


class Catches(GridSearchCV):
    """A search that stops where its tasks would be evaluated."""

    def _run(self, tasks: Any) -> Any:
        self.tasks = tasks
        raise Caught


def study_of(
    estimator: Any, grid: Any, n: int, p: int, cv: int = 5, classes: int = 10, how: dict[str, Any] | None = None
) -> Folds:
    """The study of a search, whose samples are random numbers. how: other arguments of the search."""
    y: Any = np.arange(n) % classes if classes > 1 else np.linspace(0, 1, n)
    search = Catches(estimator, grid, cv=cv, workers=0, refit=False, **(how or {}))
    try:
        search.fit(np.random.default_rng(0).random((n, p)), y)
    except Caught:
        return Folds(search, search.tasks)
    raise AssertionError("a search without tasks")


TREES = [10, 20, 30, 40, 50, 60, 70]
FOREST = ExtraTreesClassifier(200, random_state=0)
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
    "dear filter": (
        Pipeline([("trees", SelectFromModel(FOREST)), ("knn", KNeighborsClassifier())]),
        {"trees__threshold": ["mean", "median"], "knn__n_neighbors": list(range(1, 31)), "knn__p": [1, 2]},
        1797, 64, 3,
    ),
    "dear step": (
        Pipeline([("pca", PCA(svd_solver="full")), ("knn", KNeighborsClassifier())]),
        {"knn__n_neighbors": list(range(1, 31))},
        3000, 784, 5, 10, {"share": False},
    ),
}  # fmt: skip


def batches_of(name: str) -> tuple[Folds, list[Batch], Callable[[Batch, float], float]]:
    """The study of a row, its batches, and the seconds that a batch is expected to take."""
    study = study_of(*ROWS[name])
    tasks = {task.key: task for task in study.tasks}

    def seconds(batch: Batch, begin: float) -> float:
        if study.sharing.share:
            members = {tasks[trial.key].candidate: tasks[trial.key] for trial in batch}
            return expected(graph_of(members, study.sharing), shape_of(study.tasks[0])).shared
        return study.shared_cost(batch, 1) + sum(map(study.cost, batch))

    (search,) = study.searches()
    batches = list(next(search))
    return study, batches, seconds


class InCommon:
    """Seconds of a batch where the node's workers have each other's transformers and samples."""

    def __init__(self, study: Folds):
        self._study, self._tasks = study, {task.key: task for task in study.tasks}
        self._ready: dict[tuple[Any, ...], float] = {}  # when somebody has them
        self._now = 0.0

    def __call__(self, batch: Batch, begin: float) -> float:
        members = [self._tasks[trial.key] for trial in batch]
        split, self._now = members[0].split, begin
        if self._study.sharing.share:
            for fit in graph_of({task.candidate: task for task in members}, self._study.sharing):
                self._go(fit, shape_of(members[0]), (split,))
        else:
            self._have((split,), self._study.shared_cost(batch, 1))
            self._now += sum(map(self._study.cost, batch))
        return self._now - begin

    def _go(self, fit: StepFit, shape: Shape, path: tuple[Any, ...]) -> None:
        alone = replace(fit, settings=tuple(replace(setting, fits=()) for setting in fit.settings))
        seconds, path = expected((alone,), shape).shared, (*path, fit.name, repr(fit.common))
        if fit.settings[0].fits:
            self._have(path, seconds)
        else:
            self._now += seconds
        for setting in fit.settings:
            for below in setting.fits:
                self._go(below, after(fit.model, setting.values, shape), (*path, repr(setting.values)))

    def _have(self, path: tuple[Any, ...], seconds: float) -> None:
        there = self._ready.get(path, math.inf)
        self._now = min(self._now + seconds, max(self._now, there))
        self._ready[path] = min(there, self._now)


def costs_of(study: Folds, n_slots: int) -> Costs:
    return Costs(study.cost, study.split_batch, lambda batch: study.shared_cost(batch, n_slots), study.surprise())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep the table in this file")
    settings = parser.parse_args()
    rows = []
    for name in ROWS:
        study, batches, seconds = batches_of(name)
        whole = sum(seconds(batch, 0.0) for batch in batches)
        for n_slots in SLOTS:
            end, work = play(n_slots, batches, costs_of(study, n_slots), seconds)
            freely = Costs(study.cost, study.split_batch, lambda batch: 1e-6, 1.0)  # as if nothing was shared
            kept = min(play(n_slots, batches, c, InCommon(study))[0] for c in (costs_of(study, n_slots), freely))
            rows.append({
                "search": name, "one slot (s)": f"{whole:.1f}", "slots": n_slots,
                "faster by": f"{whole / end:.1f}", "busy": f"{work / (n_slots * end):.0%}",
                "work": f"{work / whole:.2f}", "in common": f"{kept / end:.2f}",
            })  # fmt: skip
    publish(f"{circumstances('scikit-learn', searches=len(ROWS))}\n\n{table(rows)}", settings.results)


if __name__ == "__main__":
    main()
