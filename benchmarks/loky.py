"""What a trial of a search costs beside its fit: this engine against joblib's loky and dask-ml, with the same workers.

    python -m benchmarks.loky [--trials 60] [--workers 2] [--hosts 3] [--results FILE]

A trial fits a random forest, or gradient boosting, to 2/3 of digits and scores it, which takes 0.1 to 1 s. Each way
makes a search of few trials and one of many, in turn. Of the difference in time, times the workers, what the fits and
scores themselves took is left out; the rest, by trial, is the overhead: handing out, waiting, taking results, the
journal. The start of workers, which is left out too, has a column of its own: the short search without its fits. With
--hosts N (as root) ours has one worker on each of N hosts made of Linux namespaces, under mpirun; the others have N
workers on this machine. dask-ml, where it is installed, has threads: what one waits for another to leave Python counts
as its fit, so its overhead looks smaller than it is. The seconds of a trial are those of loky.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # before numpy comes

import argparse
import json
import statistics
import sys
import tempfile
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import sklearn.model_selection as theirs
from joblib.externals.loky import get_reusable_executor
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier

from benchmarks.machine import circumstances, load, publish, table
from mpitune.ranks.launch import launched
from mpitune.sklearn import GridSearchCV

MODELS = {
    "random forest": RandomForestClassifier(n_estimators=60),
    "gradient boosting": GradientBoostingClassifier(n_estimators=8, max_depth=2),
}
Times = tuple[float, float]  # of a search: seconds by the clock; seconds in fits and scores, of all workers


def searched(search: Any) -> Times:
    """Run a search of one split for each candidate."""
    X, y = load_digits(return_X_y=True)
    begin = time.perf_counter()
    search.fit(X, y)
    wall = time.perf_counter() - begin
    found = search.cv_results_
    return wall, float((found["mean_fit_time"] + found["mean_score_time"]).sum())


def ours(model: str, n: int, workers: int) -> Times:
    """A search of n trials by this engine; its fits are not shared."""
    return searched(GridSearchCV(**_arguments(model, n), workers=workers, share=False))


def loky(model: str, n: int, workers: int) -> Times:
    """A search of n trials by scikit-learn, with workers of its own: those of a search before would be used again."""
    get_reusable_executor().shutdown(wait=True)
    return searched(theirs.GridSearchCV(**_arguments(model, n), n_jobs=workers))


def dask(model: str, n: int, workers: int) -> Times:
    """A search of n trials by dask-ml."""
    search = import_module("dask_ml.model_selection").GridSearchCV
    return searched(search(**_arguments(model, n), n_jobs=workers))


WAYS = {"this engine": ours, "loky": loky} | ({"dask-ml": dask} if find_spec("dask_ml") else {})


def _arguments(model: str, n: int) -> dict[str, Any]:
    split = theirs.ShuffleSplit(1, test_size=1 / 3, random_state=0)
    return {"estimator": clone(MODELS[model]), "param_grid": {"random_state": range(n)}, "cv": split, "refit": False}


def overhead(few: Times, many: Times, workers: int, trials: int) -> float:
    """Seconds of a worker for each trial beside its fit and score."""
    return ((many[0] - few[0]) * workers - (many[1] - few[1])) / trials


def measure(model: str, settings: argparse.Namespace) -> list[dict[str, str]]:
    """A row for each way."""
    workers = settings.hosts or settings.workers
    overheads: dict[str, list[float]] = {name: [] for name in WAYS}
    starts: dict[str, list[float]] = {name: [] for name in WAYS}
    seconds = 0.0
    for repeat in range(settings.repeats):
        for name, way in list(WAYS.items())[:: -1 if repeat % 2 else 1]:
            if way is ours and settings.hosts:
                few, many = _on_hosts(model, settings)
            else:
                few, many = (way(model, n, workers) for n in (workers, workers + settings.trials))
            overheads[name].append(overhead(few, many, workers, settings.trials))
            starts[name].append(few[0] - few[1] / workers)
            if name == "loky":
                seconds = many[1] / (workers + settings.trials)
    reference = statistics.median(overheads["loky"])
    return [
        {
            "trials": f"{settings.trials} of {model}, {seconds:.2f} s",
            "way": name,
            "overhead of a trial (ms)": f"{1e3 * statistics.median(found):.2f}",
            "lowest to highest": f"{1e3 * min(found):.2f} to {1e3 * max(found):.2f}",
            "of loky's": f"{statistics.median(found) / reference:.2f}",
            "start (s)": f"{statistics.median(starts[name]):.2f}",
        }
        for name, found in overheads.items()
    ]


def _on_hosts(model: str, settings: argparse.Namespace) -> tuple[Times, Times]:
    from tests.cluster.hosts import Hosts
    from tests.cluster.mpirun import mpirun

    with tempfile.TemporaryDirectory() as folder, Hosts(settings.hosts, Path(folder)) as hosts:
        command = [sys.executable, "-m", "benchmarks.loky", "--inside", model, "--trials", str(settings.trials)]
        done = hosts[0].run(*mpirun(hosts, *command), timeout=600, env={"TMPDIR": folder})
    few, many = json.loads(done.stdout.splitlines()[-1])
    return few, many


def inside(model: str, settings: argparse.Namespace) -> None:
    """On each rank: both searches, with one worker here."""
    ranks = launched().size
    found = [ours(model, n, 1) for n in (ranks, ranks + settings.trials)]
    if launched().rank == 0:
        print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=60, help="that the long search has more than the short one")
    parser.add_argument("--workers", type=int, default=2, help="of this machine")
    parser.add_argument("--hosts", type=int, metavar="N", help="hosts of one worker each")
    parser.add_argument("--repeats", type=int, default=3, help="of each way, in turn; the median is shown")
    parser.add_argument(
        "--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="MODEL", help="all if not given"
    )
    parser.add_argument("--inside", choices=MODELS, help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep the table in this file")
    settings = parser.parse_args()
    if settings.inside:
        inside(settings.inside, settings)
        return
    where = {"hosts": settings.hosts} if settings.hosts else {"workers": settings.workers}
    rows = [row for model in settings.models for row in measure(model, settings)]
    facts = circumstances("scikit-learn", "joblib", "dask-ml", repeats=settings.repeats, load=load(), **where)
    publish(f"{facts}\n\n{table(rows)}", settings.results)


if __name__ == "__main__":
    sys.exit(main())
