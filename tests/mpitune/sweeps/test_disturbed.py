"""Disturb sweeps and searches at random, compare tables: `python -m tests.mpitune.sweeps.test_disturbed --runs 40`.

Jobs work on one study, one after the other or joined. They are killed; they are suspended in a trial with all that they
have started, for longer than others wait for them, and wake. In the end the table must be that of a run that nobody
disturbed. Each trial writes what it knows to its folder and reads it there, step by step.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.helpers import PATIENCE, ROOT, family, journal_lines, wait_until
from tests.mpitune.sweeps.scripts import PLAIN, written

SEARCH = """
import sys, time
from pathlib import Path
from mpitune import Float, RunOptions, search
from mpitune.strategies import Halving

def checkpoints(trial):  # of which each has all that came before; a step that was done twice would show
    state = trial.folder / "state"
    done = list(map(float, state.read_text().split())) if state.exists() else []
    trial.set_user_attr("begun_at", len(done)) if not done else None
    for step in range(len(done) + 1, 10):
        time.sleep(0.05)
        done.append(trial.params["x"] / step)
        part = trial.folder / "part"
        part.write_text(" ".join(map(repr, done)))
        part.rename(state)
        trial.report({"loss": sum(map(float, state.read_text().split()))}, step)

if __name__ == "__main__":
    command = [sys.executable, "train.py", "--lr={x}", "--units=2"]
    what, n, how = (command, 4, "random") if sys.argv[1] == "command" else (checkpoints, 9, Halving(9))
    search(
        what, {"x": Float(0.1, 1)}, n_trials=n, minimize="loss", strategy=how, window=4, seed=int(sys.argv[2]),
        options=RunOptions(results=Path(sys.argv[3]), workers=2, gpu="none", quiet=True, join="--join" in sys.argv,
                           heartbeat_timeout=1.0),
    )
"""
KINDS = ("json", "hyperband", "command", "checkpoints")


def disturbed(seed: int, folder: Path, seconds: float = 18.0) -> str:
    """Disturb a study of this seed for so long, then let it end. Returns what was done; raises where tables differ."""
    chance = random.Random(seed)
    kind, joined = KINDS[seed % len(KINDS)], seed // len(KINDS) % 4 != 0
    early = {"type": "hyperband", "min_iter": 2, "eta": 2} if kind == "hyperband" else None
    written(folder, PLAIN, run_cap=4, early_terminate=early, mpitune={"window": 4, "seed": seed})
    (folder / "search.py").write_text(SEARCH)
    sweep = ["-m", "mpitune", "run", "sweep.json", "--workers", "2", "--heartbeat-timeout", "1", "--results"]
    words = sweep if kind in ("json", "hyperband") else ["search.py", kind, str(seed)]
    around = {**os.environ, "PYTHONPATH": str(ROOT), "NAP": "0.8"}
    log = open(folder / "log", "ab")  # noqa: SIM115 - for all jobs

    def begun(results: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, *words, results, *["--join"] * (joined and results == "ours")]
        return subprocess.Popen(command, cwd=folder, env=around, stdout=log, stderr=log, start_new_session=True)

    jobs, done = [begun("ours")], {"kill": 0, "sleep": 0, "jobs": 1}
    asleep: list[tuple[float, set[int]]] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(chance.uniform(0.5, 2.5))
        jobs = [job for job in jobs if job.poll() is None]
        what = chance.choice(["sleep", "sleep", "sleep", "kill", "begin"])
        if jobs and what != "begin":
            job, done[what] = chance.choice(jobs).pid, done[what] + 1
            if what == "kill":
                send({job}, signal.SIGKILL)  # what it has started ends with it
            else:
                send(tree := family(job), signal.SIGSTOP)
                asleep.append((time.monotonic() + chance.uniform(4, 8), tree))
        if len(jobs) < (3 if joined else 1):
            jobs.append(begun("ours"))
            done["jobs"] += 1
        for until, tree in asleep:
            if until < time.monotonic():
                send(tree, signal.SIGCONT)
    for _, tree in asleep:
        send(tree, signal.SIGCONT)
    statuses = [job.wait(PATIENCE) for job in jobs]
    statuses += [job.wait(PATIENCE) for job in [begun(results) for results in ("ours", "clean")]]
    tables = [(folder / results / "trials.csv").read_bytes() for results in ("ours", "clean")]
    said = f"seed {seed}: {kind}, {'joined' if joined else 'alone'}, {done}, {statuses}"
    if tables[0] != tables[1] or statuses[-2:] != [0, 0]:
        raise AssertionError(f"{said} in {folder}\n{tables[0].decode()}\n{tables[1].decode()}")
    return said


def send(pids: set[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sweep", "command"])
def test_a_job_that_wakes_in_a_trial_does_not_read_what_another_writes(kind: str, tmp_path: Path) -> None:
    """It was suspended after the first line, and ends while the other has written a few."""
    written(tmp_path, PLAIN, run_cap=1)
    (tmp_path / "search.py").write_text(SEARCH.replace('4, "random"', '1, "random"'))
    how = ("--workers", "1", "--results", "r", "--join", "--heartbeat-timeout", "1")
    words = (
        ["-m", "mpitune", "run", "sweep.json", *how]
        if kind == "sweep"
        else ["search.py", "command", "0", "r", "--join"]
    )
    around = {**os.environ, "PYTHONPATH": str(ROOT), "NAP": "2"}
    output = tmp_path / "r" / "trials" / "t000000" / "output.txt"
    jobs = [subprocess.Popen([sys.executable, *words], cwd=tmp_path, env=around)]
    assert wait_until(lambda: output.exists() and output.read_text().count("\n") == 2)
    send(tree := family(jobs[0].pid), signal.SIGSTOP)
    first = output.resolve()
    jobs.append(subprocess.Popen([sys.executable, *words], cwd=tmp_path, env=around))
    assert wait_until(lambda: output.resolve() != first and output.exists() and output.read_text() != "")
    send(tree, signal.SIGCONT)
    assert [job.wait(PATIENCE) for job in jobs] == [0, 0]
    values = {json.dumps(line["values"]) for line in journal_lines(tmp_path / "r")}
    assert len(values) == 1 and output.read_text().count("\n") == 8, values


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 6, 7])
def test_nothing_that_happens_changes_a_table(seed: int, tmp_path: Path) -> None:
    print(disturbed(seed, tmp_path))


def main() -> int:
    parser = argparse.ArgumentParser(description="Random disturbances of sweeps; see the module's text.")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--runs", type=int, default=4)
    given = parser.parse_args()
    for seed in range(given.first, given.first + given.runs):
        with tempfile.TemporaryDirectory() as folder:
            print(disturbed(seed, Path(folder)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
