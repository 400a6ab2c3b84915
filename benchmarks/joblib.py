"""What takes `n_jobs`, by the backend "mpitune" beside joblib's own processes (loky), with two workers each.

    python -m benchmarks.joblib [--turns 5] [--results FILE]

Twelve of scikit-learn's functions on digits, and 1,000 calls that do nothing. Both take turns; medians are shown, of
loky with workers that are there. Equal: both return what one process returns, bit for bit. The calls are also made by
dask and by ray, where distributed and ray are installed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.ensemble import BaggingClassifier, StackingClassifier
from sklearn.feature_selection import RFECV, SequentialFeatureSelector
from sklearn.inspection import permutation_importance
from sklearn.model_selection import (
    cross_val_predict,
    cross_val_score,
    learning_curve,
    permutation_test_score,
    validation_curve,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

import mpitune.joblib  # noqa: F401 - registers the backend
from benchmarks.machine import circumstances, load, publish, table

X, Y = load_digits(return_X_y=True)
TREE, NEAR = DecisionTreeClassifier(random_state=0), KNeighborsClassifier()
BACKENDS = "mpitune", "loky"

FUNCTIONS: dict[str, Callable[[], Any]] = {
    "cross_val_score": lambda: cross_val_score(TREE, X, Y, cv=10),
    "cross_val_predict": lambda: cross_val_predict(TREE, X, Y, cv=10),
    "RFECV": lambda: RFECV(TREE, step=4).fit(X, Y).cv_results_["mean_test_score"],
    "learning_curve": lambda: learning_curve(TREE, X, Y, shuffle=True, random_state=0)[2],
    "validation_curve": lambda: validation_curve(TREE, X, Y, param_name="max_depth", param_range=[2, 4, 8])[1],
    "permutation_importance": lambda: permutation_importance(TREE.fit(X, Y), X, Y, random_state=0).importances,
    "permutation_test_score": lambda: permutation_test_score(TREE, X, Y, n_permutations=20, random_state=0)[1],
    "StackingClassifier": lambda: StackingClassifier([("tree", TREE), ("near", NEAR)], NEAR).fit(X, Y).predict_proba(X),
    "BaggingClassifier": lambda: BaggingClassifier(TREE, 40, random_state=0).fit(X, Y).predict_proba(X),
    "CalibratedClassifierCV": lambda: CalibratedClassifierCV(TREE).fit(X, Y).predict_proba(X),
    "OneVsRestClassifier": lambda: OneVsRestClassifier(TREE).fit(X, Y).predict(X),
    "SequentialFeatureSelector": lambda: SequentialFeatureSelector(TREE, n_features_to_select=1).fit(X, Y).support_,
}


def others() -> list[str]:
    """The backends of dask and of ray where they are installed, with two workers each, which have begun."""
    found = []
    if find_spec("distributed"):
        from distributed import Client

        Client(n_workers=2, threads_per_worker=1, dashboard_address=None)
        found.append("dask")
    if find_spec("ray"):
        import ray
        from ray.util.joblib import register_ray

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        register_ray()
        found.append("ray")
    return found


def timed(backend: str, function: Callable[[], Any]) -> tuple[float, Any]:
    """How long it takes with this backend, and what it returns."""
    with joblib.parallel_config(backend, n_jobs=2):
        begun = time.perf_counter()
        result = function()
        return time.perf_counter() - begun, result


def functions(turns: int) -> list[dict[str, Any]]:
    """A row for each of scikit-learn's functions."""
    rows = []
    for name, function in FUNCTIONS.items():
        _, right = timed("sequential", function)
        took: dict[str, list[float]] = {}
        equal = True
        for turn in range(turns + 1):
            for backend in BACKENDS:
                seconds, result = timed(backend, function)
                took.setdefault(f"{backend}, s", []).extend([seconds] * bool(turn))
                equal &= np.array_equal(result, right)
        medians = {key: f"{statistics.median(took[key]):.2f}" for key in took}
        rows.append({"function": name, **medians, "equal": "yes" if equal else "NO"})
    return rows


def _nothing(n: int, batch_size: int | str) -> None:
    joblib.Parallel(batch_size=batch_size)(joblib.delayed(abs)(-number) for number in range(n))


def calls(turns: int, n: int = 1000) -> list[dict[str, Any]]:
    """Rows about calls that do nothing, by workers that are there."""
    rows, backends = [], [*BACKENDS, *others()]
    for batch_size in (1, "auto"):
        took: dict[str, list[float]] = {}
        for turn in range(turns + 1):
            for backend in backends:
                seconds, _ = timed(backend, partial(_nothing, n, batch_size))
                took.setdefault(f"{backend}, ms a call", []).extend([1000 * seconds / n] * bool(turn))
        rows.append({"batch_size": batch_size, **{key: f"{statistics.median(all_):.3f}" for key, all_ in took.items()}})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5, help="runs of each (default 5)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep the tables here")
    arguments = parser.parse_args()
    before = load()
    tables = [table(calls(arguments.turns)), table(functions(arguments.turns))]
    facts = circumstances("scikit-learn", "numpy", "joblib", n=arguments.turns, load=before)
    publish("\n\n".join([facts, *tables]), arguments.results)


if __name__ == "__main__":
    main()
