"""What many jobs that join one study ask of the file system, and how busy they are: `python -m benchmarks.joining`.

Jobs are simulated in this process: each has a study, a journal and claims of its own on one real folder, and slots
whose trials take no work but time (log-normal seconds, sigma 0.5). All else is what a job does. Counted are the calls
that ask a file server: opening, listing, linking, removing, touching, and asking for a file's state.

    python -m benchmarks.joining [--seconds 30] [--results FILE]
"""

from __future__ import annotations

import argparse
import heapq
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import circumstances, publish, table
from mpitune.engine.joined import JoinedStudy
from mpitune.storage.journal import join
from mpitune.trial import Result, Rounds, Trial

SLOTS = 4
CALLS = ("open", "stat", "lstat", "listdir", "link", "unlink", "utime")


class Job:
    """One simulated job: slots that are free, and a heap of trials that end at a time."""

    def __init__(self, folder: Path, name: str, n_trials: int, mean: float):
        def rounds() -> Rounds:
            yield [(Trial(f"t{n}", {"n": n}),) for n in range(n_trials)]

        self.journal = join(folder, {"settings": {"experiment": "simulated"}}, name)
        self.study = JoinedStudy(
            [rounds()], self.journal.history, folder=folder, job=name, timeout=60.0, n_slots=SLOTS,
            cost=lambda trial: 1.0, examine=lambda trial, result, kept: None,
        )  # fmt: skip
        self.study.start()
        self.waiting: list[Trial] = []
        self.running: list[tuple[float, str, Trial, float]] = []
        self.mean, self.busy, self.seen = mean, 0.0, time.monotonic()

    def step(self) -> None:
        now = time.monotonic()
        self.busy, self.seen = self.busy + len(self.running) * (now - self.seen), now
        while self.running and self.running[0][0] <= now:
            _, _, trial, seconds = heapq.heappop(self.running)
            result = Result(trial.key, {"value": 1.0}, seconds=seconds)
            for stored in self.journal.append([(trial, result)]):
                self.study.record(stored)
        self.waiting += [trial for batch in self.study.arrived() for trial in batch]
        while self.waiting and len(self.running) < SLOTS:
            trial = self.waiting.pop(0)
            seconds = self.mean * random.Random(trial.key).lognormvariate(0.0, 0.5)
            heapq.heappush(self.running, (now + seconds, trial.key, trial, seconds))

    def close(self) -> None:
        self.study.close()
        self.journal.close()


def counted(calls: Counter[str]) -> Callable[[], None]:
    """Count calls of the file system; returns what ends that."""
    before: dict[str, Any] = {name: getattr(os, name) for name in CALLS}

    def counting(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return before[name](*args, **kwargs)

        return call

    for name in CALLS:
        setattr(os, name, counting(name))

    def end() -> None:
        for name, call in before.items():
            setattr(os, name, call)

    return end


def row(n_jobs: int, mean: float, seconds: float) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        jobs = [Job(folder, f"job{n:03}", 4 * int(n_jobs * SLOTS * seconds / mean) + 100, mean) for n in range(n_jobs)]
        calls: Counter[str] = Counter()
        begin = time.monotonic()
        while time.monotonic() - begin < 2 * mean:  # until all have found their pace
            for job in jobs:
                job.step()
        busy = sum(job.busy for job in jobs)
        claims = len(os.listdir(folder / "jobs/claims"))
        end = counted(calls)
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            for job in jobs:
                job.step()
            time.sleep(0.002)
        took = time.monotonic() - begin
        end()
        claims = len(os.listdir(folder / "jobs/claims")) - claims
        share = (sum(job.busy for job in jobs) - busy) / (took * n_jobs * SLOTS)
        for job in jobs:
            job.close()
    return {
        "jobs": str(n_jobs),
        "seconds of a trial": f"{mean:g}",
        "calls a second and job": f"{calls.total() / took / n_jobs:.0f}",
        "claims a second, all": f"{claims / took:.1f}",
        "slots busy": f"{share:.0%}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Calls of the file system by jobs that join.")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each row (default %(default)g)")
    parser.add_argument("--results", type=Path, help="file to write the table to")
    options = parser.parse_args()
    rows = [row(n, mean, options.seconds) for n, mean in ((1, 0.1), (1, 5.0), (10, 0.5), (10, 5.0), (100, 20.0))]
    publish(f"{circumstances('numpy')}; {SLOTS} slots a job, a local disk\n\n{table(rows)}", options.results)


if __name__ == "__main__":
    main()
