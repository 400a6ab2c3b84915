"""Grids of C and gamma on tables of moderate size: `kernel_svm.fit_grid` against scikit-learn's GridSearchCV.

    python -m benchmarks.gridsearch [--data iris breast_cancer digits]

7 values of C times 6 of gamma times 5 stratified folds on standardised samples. Both score all points, one thread, CPU
seconds of this process, in turn in one run. The grid solver's code is compiled before.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from sklearn import datasets
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from benchmarks.machine import circumstances, publish, table
from jit import LANES
from kernel_svm import fit_grid, warm_up

GRID = {"C": np.logspace(-2, 4, 7), "gamma": np.logspace(-4, 1, 6)}


def measure(name: str) -> dict[str, str]:
    """A row: seconds of both, and how many labels of how many fits differ."""
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    x = StandardScaler().fit_transform(x)
    splits = list(StratifiedKFold(5).split(x, y))
    begin = time.process_time()
    search = GridSearchCV(SVC(), GRID, cv=splits, refit=False).fit(x, y)
    theirs = time.process_time() - begin
    candidates = search.cv_results_["params"]
    expected = np.array([search.cv_results_[f"split{s}_test_score"] for s in range(len(splits))]).T
    found = np.empty(expected.shape)
    begin = time.process_time()
    for fitted in fit_grid(SVC(), candidates, x, y, splits):
        assert fitted.model is not None, fitted.error
        found[fitted.candidate, fitted.split] = fitted.model.score(fitted.x_validation, y[splits[fitted.split][1]])
    ours = time.process_time() - begin
    labels = np.rint((found - expected) * [len(validation) for _, validation in splits]).astype(int)
    return {
        "data": f"{name} {x.shape[0]} x {x.shape[1]}",
        "fit_grid (s)": f"{ours:.2f}",
        "scikit-learn (s)": f"{theirs:.2f}",
        "faster by": f"{theirs / ours:.1f}",
        "fits whose score differs": f"{(labels != 0).sum()} of {labels.size}, by {np.abs(labels).max()} labels at most",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=["iris", "breast_cancer", "digits"], help="of scikit-learn")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep the table in this file")
    settings = parser.parse_args()
    warm_up()
    facts = circumstances("scikit-learn", "numba", "numpy", threads=1, lanes=LANES)
    publish(f"{facts}\n\n{table([measure(name) for name in settings.data])}", settings.results)


if __name__ == "__main__":
    main()
