"""Grids of C and gamma on tables of moderate size: `kernel_svm.fit_grid` against scikit-learn's GridSearchCV.

    python -m benchmarks.gridsearch [--data iris breast_cancer digits digits16 four_classes flipped]

7 values of C times 6 of gamma times 5 stratified folds on standardised samples; digits16: 6 x 6 from 10^-3 to 10^2 on
digits divided by 16. All score all points, one thread, CPU seconds of this process, in turn in one run. The peers are
GridSearchCV with scikit-learn's SVC and with that of scikit-learn-intelex, and, for fewer fits, scikit-learn's
HalvingGridSearchCV. The grid solver's code is compiled before.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import datasets
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.model_selection import GridSearchCV, HalvingGridSearchCV, StratifiedKFold
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from benchmarks.machine import circumstances, publish, table
from jit import LANES
from kernel_svm import fit_grid, warm_up

GRID = {"C": np.logspace(-2, 4, 7), "gamma": np.logspace(-4, 1, 6)}
WIDE = {"C": np.logspace(-3, 2, 6), "gamma": np.logspace(-3, 2, 6)}


def load(name: str, size: int | None) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Samples, labels and grid; the first `size` samples of a synthetic table."""
    if name == "digits16":
        x, y = datasets.load_digits(return_X_y=True)
        return x / 16, y, WIDE
    if name == "four_classes":
        x, y = datasets.make_classification(4000, 20, n_informative=8, n_classes=4, random_state=0)
    elif name == "flipped":
        x, y = datasets.make_classification(8000, 30, n_informative=10, flip_y=0.05, random_state=0)
    else:
        x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        size = None
    return StandardScaler().fit_transform(x[:size]), y[:size], GRID


def searched(search: Any, x: np.ndarray, y: np.ndarray) -> tuple[Any, float]:
    """The fitted search and its CPU seconds."""
    begin = time.process_time()
    search.fit(x, y)
    return search, time.process_time() - begin


def measure(name: str, size: int | None, largest_c: float) -> dict[str, str]:
    """A row: seconds of all, and how many labels of how many fits differ from scikit-learn's."""
    x, y, grid = load(name, size)
    grid = {**grid, "C": grid["C"][grid["C"] <= largest_c]}
    splits = list(StratifiedKFold(5).split(x, y))
    search, theirs = searched(GridSearchCV(SVC(), grid, cv=splits, refit=False), x, y)
    candidates = search.cv_results_["params"]
    expected = np.array([search.cv_results_[f"split{s}_test_score"] for s in range(len(splits))]).T
    found = np.empty(expected.shape)
    begin = time.process_time()
    for fitted in fit_grid(SVC(), candidates, x, y, splits):
        assert fitted.model is not None, fitted.error
        found[fitted.candidate, fitted.split] = fitted.model.score(fitted.x_validation, y[splits[fitted.split][1]])
    ours = time.process_time() - begin
    labels = np.rint((found - expected) * [len(validation) for _, validation in splits]).astype(int)
    _, halved = searched(HalvingGridSearchCV(SVC(), grid, cv=5, random_state=0, refit=False), x, y)
    return {
        "data": f"{name} {x.shape[0]} x {x.shape[1]}",
        "grid": " x ".join(str(len(values)) for values in (*grid.values(), splits)),
        "fit_grid (s)": f"{ours:.2f}",
        "scikit-learn (s)": f"{theirs:.2f}",
        "faster by": f"{theirs / ours:.1f}",
        **_intelex(grid, splits, x, y, ours),
        "halving (s)": f"{halved:.2f}",
        "fits whose score differs": f"{(labels != 0).sum()} of {labels.size}, by {np.abs(labels).max()} labels at most",
    }


def _intelex(grid: Any, splits: Any, x: np.ndarray, y: np.ndarray, ours: float) -> dict[str, str]:
    names = ("intelex (s)", "faster than it by")
    try:
        from sklearnex.svm import SVC as IntelexSVC
    except ImportError:
        return dict.fromkeys(names, "not installed")
    _, seconds = searched(GridSearchCV(IntelexSVC(), grid, cv=splits, refit=False), x, y)
    return dict(zip(names, (f"{seconds:.2f}", f"{seconds / ours:.1f}"), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=["iris", "breast_cancer", "digits"], metavar="NAME",
                        help="of scikit-learn, digits16, or synthetic: four_classes, flipped")  # fmt: skip
    parser.add_argument("--size", type=int, help="samples of a synthetic table")
    parser.add_argument("--largest-c", type=float, default=np.inf, help="leave out larger C, which take long")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep the table in this file")
    settings = parser.parse_args()
    warm_up()
    rows = [measure(name, settings.size, settings.largest_c) for name in settings.data]
    facts = circumstances("scikit-learn", "numba", "numpy", threads=1, lanes=LANES)
    publish(f"{facts}\n\n{table(rows)}", settings.results)


if __name__ == "__main__":
    main()
