"""A grid of support vector machines: solved together, and point by point by scikit-learn and scikit-learn-intelex.

    python -m benchmarks.svm_grid 2000
    python -m benchmarks.svm_grid 10000 --peer-sample 9

5 x 5 points (C from 1e-3 to 1e6, gamma from 1e-6 to 1e-2) on 5 contiguous folds of the first n images of MNIST,
one-vs-one. All solvers run in this process on one core, to which it pins itself, and times are CPU seconds from
the images to the predicted labels. Compilation is left out (the time of the first call is shown), and the shared
solver runs before, between and after the others; the median counts.

With --peer-sample K, the others solve K of the 25 points, and these on the first fold only. The points are spread as
far apart as the grid allows. Every other point is assumed to cost as much as the nearest measured one, by steps of the
grid (the mean of several at the same distance), and every fold as much as the first.
"""

# ruff: noqa: E402 - threads are limited before the libraries that start them are imported

from __future__ import annotations

import os

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import circumstances, publish, table
from benchmarks.svm_points import FOLDS, GAMMAS, PENALTIES, GridPoint, splits, spread, steps
from common.data import load
from common.images import standardised
from mpitune.svm import Data, TrainingSet, solve, warm_up
from mpitune.svm.matrices.plan import keep

TITLES = {"sklearn": "scikit-learn", "sklearnex": "scikit-learn-intelex"}

Errors = dict[tuple[int, int, int], int]  # (gamma, C, fold) -> errors


def run_shared(x: np.ndarray, y: np.ndarray, memory: int) -> tuple[float, Errors, str]:
    """CPU seconds of the whole grid, its errors, and the plan."""
    begin = time.process_time()
    folds, errors = splits(len(y)), {}
    data = Data(x, y, "rbf", memory)
    matrices = keep(data.samples, "ovo", len(PENALTIES) * FOLDS, memory)
    trainings = [TrainingSet.without_weights(train, len(data.samples.classes)) for train, _ in folds]
    for g, gamma in enumerate(GAMMAS):
        with matrices.source(gamma) as source:
            for f, solved in enumerate(solve(data, source, PENALTIES, trainings, libsvm=False)):
                if not solved.solutions.converged.all():
                    raise RuntimeError(f"no convergence at gamma = {gamma:g}, fold {f}")
                wrong = (solved.labels(folds[f][1]) != y[folds[f][1]]).sum(axis=1)
                errors.update({(g, c, f): int(count) for c, count in enumerate(wrong)})
    return time.process_time() - begin, errors, matrices.plan.description


def run_point(
    solver: Callable[..., Any], x: np.ndarray, y: np.ndarray, point: GridPoint, fold: int
) -> tuple[float, int]:
    """CPU seconds to fit one point on one fold and predict its validation images, and the errors."""
    train, validation = splits(len(y))[fold]
    begin = time.process_time()
    model = solver(C=PENALTIES[point[1]], gamma=GAMMAS[point[0]]).fit(x[train], y[train])
    errors = int((model.predict(x[validation]) != y[validation]).sum())
    return time.process_time() - begin, errors


def extrapolated(seconds: dict[GridPoint, float]) -> float:
    """The whole grid on all folds from points on one fold."""
    total = 0.0
    for g in range(len(GAMMAS)):
        for c in range(len(PENALTIES)):
            nearest = min(steps((g, c), point) for point in seconds)
            total += statistics.mean(s for point, s in seconds.items() if steps((g, c), point) == nearest)
    return total * FOLDS


def peer(name: str) -> Callable[..., Any]:
    if name == "sklearn":
        from sklearn.svm import SVC

        return SVC
    import daal4py
    from sklearnex.svm import SVC as IntelSVC

    daal4py.daalinit(1)
    return IntelSVC


def compare(n: int, peers: Sequence[str], sample: int | None, data: Path, memory: int) -> str:
    arrays = load("mnist", data, train_size=n)
    x, y = standardised(arrays["train_images"], 255), arrays["train_labels"]
    begin = time.process_time()
    warm_up()
    first_call = time.process_time() - begin
    seconds, errors, plan = run_shared(x, y, memory)
    ours = [seconds]
    points = spread(sample or len(GAMMAS) * len(PENALTIES))
    folds = range(1 if sample else FOLDS)
    solvers = {name: peer(name) for name in peers}
    spent: dict[str, dict[tuple[int, int, int], float]] = {name: {} for name in peers}
    theirs: dict[str, Errors] = {name: {} for name in peers}
    for number, (g, c) in enumerate(points):  # all solvers at one point after the other
        for f in folds:
            for name, solver in solvers.items():
                spent[name][g, c, f], theirs[name][g, c, f] = run_point(solver, x, y, (g, c), f)
        if number == len(points) // 2:
            ours.append(run_shared(x, y, memory)[0])
    ours.append(run_shared(x, y, memory)[0])
    median = statistics.median(ours)
    rows = [{"solver": "shared", "CPU seconds": f"{median:.2f}", "fits measured": f"{125 * len(ours)}", "ratio": "1",
             "errors that differ": "", "largest difference": ""}]  # fmt: skip
    for name in peers:
        if sample:
            total = extrapolated({(g, c): s for (g, c, _), s in spent[name].items()})
        else:
            total = sum(spent[name].values())
        difference = [abs(count - errors[key]) for key, count in theirs[name].items()]
        rows.append({
            "solver": TITLES[name], "CPU seconds": f"{total:.0f}" + (" (extrapolated)" if sample else ""),
            "fits measured": f"{len(difference)} of 125", "ratio": f"{total / median:.0f}",
            "errors that differ": f"{np.count_nonzero(difference)} of {len(difference)}",
            "largest difference": str(max(difference)),
        })  # fmt: skip
    details = []
    for g, c in sorted(points):
        row: dict[str, Any] = {"gamma": f"{GAMMAS[g]:.0e}", "C": f"{PENALTIES[c]:.3g}"}
        row["shared"] = " ".join(str(errors[g, c, f]) for f in folds)
        for name in peers:
            row[TITLES[name]] = " ".join(str(theirs[name][g, c, f]) for f in folds)
            row[f"{TITLES[name]} s"] = f"{sum(spent[name][g, c, f] for f in folds):.2f}"
        details.append(row)
    facts = circumstances(
        "numpy", "numba", "scikit-learn", "scikit-learn-intelex", n=n, threads=1, grid="5 x 5", folds=FOLDS, plan=plan
    )
    measured = "every fit measured"
    if sample:
        measured = f"{len(points)} points on the first fold measured, the rest extrapolated"
    return "\n\n".join(
        [
            facts,
            f"shared: {', '.join(f'{s:.2f}' for s in ours)} CPU seconds; compilation or loading before that "
            f"{first_call:.1f}. Others: {measured}.",
            table(rows),
            "Errors on " + ("the first fold" if sample else "each fold") + ":",
            table(details),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("n", type=int, help="the first n training images")
    parser.add_argument("--peers", nargs="*", choices=list(TITLES), default=list(TITLES))
    parser.add_argument("--peer-sample", type=int, metavar="K", help="measure K points of the others only")
    parser.add_argument("--data", type=Path, default=Path("data"), metavar="DIR", help="torchvision's folder of MNIST")
    parser.add_argument("--memory", type=float, default=8.0, metavar="GB", help="what the shared solver may use")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep the table in this file")
    settings = parser.parse_args()
    memory = int(settings.memory * 1e9)
    text = compare(settings.n, settings.peers, settings.peer_sample, settings.data, memory)
    publish(text, settings.results)


if __name__ == "__main__":
    main()
