"""CPU seconds of searches that share fits, against scikit-learn's GridSearchCV, on one thread, scores side by side.

    python -m benchmarks.sharing [--rows kNN forest ...] [--data FOLDER] [--results FILE]

Each row runs both in turns in one process, without workers, with the same folds (3 for ensembles and Pipelines, 5 for
the others), and without the refit; "faster by" is the median over the turns of the ratio of their CPU seconds. For
ensembles the fits of the largest and of all sizes are timed alone; "bound", their ratio, is what sharing the fits can
bring at most. Pipelines have two peers more, where they are installed: joblib.Memory, scikit-learn's own way to keep
fitted steps (on disk), and dask-ml, which merges equal steps. The rows of MNIST, above a
minute, run only where they are named.
"""

from __future__ import annotations

import argparse
import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # before numpy comes

import tempfile
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.model_selection as theirs
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.machine import circumstances, publish, table
from common.data import load as load_images
from mpitune.sklearn import GridSearchCV

Row = tuple[Any, dict[str, Any], Any, Any, int]
DATA = [Path("data")]  # the folder with MNIST


def digits(n: int | None = None) -> tuple[Any, Any]:
    X, y = load_digits(return_X_y=True)
    return X[:n], y[:n]


TREES = [10, 20, 30, 40, 50, 60, 70]
STAGES = [10, 20, 30, 40]


def ensemble(model: Any, number: str, values: list[int], other: str, others: list[Any]) -> Row:
    return (model, {number: values, other: others}, *digits(600), 3)


def lightgbm() -> Row:
    from lightgbm import LGBMClassifier

    return ensemble(LGBMClassifier(n_jobs=1, verbose=-1), "n_estimators", STAGES, "learning_rate", [0.05, 0.1])


def xgboost() -> Row:
    from xgboost import XGBClassifier

    return ensemble(XGBClassifier(n_jobs=1), "n_estimators", STAGES, "learning_rate", [0.05, 0.1])


def pca_and_neighbours(X: Any, y: Any, solver: str) -> Row:
    model = Pipeline([("scale", StandardScaler()), ("pca", PCA(svd_solver=solver)), ("knn", KNeighborsClassifier())])
    grid = {"pca__n_components": [5, 10, 15, 20, 30, 40], "knn__n_neighbors": list(range(1, 20, 2))}
    return model, grid, X, y, 3


def mnist(solver: str) -> Row:
    images = load_images("mnist", DATA[0], train_size=5000)
    X = images["train_images"].reshape(5000, -1).astype(np.float64)
    return pca_and_neighbours(X, images["train_labels"], solver)


NEIGHBOURS = {
    "n_neighbors": list(range(1, 31)),
    "weights": ["uniform", "distance"],
    "metric": ["euclidean", "manhattan"],
}
ROWS: dict[str, Callable[[], Row]] = {
    "kNN": lambda: (KNeighborsClassifier(), NEIGHBOURS, *digits(), 5),
    "forest": lambda: ensemble(RandomForestClassifier(random_state=0), "n_estimators", TREES, "max_depth", [5, None]),
    "extra": lambda: ensemble(ExtraTreesClassifier(random_state=0), "n_estimators", TREES, "max_depth", [5, None]),
    "boosting": lambda: ensemble(
        GradientBoostingClassifier(random_state=0, max_depth=2), "n_estimators", STAGES, "learning_rate", [0.05, 0.1]
    ),
    "histograms": lambda: ensemble(
        HistGradientBoostingClassifier(random_state=0), "max_iter", STAGES, "learning_rate", [0.05, 0.1]
    ),
    "lightgbm": lightgbm,
    "xgboost": xgboost,
    "pipeline": lambda: pca_and_neighbours(*digits(900), "full"),
    "mnist": lambda: mnist("covariance_eigh"),
    "mnist-full": lambda: mnist("full"),
}
LONG = ("mnist", "mnist-full")  # above a minute


def searched(search: Any, X: Any, y: Any) -> tuple[Any, float]:
    """The fitted search and its CPU seconds."""
    begin = time.process_time()
    search.fit(X, y)
    return search, time.process_time() - begin


def merged(model: Any, grid: Any, X: Any, y: Any, arguments: Any) -> str:
    """CPU seconds of dask-ml's search in this thread."""
    try:
        kind = import_module("dask_ml.model_selection").GridSearchCV
    except ImportError:
        return "not installed"
    return f"{searched(kind(clone(model), grid, scheduler='synchronous', **arguments), X, y)[1]:.2f}"


def alone(model: Any, grid: Any, number: str, X: Any, y: Any, splits: Any) -> tuple[float, float]:
    """CPU seconds of the fits of the largest ensembles alone, and of all fits alone: no scores, no search."""
    largest = total = 0.0
    for parameters in theirs.ParameterGrid(grid):
        for train, _ in splits:
            one = clone(model).set_params(**parameters)
            begin = time.process_time()
            one.fit(X[train], y[train])
            spent = time.process_time() - begin
            total += spent
            largest += spent * (parameters[number] == max(grid[number]))
    return largest, total


def paired(sharing: Any, single: Any, X: Any, y: Any, repeats: int) -> tuple[Any, Any, np.ndarray]:
    """Both searches, fitted in turns, and their CPU seconds, (2, n_repeats); one turn where that is above a minute.

    The first of a process pays for memory that the others find ready, so each goes first in turn.
    """
    seconds: list[tuple[float, float]] = []
    while not seconds or (len(seconds) < repeats and sum(seconds[0]) < 60):
        pair = [sharing, single]
        order = (0, 1) if len(seconds) % 2 else (1, 0)
        spent = [0.0, 0.0]
        for which in order:
            pair[which], spent[which] = searched(clone(pair[which]), X, y)
        sharing, single = pair
        seconds.append((spent[0], spent[1]))
    return sharing, single, np.array(seconds).T


def measure(name: str, repeats: int) -> dict[str, str]:
    """A row of the table."""
    model, grid, X, y, folds = ROWS[name]()
    splits = list(theirs.KFold(folds, shuffle=True, random_state=0).split(X))
    arguments: dict[str, Any] = {"cv": splits, "refit": False}
    small = {key: values[:2] for key, values in grid.items()}
    GridSearchCV(clone(model), small, cv=2, refit=False, workers=0).fit(X[:200], y[:200])  # imports
    ours, reference, seconds = paired(
        GridSearchCV(model, grid, workers=0, **arguments), theirs.GridSearchCV(model, grid, **arguments), X, y, repeats
    )
    memory = dask = "-"
    if isinstance(model, Pipeline):
        with tempfile.TemporaryDirectory() as folder:
            kept, cached = searched(
                theirs.GridSearchCV(clone(model).set_params(memory=folder), grid, **arguments), X, y
            )
        memory = f"{cached:.2f}"
        assert kept.best_score_ == reference.best_score_
        dask = merged(model, grid, X, y, arguments)
    names = [f"split{split}_test_score" for split in range(folds)]
    difference = max(float(np.abs(ours.cv_results_[n] - reference.cv_results_[n]).max()) for n in names)
    number = next((key for key in grid if key in ("n_estimators", "max_iter")), None)
    largest, fits = (0.0, 0.0) if number is None else alone(model, grid, number, X, y, splits)
    ratios = seconds[1] / seconds[0]
    return {
        "search": f"{name}, {X.shape[0]} x {X.shape[1]}",
        "candidates": str(len(reference.cv_results_["params"])),
        "sharing (s)": f"{np.median(seconds[0]):.2f}",
        "GridSearchCV (s)": f"{np.median(seconds[1]):.2f}",
        "faster by": f"{np.median(ratios):.1f}",
        "in turns": " ".join(f"{ratio:.1f}" for ratio in ratios),
        "largest fits / all fits alone (s)": f"{largest:.2f} / {fits:.2f}" if largest else "-",
        "bound": f"{fits / largest:.1f}" if largest else "-",
        "with joblib.Memory (s)": memory,
        "dask-ml (s)": dask,
        "best score": f"{ours.best_score_:.6f} / {reference.best_score_:.6f}",
        "largest difference of a score": f"{difference:.1g}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=[name for name in ROWS if name not in LONG])
    parser.add_argument("--repeats", type=int, default=3, help="turns of both searches; their medians are in the table")
    parser.add_argument("--data", type=Path, default=DATA[0], metavar="DIR", help="with MNIST")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep the table in this file")
    settings = parser.parse_args()
    DATA[0] = settings.data
    warnings.simplefilter("ignore")
    rows = []
    for name in settings.rows:
        rows.append(measure(name, settings.repeats))
        print(rows[-1], flush=True)
    facts = circumstances("scikit-learn", "numpy", "scipy", threads=1)
    publish(f"{facts}\n\n{table(rows)}", settings.results)


if __name__ == "__main__":
    main()
