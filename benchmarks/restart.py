"""What it takes to begin again with many trials in the journal: processor seconds and memory.

    python -m benchmarks.restart 1000000

One process writes the journal, a second one begins again, so that its memory is its own. The trials are one round of
which one is open, as after a job that was stopped.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.machine import circumstances, publish, table
from mpitune.engine.study import Study
from mpitune.storage.history import read_journal
from mpitune.storage.journal import Journal
from mpitune.trial import Batch, Place, Result, Rounds, Trial, Used

AT_ONCE = 10_000  # results that are written together


def trials(n: int) -> Iterator[Trial]:
    return (Trial(f"t{i:06}", {"x": i / 7, "n": i % 100, "kind": "abc"[i % 3]}) for i in range(n))


def write(folder: Path, n: int) -> None:
    journal = Journal(folder, {"settings": {"experiment": "restart"}})
    outcomes = []
    for i, trial in enumerate(trials(n)):
        values, place = {"loss": i / 3, "accuracy": 1 / (i + 1)}, Place(f"host{i % 5}", i % 5, i % 8, "cpu")
        used = Used(0.12, 123_456_789)
        outcomes.append((trial, Result(trial.key, values, seconds=0.25, place=place, ended=1.7e9 + i, used=used)))
        if len(outcomes) == AT_ONCE or i == n - 1:
            journal.append(outcomes)
            outcomes = []
    journal.close()


def begin_again(folder: Path, n: int) -> dict[str, float]:
    """Processor seconds of reading the journal and of asking all trials, and the most memory in MiB.

    The search's own work, to make a million objects, is said apart: other searches have another way to do so.
    """
    made = 0.0

    def search() -> Iterator[list[Batch]]:
        nonlocal made
        began = time.process_time()
        batches = [(trial,) for trial in trials(n + 1)]
        made = time.process_time() - began
        yield batches

    began = time.process_time()
    history = read_journal(folder)
    assert history is not None and len(history.results) == n
    read = time.process_time()
    searches: list[Rounds] = [search()]  # type: ignore[list-item]
    study = Study(searches, history.trials, history.results)
    assert len(study.start()) == 1
    asked = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "journal read, CPU s": read - began,
        "trials made by the search, CPU s": made,
        "looked up, CPU s": asked - read - made,
        "all, CPU s": asked - began,
        "most memory, MiB": peak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Beginning again with many known trials.")
    parser.add_argument("n", type=int, help="known trials")
    parser.add_argument("--results", type=Path, help="keep the table in this file")
    parser.add_argument("--from", dest="folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder:
        print(json.dumps(begin_again(arguments.folder, arguments.n)))
        return
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), arguments.n)
        command = [sys.executable, "-m", "benchmarks.restart", str(arguments.n), "--from", folder]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    row = {name: f"{value:.1f}" for name, value in json.loads(said).items()}
    publish(f"{circumstances(trials=arguments.n)}\n\n{table([row])}", arguments.results)


if __name__ == "__main__":
    main()
