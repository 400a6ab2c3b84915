"""Searches that share fits on several slots: how busy these are, and whether the scores stay the same, byte for byte.

    python -m benchmarks.sharing_layouts [--rows kNN forest ...] [--results FILE]

Each row of `benchmarks.sharing` runs in one process, on two slots of one rank, and under mpirun on three ranks with one
slot each, as on three hosts. "busy" is the share of the time from a slot's first trial to the last trial of all in
which trials ran, from the journal. "work" is the CPU time of all trials over that of one slot: what is divided so that
no slot is idle computes what it shares again.
"""

from __future__ import annotations

import argparse
import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # before numpy comes

import hashlib
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import sklearn.model_selection as theirs

from benchmarks.machine import circumstances, publish, table
from benchmarks.sharing import ROWS
from common.report.timeline import Timeline, timeline_of
from common.sklearn import GridSearchCV
from common.storage.history import read_journal

LAYOUTS = {"one slot": (1, 1), "two slots": (1, 2), "three ranks": (3, 1)}  # ranks, workers of each
USUAL = ["kNN", "forest", "extra", "histograms", "kernel", "ridge-small", "pipeline", "three-steps"]


def search(name: str, workers: int, results: Path) -> str:
    """A digest of the scores of a row's search."""
    warnings.simplefilter("ignore")
    model, grid, X, y, folds = ROWS[name]()
    splits = list(theirs.KFold(folds, shuffle=True, random_state=0).split(X))
    found = GridSearchCV(model, grid, cv=splits, refit=False, workers=workers, results=results).fit(X, y).cv_results_
    digest = hashlib.sha256()
    for column in sorted(column for column in found if column.endswith("test_score")):
        digest.update(found[column].tobytes())
    return digest.hexdigest()


def digests_in(text: str) -> list[str]:
    """Those that ranks have printed."""
    return re.findall(r"^[0-9a-f]{64}$", text, re.MULTILINE)


def busy(time: Timeline) -> float:
    """The share of the slots' time, from the first trial of each to the last of all, in which trials ran."""
    end = max(bar.end for slot in time.slots for bar in slot.bars)
    whole = sum(end - min(bar.begin for bar in slot.bars) for slot in time.slots if slot.bars)
    return sum(slot.busy for slot in time.slots) / whole


def row(name: str) -> dict[str, str]:
    """A row of the table."""
    said = {"search": name}
    digests: set[str] = set()
    work: dict[str, float] = {}
    for layout, (ranks, workers) in LAYOUTS.items():
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "benchmarks.sharing_layouts", "--one", name, str(workers), folder]
            if ranks > 1:
                root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
                command = ["mpirun", *root, "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *command]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            digests |= set(digests_in(done.stdout))
            history = read_journal(Path(folder))
            assert history is not None and history.complete
            time = timeline_of(history)
            assert time is not None
            used = [result.used.cpu_seconds for result in history.results.values()]
            work[layout] = sum(filter(None, used))
            if layout != "one slot":
                said[f"{layout}: busy"] = f"{busy(time):.0%}"
                said[f"{layout}: work"] = f"{work[layout] / work['one slot']:.2f}"
    return {**said, "one slot (s)": f"{work['one slot']:.1f}", "scores": "equal" if len(digests) == 1 else "DIFFER"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=USUAL)
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep the table in this file")
    parser.add_argument("--one", nargs=3, metavar=("ROW", "WORKERS", "FOLDER"), help="run a row, and print a digest")
    settings = parser.parse_args()
    if settings.one:
        name, workers, folder = settings.one
        print(search(name, int(workers), Path(folder)) + "\n", end="")
        return
    rows = []
    for name in settings.rows:
        rows.append(row(name))
        print(rows[-1], flush=True)
    facts = circumstances("scikit-learn", "numpy", "scipy", threads=1)
    publish(f"{facts}\n\n{table(rows)}", settings.results)


if __name__ == "__main__":
    main()
