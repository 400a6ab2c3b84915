"""A study of toy trials with known answers, and the disasters that can befall one, by name.

    python -m tests.toys 10 --at t3=segfault t5=hang        the trials t3 and t5 meet a disaster, always
    ...                     --marks DIR                     only their first attempts do
    ...                     --fault cannot_build            no worker can be built

Trial t<i> of every course has the value i * i, and the drawn value depends on its key alone.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpitune.cli import run
from mpitune.devices.choose import workers_here
from mpitune.experiment import Experiment, WorkerContext
from mpitune.port import Reporting, Scheduling
from mpitune.settings import setting
from mpitune.trial import Batch, Evaluation, NoRoom, Rounds, Trial, seed_of
from tests.fate import befalls


def sigkill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def segfault() -> None:
    ctypes.string_at(0)


def c_exit() -> None:
    os._exit(7)


def out_of_memory() -> None:
    _, most = limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, most))
    try:
        mmap.mmap(-1, 1 << 34)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)  # the worker goes on, with trials that need more


def exception() -> None:
    raise ValueError("a point outside the domain")


def unpicklable_exception() -> None:
    class Unpicklable(Exception):
        def __reduce__(self) -> Any:
            raise TypeError("this exception does not pickle")

    raise Unpicklable("with a cause that must survive")


def hang() -> None:
    time.sleep(3600)


def last_words() -> None:
    print("the last thing I saw was a bear", file=sys.stderr, flush=True)
    os._exit(3)


STARTED = "sleep 3604"  # in the command of each program that this starts


def starts_programs() -> None:
    """A program, one that does not hear SIGTERM, a fork, and a daemon with nothing of its parent's environment."""
    subprocess.Popen(STARTED.split())
    subprocess.Popen(["sh", "-c", f"trap '' TERM; {STARTED}; :"], start_new_session=True)
    if os.fork() == 0:
        hang()
    if (pid := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("env", ["env", "-i", "sh", "-c", f"{STARTED}; :"])
        os._exit(0)
    os.waitpid(pid, 0)


FAULTS = {
    function.__name__: function
    for function in (
        sigkill, segfault, c_exit, out_of_memory, exception, unpicklable_exception, hang, last_words,
        starts_programs,
    )
}  # fmt: skip
# Faults of what is returned, of the worker's life and of its building, handled where they belong below.
OTHER_FAULTS = ("no_room", "nan", "unpicklable_result", "wrong_key", "no_result", "flood", "dies_idle", "dies_sending")
BUILD_FAULTS = ("none", "cannot_build", "cannot_build_here")


@dataclass(frozen=True)
class Toy(Experiment):
    """Toy trials with known answers."""

    n: int = setting(help="trials in each round of each course", low=1)
    courses: int = setting(1, "independent searches", low=1, selects=True)
    rounds: int = setting(1, "rounds of each search", low=1)
    batch_trials: int = setting(1, "trials of a batch", low=1)
    seed: int = setting(0, "seed of the study", low=0)
    seconds: float = setting(0.0, "time each trial takes", low=0.0, changes_results=False)
    array_size: int = setting(0, "numbers in the array of each result", low=0)
    data_size: int = setting(0, "numbers in the shared data", low=0)
    compiles: float = setting(0.0, "seconds that each worker compiles first", low=0.0, changes_results=False)
    steps: int = setting(0, "steps that each trial reports while it takes its time", low=0, changes_results=False)
    linger: float = setting(0.0, "time that the data take, and the report", low=0.0, changes_results=False)
    fault: str = setting("none", "what happens to all workers", choices=BUILD_FAULTS, changes_results=False)
    at: tuple[str, ...] = setting((), "KEY=FAULT: what happens to a trial", changes_results=False)
    marks: Path | None = setting(None, "folder that remembers first attempts", changes_results=False)

    def __post_init__(self) -> None:
        unknown = {entry.split("=")[-1] for entry in self.at} - {*FAULTS, *OTHER_FAULTS}
        if unknown:
            raise ValueError(f"--at: {unknown} is no fault")

    def data(self) -> dict[str, np.ndarray]:
        time.sleep(self.linger)
        return {"numbers": np.arange(self.data_size, dtype=np.float64)} if self.data_size else {}

    def report(self, *given: Any) -> None:
        time.sleep(self.linger)
        super().report(*given)

    def reporting(self) -> Reporting:
        return Reporting(files=("trials.csv",))

    def scheduling(self) -> Scheduling:
        return Scheduling(preload=("tests.toys",))

    def searches(self) -> Iterator[Rounds]:
        return (self._search(course) for course in range(self.courses))

    def _search(self, course: int) -> Rounds:
        prefix = f"c{course}/" if self.courses > 1 else ""
        offset = 0
        for number in range(self.rounds):
            name = f"{prefix}r{number}/" if self.rounds > 1 else prefix
            trials = [Trial(f"{name}t{i}", {"x": i, "offset": offset}) for i in range(self.n)]
            step = self.batch_trials
            results = yield [tuple(trials[i : i + step]) for i in range(0, self.n, step)]
            assert [result.key for result in results] == [trial.key for trial in trials]
            offset = int(np.nansum([result.value("square") for result in results])) % 1000

    def objective(self, worker: WorkerContext) -> Any:
        here = self.fault == "cannot_build_here" and (self.marks or Path()).joinpath(socket.gethostname()).exists()
        if here or self.fault == "cannot_build":
            raise ImportError("no module named warp_drive")
        total = float(worker.data["numbers"].sum()) if self.data_size else 0.0
        if self.compiles:
            worker.report_step(0, unit="compiling")
            time.sleep(self.compiles)
            worker.report_step(0, unit="starting")

        def objective(batch: Batch) -> Iterator[Evaluation | NoRoom]:
            for trial in batch:
                for step in range(max(1, self.steps)):
                    time.sleep(self.seconds / max(1, self.steps))
                    if self.steps:
                        worker.report_step(step + 1, self.steps, "lap")
                result = self._result(trial, total)
                if result is not None:
                    yield result

        return objective

    def _result(self, trial: Trial, total: float) -> Evaluation | NoRoom | None:
        x = float(trial.params["x"])
        if "FATE" in os.environ:
            befalls(int(x))
        values = {"square": x * x + float(trial.params["offset"]) + total}
        rng = np.random.default_rng(seed_of(self.seed, trial.key))
        values["drawn"] = rng.random()
        arrays = {"array": rng.random(self.array_size)} if self.array_size else {}
        key = trial.key
        fault = dict(entry.split("=") for entry in self.at).get(trial.key)
        if fault is not None and self._strikes(trial.key):
            if fault in FAULTS:
                FAULTS[fault]()
            elif fault == "no_room" and workers_here() > 1:
                return NoRoom(key, "a bear needs a node of its own")
            elif fault == "nan":
                values["square"] = float("nan")
            elif fault == "unpicklable_result":
                values["square"] = lambda: 0.0  # type: ignore[assignment]
            elif fault == "wrong_key":
                key = "elsewhere"
            elif fault == "no_result":
                return None
            elif fault == "flood":
                for _ in range(20_000):
                    print("water " * 100, file=sys.stderr)
            elif fault in ("dies_idle", "dies_sending"):
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                if fault == "dies_sending":  # which takes longer than that
                    arrays["much"] = np.zeros(50_000_000)
        return Evaluation(key, values, arrays)

    def _strikes(self, key: str) -> bool:
        """Whether it happens this time: always, or where marks are kept the first time only."""
        if self.marks is None:
            return True
        try:
            (self.marks / key.replace("/", "-")).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


if __name__ == "__main__":
    run(Toy)
