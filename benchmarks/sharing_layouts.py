"""Searches that share fits on several slots: how busy these are, and whether the scores stay the same, byte for byte.

    python -m benchmarks.sharing_layouts [--rows kNN forest ...] [--data FOLDER] [--results FILE]

Each row of `benchmarks.sharing`, with more folds and more samples, so that it takes one slot 10 to 40 seconds, runs in
one process, on two slots of one rank, and under mpirun on three ranks with one slot each, as on three hosts. The row
mnist needs `--data`.

- "busy": the seconds of all trials, over the number of slots times the time from the begin of the first trial of any
  slot to the end of the last of all, from the journal. So a slot is idle while its worker starts although another's
  works already, between trials (a result is sent, a batch comes), and at the end while others work. Also busy is a
  trial that waits for a core. What comes before the first trial of any slot and after the last is left out; a report's
  utilisation counts it as idle.
- "even": CPU seconds of all slots over the number of slots times those of the slot with most. Three ranks on two cores
  take turns, and the last trials are faster where no others run; on three cores they would be busy for about so much.
- "undivided": the same at best if no batch were divided: with the seconds that each took on one slot, the costliest
  first. Ensembles cannot be divided, as each of their candidates needs the members of the smaller ones.
- "work": the CPU time of all trials over that of one slot; what is divided computes again what it shares.
"""

from __future__ import annotations

import argparse
import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # before numpy comes

import hashlib
import json
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import sklearn.model_selection as theirs
from sklearn.datasets import make_classification

from benchmarks.machine import circumstances, load, publish, table
from benchmarks.sharing import DATA, ROWS, Row, digits, numbers
from mpitune.engine.queue import end_of
from mpitune.sklearn import GridSearchCV
from mpitune.storage.history import History, read_journal
from tests.helpers import mpirun_command

LAYOUTS = {"one slot": (1, 1), "two slots": (1, 2), "three ranks": (3, 1)}  # ranks, workers of each


def labelled(n: int, p: int) -> tuple[Any, Any]:
    return make_classification(n, p, n_informative=p // 4, n_classes=10, random_state=0)


# Samples of a row, its folds, and how many times as many members its ensembles have.
LARGER: dict[str, tuple[Callable[[], tuple[Any, Any]], int, int]] = {
    "kNN": (lambda: labelled(16_000, 64), 24, 1),
    "forest": (digits, 10, 3),
    "extra": (digits, 10, 4),
    "boosting": (lambda: digits(600), 12, 1),
    "histograms": (lambda: digits(600), 10, 1),
    "xgboost": (digits, 24, 2),
    "lightgbm": (digits, 10, 2),
    "ridge": (lambda: numbers(20_000, 1000), 12, 1),
    "mnist": (lambda: ROWS["mnist"]()[2:4], 24, 1),
    "three-steps": (lambda: labelled(16_000, 100), 18, 1),
}


def row_of(name: str, small: bool) -> Row:
    """Estimator, grid, samples, labels and folds."""
    model, grid, X, y, folds = ROWS[name]()
    if not small:
        samples, folds, times = LARGER[name]
        sizes = {key: [times * n for n in grid[key]] for key in ("n_estimators", "max_iter") if key in grid}
        (X, y), grid = samples(), {**grid, **sizes}
    return model, grid, X, y, folds


def search(name: str, workers: int, results: Path, small: bool) -> str:
    """A digest of the scores of a row's search, and the candidates of each batch of a split, a line each."""
    warnings.simplefilter("ignore")
    model, grid, X, y, folds = row_of(name, small)
    splits = list(theirs.KFold(folds, shuffle=True, random_state=0).split(X))
    done = GridSearchCV(model, grid, cv=splits, refit=False, workers=workers, results=results).fit(X, y)
    digest = hashlib.sha256()
    for column in sorted(column for column in done.cv_results_ if column.endswith("test_score")):
        digest.update(done.cv_results_[column].tobytes())
    return f"{digest.hexdigest()}\n{json.dumps([fit.candidates for fit in done.plan_.fits])}\n"


def digests_in(text: str) -> list[str]:
    """Those that ranks have printed."""
    return re.findall(r"^[0-9a-f]{64}$", text, re.MULTILINE)


def even(history: History) -> float:
    """CPU seconds of all slots over the number of slots times those of the slot with most."""
    seconds = dict.fromkeys((place for run in history.runs for place in run["slots"]), 0.0)
    for result in history.results.values():
        seconds[str(result.place)] += result.used.cpu_seconds or 0.0
    return sum(seconds.values()) / (len(seconds) * max(seconds.values()))


def busy(history: History) -> float:
    """The share of the slots' time, from the first trial of all to the last, in which trials ran."""
    results, n_slots = history.results.values(), len(history.runs[0]["slots"])
    span = max(result.ended for result in results) - min(result.ended - result.seconds for result in results)
    return sum(result.seconds for result in results) / (n_slots * span)


def undivided(history: History, batches: Sequence[Sequence[int]], n_slots: int) -> float:
    """The same if whole batches took as long as in this study, and a slot took the next when it had done one."""
    batch_of = {candidate: number for number, batch in enumerate(batches) for candidate in batch}
    seconds: dict[tuple[int, str], float] = {}
    for key, result in history.results.items():  # c00012/f3
        candidate, split = key.removeprefix("c").split("/")
        place = batch_of[int(candidate)], split
        seconds[place] = seconds.get(place, 0.0) + result.seconds
    return sum(seconds.values()) / (n_slots * end_of([0.0] * n_slots, seconds.values()))


def row(name: str, small: bool) -> dict[str, str]:
    """A row of the table."""
    said = {"search": name}
    digests: set[str] = set()
    work: dict[str, float] = {}
    for layout, (ranks, workers) in LAYOUTS.items():
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "benchmarks.sharing_layouts", "--one", name, str(workers), folder]
            command += ["--data", str(DATA[0]), *["--small"] * small]
            launcher = mpirun_command(ranks) if ranks > 1 else []
            done = subprocess.run([*launcher, *command], capture_output=True, text=True, check=True)
            digests |= set(digests_in(done.stdout))
            history = read_journal(Path(folder))
            assert history is not None and history.complete
            work[layout] = sum(result.used.cpu_seconds or 0.0 for result in history.results.values())
            if layout == "one slot":
                alone, batches = history, json.loads(done.stdout.splitlines()[-1])
                said["one slot (s)"] = f"{work[layout]:.1f}"
                continue
            said[f"{layout}: busy"] = f"{busy(history):.0%}"
            said[f"{layout}: even"] = f"{even(history):.0%}"
            said[f"undivided, {ranks * workers}"] = f"{undivided(alone, batches, ranks * workers):.0%}"
            said[f"{layout}: work"] = f"{work[layout] / work['one slot']:.2f}"
    return {**said, "scores": "equal" if len(digests) == 1 else "DIFFER"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", choices=LARGER, help="those to run; all are run by default")
    parser.add_argument("--small", action="store_true", help="as large as in benchmarks.sharing")
    parser.add_argument("--data", type=Path, metavar="DIR", help="with MNIST")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep the table in this file")
    parser.add_argument("--one", nargs=3, metavar=("ROW", "WORKERS", "FOLDER"), help="run a row, and print a digest")
    settings = parser.parse_args()
    DATA[0] = settings.data or DATA[0]
    if settings.one:
        name, workers, folder = settings.one
        print(search(name, int(workers), Path(folder), settings.small), end="")
        return
    rows = []
    for name in settings.rows or [name for name in LARGER if settings.data or name != "mnist"]:
        rows.append(row(name, settings.small))
        print(rows[-1], flush=True)
    facts = circumstances("scikit-learn", "numpy", "scipy", threads=1, load=load())
    publish(f"{facts}\n\n{table(rows)}", settings.results)


if __name__ == "__main__":
    main()
