"""Grids of C and gamma on tables of moderate size: `mpitune.svm.fit_grid` against scikit-learn's GridSearchCV.

    python -m benchmarks.gridsearch [iris breast_cancer digits digits16 four_classes flipped mnist]

7 values of C times 6 of gamma times 5 stratified folds on standardised samples. digits16: 6 x 6 from 10^-3 to 10^2 on
digits divided by 16. mnist: 5 x 5 x 5 on 10,000 images. All score all points, one thread, CPU seconds of this process,
in one run. As processors change their speed, fit_grid is timed before the peers, between them and after them, in as
many turns as take REPEAT_SECONDS together, at least one, and medians are shown. The peers are GridSearchCV with
scikit-learn's SVC and with that of scikit-learn-intelex, and ThunderSVM's SVC where they are installed. Where a grid
has too much work for them, ``--sample N`` lets SVCs fit N of its points, chosen at random, and multiplies. The code of
the solver is compiled before, and the memory that a search needs was given to this process once.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # before numpy comes

import numpy as np
from sklearn import datasets
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, ParameterGrid, StratifiedKFold
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from benchmarks.machine import circumstances, publish, table
from common.data import load as load_images
from common.images import standardised
from mpitune._jit import LANES
from mpitune.errors import UsageError
from mpitune.svm import fit_grid, warm_up

GRID = {"C": np.logspace(-2, 4, 7), "gamma": np.logspace(-4, 1, 6)}
WIDE = {"C": np.logspace(-3, 2, 6), "gamma": np.logspace(-3, 2, 6)}
IMAGES = {"C": np.logspace(-3, 6, 5), "gamma": np.logspace(-6, -2, 5)}
NAMES = ("iris", "breast_cancer", "digits", "digits16", "four_classes", "flipped", "mnist")
PEERS = {"scikit-learn": "sklearn.svm", "intelex": "sklearnex.svm", "ThunderSVM": "thundersvm"}

TOUCHED = 1 << 30  # bytes of memory, more than a search on any of this data needs
REPEAT_SECONDS = 20.0

T = TypeVar("T")
Table = tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]
Scores = dict[tuple[int, int], float]  # by candidate and split


def load(name: str, size: int | None, data: Path) -> Table:
    """Samples, labels and grid; the first `size` samples of a synthetic table or of MNIST."""
    if name == "mnist":
        images = load_images("mnist", data, train_size=size or 10_000)
        return standardised(images["train_images"], 255), images["train_labels"], IMAGES
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


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """What the call returns, and its CPU seconds.

    The host of a virtual machine takes free memory back, and may need 1.6 s to give 400 MB again: that is done before.
    """
    np.empty(TOUCHED, np.uint8)[:: resource.getpagesize()] = 1
    begin = time.process_time()
    result = call()
    return result, time.process_time() - begin


def measure(name: str, data: Table, settings: argparse.Namespace) -> dict[str, str]:
    """A row: seconds of all, and how many labels of how many fits differ from scikit-learn's."""
    x, y, grid = data
    grid = {**grid, "C": grid["C"][grid["C"] <= settings.largest_c]}
    splits = list(StratifiedKFold(5).split(x, y))
    candidates, sizes = list(ParameterGrid(grid)), [len(validation) for _, validation in splits]
    fits = [(c, s) for c in range(len(candidates)) for s in range(len(splits))]
    sample = [fits[i] for i in np.random.default_rng(0).permutation(len(fits))[: settings.sample]]
    mine = partial(_ours, candidates, x, y, splits)
    found, first = timed(mine)
    ours, theirs, labels = [first], dict[str, list[float]](), np.empty(0)
    begin = time.monotonic()
    while not theirs or time.monotonic() - begin < REPEAT_SECONDS:
        for peer, module in PEERS.items():
            try:
                svc = import_module(module).SVC()
            except ImportError:
                continue
            if settings.sample:
                scores, seconds = timed(partial(_one_by_one, svc, candidates, x, y, splits, sample))
                seconds *= len(fits) / len(sample)
            else:
                scores, seconds = timed(partial(_searched, svc, grid, x, y, splits))
            theirs.setdefault(peer, []).append(seconds)
            ours.append(timed(mine)[1])
            if peer == "scikit-learn":
                labels = np.rint([(found[fit] - scores[fit]) * sizes[fit[1]] for fit in scores]).astype(int)
    row = {
        "data": f"{name} {x.shape[0]} x {x.shape[1]}",
        "grid": " x ".join(map(str, (*map(len, grid.values()), len(splits)))),
        "turns": str(len(theirs["scikit-learn"])),
        "fit_grid (s)": f"{np.median(ours):.3f}",
    }
    for peer in PEERS:
        seconds = float(np.median(theirs.get(peer, [np.nan])))
        row[f"{peer} (s)"] = f"{seconds:.2f}" if peer in theirs else "not installed"
        row[f"faster than {peer}"] = f"{seconds / np.median(ours):.1f}" if peer in theirs else ""
    row["fits whose score differs"] = (
        f"{(labels != 0).sum()} of {labels.size}, by {np.abs(labels).max()} labels at most"
    )
    return row


def _ours(candidates: Any, x: np.ndarray, y: np.ndarray, splits: Any) -> Scores:
    result = {}
    for fitted in fit_grid(SVC(), candidates, x, y, splits):
        assert fitted.model is not None, fitted.error
        score = fitted.model.score(fitted.x_validation, y[splits[fitted.split][1]])
        result[fitted.candidate, fitted.split] = score
    return result


def _searched(svc: Any, grid: Any, x: np.ndarray, y: np.ndarray, splits: Any) -> Scores:
    results = GridSearchCV(svc, grid, cv=splits, refit=False).fit(x, y).cv_results_
    return {
        (c, s): results[f"split{s}_test_score"][c] for c in range(len(results["params"])) for s in range(len(splits))
    }


def _one_by_one(svc: Any, candidates: Any, x: np.ndarray, y: np.ndarray, splits: Any, fits: Any) -> Scores:
    result = {}
    for c, s in fits:
        train, validation = splits[s]
        model = clone(svc).set_params(**candidates[c]).fit(x[train], y[train])
        result[c, s] = model.score(x[validation], y[validation])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=NAMES[:3], metavar="NAME", help=f"rows: {', '.join(NAMES)}")
    parser.add_argument("--size", type=int, help="samples of a synthetic table or of MNIST")
    parser.add_argument("--largest-c", type=float, default=np.inf, help="leave out larger C, which take long")
    parser.add_argument("--sample", type=int, metavar="N", help="fits that the peers make of a grid; all if not given")
    parser.add_argument("--data", type=Path, default=Path("data"), metavar="DIR", dest="folder", help="with MNIST")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep the table in this file")
    settings = parser.parse_args()
    if unknown := set(settings.names) - set(NAMES):
        parser.error(f"no row is called {sorted(unknown)[0]!r}: {', '.join(NAMES)}")
    try:  # before anything is measured
        data = {name: load(name, settings.size, settings.folder) for name in settings.names}
    except UsageError as error:
        parser.error(str(error))
    warm_up()
    grids = [measure(name, its, settings) for name, its in data.items()]
    facts = circumstances("scikit-learn", "numba", "numpy", threads=1, lanes=LANES, sample=settings.sample or "all")
    publish(f"{facts}\n\n{table(grids)}", settings.results)


if __name__ == "__main__":
    main()
