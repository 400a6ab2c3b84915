"""Runs the table of tests/contract.py."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mpitune.errors import Exit, UsageError
from mpitune.storage.history import JOURNAL, read_study
from tests.contract import DOORS, Door
from tests.helpers import (
    PATIENCE,
    ROOT,
    family,
    journal_lines,
    mpirun_command,
    table_without_run,
    wait_for_the_end_of,
    wait_until,
)

NEVER = 10**9
# Each look at the clock of these processes says another day.
CLOCK = """
import time
real, looks = time.time, [0]
def jumping():
    looks[0] += 1
    return real() + 86400 * (looks[0] % 3 - 1)
time.time = jumping
"""
# The command that follows has a disk of 8 KiB in place of the folder.
FULL = """
r=$1; shift; mkdir "$r"; mount -t tmpfs -o size=8k tmpfs "$r"
status=0; "$@" || status=$?
cp -r "$r" "$r.full"; exit $status
"""
PRIVATE = ["unshare", "--mount", "--propagation", "private", "sh", "-euc"]


class Run:
    """A program in a folder of its own, and its studies there."""

    def __init__(self, door: Door, folder: Path):
        self.door, self.folder, self.results = door, folder, folder / "results"
        (folder / "fate").mkdir(parents=True)
        self.hold(NEVER)
        self.jobs: list[Any] = []
        door.written(folder)

    def hold(self, number: int) -> None:
        """Trials from this number on wait."""
        part = self.folder / "fate/part"
        part.write_text(str(number))
        part.rename(self.folder / "fate/hold")

    def begin(self, workers: int, *options: str, ranks: int = 0, before: Iterable[str] = (), path: str = "") -> Any:
        words = self.door.words(["--workers", str(workers), "--results", str(self.results), *options])
        command = [*(mpirun_command(ranks) if ranks else []), sys.executable, *words]
        environ = {**os.environ, "PYTHONPATH": f"{path}{ROOT}", "FATE": str(self.folder / "fate")}
        job = subprocess.Popen(
            [*before, *command], cwd=self.folder, env=environ, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.jobs.append(job)
        return job

    def at_work(self, *how: Any, **more: Any) -> Any:
        """A job that is in the middle of its trials."""
        before = self.runs()
        job = self.begin(*how, *self.door.grace, **more)
        assert wait_until(lambda: job.poll() is not None or (self.runs() > before and self.lines() >= 4))
        assert job.poll() is None, "".join(job.communicate())
        return job

    def end(self, job: Any, status: int) -> tuple[list[str], str]:
        """What it has printed of its best, once it has ended with this status, and all that it said."""
        out, err = job.communicate(timeout=PATIENCE)
        assert job.returncode == status, f"status {job.returncode}, not {status}\n{out}\n{err}"
        assert "Traceback" not in err or not self.door.keeps or "on purpose" in err, err
        return [line for line in out.splitlines() if self.door.prints and line.startswith(self.door.prints)], err

    def complete(self, *how: Any, **more: Any) -> list[str]:
        return self.end(self.begin(*how, **more), self.door.status)[0]

    def lines(self) -> int:
        return len(journal_lines(self.results)) if (self.results / JOURNAL).exists() else 0

    def successes(self) -> Counter[str]:
        """How often each trial has succeeded, by its key."""
        return Counter(line["key"] for line in journal_lines(self.results) if not line["error"])

    def runs(self) -> int:
        """How often it was begun."""
        with suppress(UsageError):  # before its first line is written
            return len(read_study(self.results).runs)
        return 0

    def kept(self) -> Any:
        """The table, and the results by key with their arrays."""
        if self.door.timed or not self.door.keeps:
            return None
        results = read_study(self.results).results
        found = {
            key: (dict(result.values), result.failed, [(n, a.tobytes()) for n, a in sorted(result.arrays.items())])
            for key, result in results.items()
        }
        return table_without_run(self.results / "trials.csv"), found


def no_space(run: Run) -> None:
    """The disk is full from the first trials on. One line says it."""
    if subprocess.run([*PRIVATE, "mount -t tmpfs tmpfs /mnt"], capture_output=True).returncode:
        return  # not root
    job = run.begin(2, before=[*PRIVATE, FULL, "sh", str(run.results)])
    _, said = job.communicate(timeout=PATIENCE)
    assert job.returncode in (Exit.ERROR, Exit.USAGE), said
    assert re.search(r"^\S+\.py: .*No space left on device", said, re.MULTILINE) and "OSError" not in said, said
    run.results.rmdir()
    (run.folder / "results.full").rename(run.results)


def killed(run: Run) -> None:
    """kill -9 of all of it, on two ranks."""
    run.hold(run.door.holds[0])
    job = run.at_work(1, ranks=2)
    members = family(job.pid)
    os.killpg(job.pid, signal.SIGKILL)
    job.communicate(timeout=PATIENCE)
    wait_for_the_end_of(members)


def told_to_stop(run: Run) -> None:
    """By one of the signals to stop."""
    run.hold(run.door.holds[1])
    job = run.at_work(3)
    job.send_signal(run.door.signal)
    if not run.door.grace:
        run.hold(NEVER)
    run.end(job, Exit.STOPPED)


def others_join(run: Run) -> None:
    """Two jobs work on it, one on two ranks, one with a clock that jumps. Each trial that is left is evaluated once."""
    clock = run.folder / "clock"
    clock.mkdir()
    (clock / "sitecustomize.py").write_text(CLOCK)
    run.hold(NEVER)
    join = ["--join"] * run.door.joins
    jobs = [run.begin(1, *join, path=f"{clock}:"), *([run.begin(1, *join, ranks=2)] if join else [])]
    said = [run.end(job, run.door.status)[0] for job in jobs]
    assert all(lines[: len(said[0])] == said[0] for lines in said)


def strangers_came(run: Run) -> None:
    """Another user has put links and pipes in place of what was written. None of them is followed or waited for."""
    (victim := run.folder / "victim").write_text("as it was")
    written = [path for path in run.results.rglob("*") if path.is_file() and "jobs" not in path.parts]
    for number, path in enumerate(sorted(written)):
        if path.name != JOURNAL and path.suffix != ".npz":
            path.unlink()
            path.symlink_to(victim) if number % 2 else os.mkfifo(path)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Callable[[Door], tuple[Run, Run]]]:
    """Two folders for a program. A test that fails leaves jobs that wait: they are killed in the end."""
    made: list[Run] = []

    def make(door: Door) -> tuple[Run, Run]:
        pytest.importorskip(door.needs)
        made.extend(Run(door, tmp_path / name) for name in ("whole", "events"))
        return made[0], made[1]

    yield make
    for job in (job for run in made for job in run.jobs if job.poll() is None):
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


QUICK = ("search",)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in DOORS])
def test_the_contract(name: str, runs: Any) -> None:
    door = DOORS[name]
    whole, run = runs(door)
    (whole.folder / "fate/killed").touch()
    best = whole.complete(1)
    assert best or door.prints is None
    for happens in (killed, told_to_stop) if door.writes else (no_space, killed, told_to_stop) if door.keeps else ():
        happens(run)
        assert run.lines() < whole.lines(), f"{happens.__name__}: nothing was left to do"
    others_join(run)
    assert run.kept() == whole.kept()
    assert (run.folder / "fate/killed").exists()
    n = run.lines()
    assert not door.keeps or set(run.successes().values()) <= {1}, "a trial was evaluated again after its success"
    strangers_came(run)
    # The same command in another process, on another layout: it finds all done, and says the same.
    assert run.complete(1, ranks=2)[:1] == best[:1]
    assert run.lines() == n and run.kept() == whole.kept()
    assert (run.folder / "victim").read_text() == "as it was"
