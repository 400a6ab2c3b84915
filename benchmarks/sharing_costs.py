"""What fits take beside what `mpitune.sklearn.costs` expects, for each class that has a formula.

    python -m benchmarks.sharing_costs [--rows Ridge PCA ...] [--results FILE]

Each search runs in one process, on one thread, sharing and not, at three sizes: few samples, many, and many features.
Rows of whole numbers have samples rounded to about ten values. The columns say how many times the expected CPU
seconds it took, with the seconds in brackets.
"""

from __future__ import annotations

import argparse
import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # before numpy comes

import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.model_selection as theirs
from sklearn.datasets import make_classification, make_regression
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.feature_selection import SelectFromModel, SelectKBest, VarianceThreshold
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression, Ridge, RidgeClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from benchmarks.machine import circumstances, load, publish, table
from mpitune.sklearn import GridSearchCV

SIZES = ((500, 20), (3000, 20), (1500, 300))
FOLDS = 3
Row = tuple[Any, dict[str, Any], dict[str, Any]]  # estimator, grid, other arguments of the search


def before(step: Any, grid: dict[str, Any]) -> Row:
    """A transformer, with a last step that costs next to nothing."""
    return Pipeline([("step", step), ("last", GaussianNB())]), {f"step__{key}": v for key, v in grid.items()}, {}


PENALTIES = list(np.logspace(-3, 3, 20))
STAGES = [3, 6, 9, 12]
NUMBERS = ("RandomForestRegressor", "GradientBoostingRegressor", "Ridge", "KernelRidge", "Gaussian", "Lasso", "Elastic")
ROWS: dict[str, Callable[[], Row]] = {
    "KNeighbors": lambda: (KNeighborsClassifier(), {"n_neighbors": list(range(1, 31, 3))}, {}),
    "KNeighbors, manhattan": lambda: (
        KNeighborsClassifier(metric="manhattan", algorithm="brute"), {"n_neighbors": list(range(1, 31, 3))}, {}
    ),
    "KNeighbors, whole numbers": lambda: ROWS["KNeighbors"](),
    "KNeighbors, manhattan, whole numbers": lambda: ROWS["KNeighbors, manhattan"](),
    "GradientBoosting, whole numbers": lambda: ROWS["GradientBoosting"](),
    "XGBoost, whole numbers": lambda: _xgboost(),
    "RandomForest": lambda: (RandomForestClassifier(random_state=0), {"n_estimators": STAGES}, {}),
    "RandomForestRegressor": lambda: (RandomForestRegressor(random_state=0), {"n_estimators": [5, 10]}, {}),
    "ExtraTrees": lambda: (ExtraTreesClassifier(random_state=0), {"n_estimators": STAGES}, {}),
    "Bagging": lambda: (BaggingClassifier(random_state=0), {"n_estimators": [5, 10]}, {}),
    "AdaBoost": lambda: (AdaBoostClassifier(random_state=0), {"n_estimators": STAGES}, {}),
    "GradientBoosting": lambda: (GradientBoostingClassifier(random_state=0), {"n_estimators": [5, 10]}, {}),
    "GradientBoostingRegressor": lambda: (GradientBoostingRegressor(random_state=0), {"n_estimators": STAGES}, {}),
    "HistGradientBoosting": lambda: (HistGradientBoostingClassifier(random_state=0), {"max_iter": STAGES}, {}),
    "LightGBM": lambda: _lightgbm(),
    "XGBoost": lambda: _xgboost(),
    "Ridge": lambda: (Ridge(), {"alpha": PENALTIES}, {}),
    "RidgeClassifier": lambda: (RidgeClassifier(), {"alpha": PENALTIES}, {}),
    "KernelRidge": lambda: (KernelRidge(kernel="rbf"), {"alpha": PENALTIES, "gamma": [0.01, 0.1]}, {}),
    "GaussianProcess": lambda: (
        GaussianProcessRegressor(RBF(3.0, "fixed")), {"alpha": list(np.logspace(-3, 1, 10))}, {}
    ),
    "LinearDiscriminant": lambda: (
        LinearDiscriminantAnalysis(solver="lsqr"), {"shrinkage": [0.1, 0.2, 0.3, 0.5, 0.8]}, {}
    ),
    "Lasso": lambda: (Lasso(), {"alpha": [0.1, 1.0, 10.0]}, {"share": "tolerance"}),
    "ElasticNet": lambda: (ElasticNet(), {"alpha": [0.1, 1.0, 10.0]}, {"share": "tolerance"}),
    "LogisticRegression": lambda: (LogisticRegression(), {"C": [0.01, 0.1, 1.0]}, {"share": "tolerance"}),
    "SVC": lambda: (SVC(), {"C": [0.1, 1.0, 10.0], "gamma": [0.01, 0.1]}, {}),
    "PCA": lambda: before(PCA(svd_solver="full"), {"n_components": [3, 6, 10, 20]}),
    "StandardScaler": lambda: before(StandardScaler(), {"with_mean": [True, False]}),
    "SelectKBest": lambda: before(SelectKBest(), {"k": [3, 6, 10, 20]}),
    "VarianceThreshold": lambda: before(VarianceThreshold(), {"threshold": [0.1, 0.2, 0.3]}),
    "SelectFromModel": lambda: before(
        SelectFromModel(ExtraTreesClassifier(50, random_state=0)), {"threshold": ["mean", "median"]}
    ),
}  # fmt: skip


def _lightgbm() -> Row:
    from lightgbm import LGBMClassifier

    return LGBMClassifier(n_jobs=1, verbose=-1), {"n_estimators": STAGES}, {}


def _xgboost() -> Row:
    from xgboost import XGBClassifier

    return XGBClassifier(n_jobs=1), {"n_estimators": STAGES}, {}


def seconds_of(search: Any, X: Any, y: Any) -> float:
    begin = time.process_time()
    search.fit(X, y)
    return time.process_time() - begin


def measure(name: str, n: int, p: int) -> dict[str, str]:
    model, grid, how = ROWS[name]()
    number = name.startswith(NUMBERS) and name != "RidgeClassifier"
    few = min(p, 20)
    X, y = (
        make_regression(n, p, n_informative=few // 2, noise=10.0, random_state=0)
        if number
        else make_classification(n, p, n_informative=few // 2, n_classes=4, random_state=0)
    )
    if "whole" in name:
        X = np.rint(X)
    common: dict[str, Any] = {"cv": FOLDS, "refit": False}
    smallest = {key: values[:2] for key, values in grid.items()}
    GridSearchCV(model, smallest, workers=0, **common, **how).fit(X[:200], y[:200])  # imports
    ours = GridSearchCV(model, grid, workers=0, **common, **how)
    shared = seconds_of(ours, X, y)
    alone = seconds_of(theirs.GridSearchCV(model, grid, **common), X, y)
    plan = ours.plan_
    return {
        "class": name,
        "samples": f"{n} x {p}",
        "sharing": f"{shared / plan.seconds:.1f} ({shared:.2f})",
        "one by one": f"{alone / plan.seconds_alone:.1f} ({alone:.2f})",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    installed = [
        name
        for name in ROWS
        if find_spec({"LightGBM": "lightgbm", "XGBoost": "xgboost"}.get(name.partition(",")[0], "sklearn"))
    ]
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=installed)
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep the table in this file")
    settings = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for name in settings.rows:
        for n, p in SIZES:
            rows.append(measure(name, n, p))
            print(*rows[-1].values(), sep="  ", flush=True)
    facts = circumstances("scikit-learn", "numpy", "scipy", threads=1, load=load())
    publish(f"{facts}\n\n{table(rows)}", settings.results)


if __name__ == "__main__":
    main()
