"""Jobs join a study, and all that can happen to them does: `python -m tests.chaos_joining --minutes 30 --seed 1`.

A study is worked on by up to twenty jobs of one node each, submitted at random moments to a real Slurm on hosts that
are network namespaces (as root). Jobs are killed, the first one and two at one instant too; nodes lose their power; all
processes of a job sleep for 5 to 60 s; the file system of the results hangs; jobs are told to stop, and requeue
themselves. In the end the table must be byte for byte that of one process, and every trial known. One study after the
other, of each kind, until the time is up. Exit status 1 at the first thing that is not so.

    --quiet-studies: each kind once, without any of that; then at most 2 % of the evaluations may be wasted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.cluster import disk as disks
from tests.cluster.disk import Disk
from tests.cluster.hosts import Hosts
from tests.cluster.slurm import FINISHED, Slurm
from tests.helpers import ROOT, journal_lines, table_without_run

N_JOBS = 20
N_NODES = 5
KINDS = ("kill", "first", "two", "node", "sleep", "stall", "stop")
PAUSE = (5.0, 60.0)  # seconds that a job sleeps or the file system hangs
SEARCH = """
import argparse, time
from mpitune import Float, Int, RunOptions, search
from mpitune.optimize.strategies import Hyperband
parser = argparse.ArgumentParser()
for name in ("--strategy", "--results", "--gpu", "--grace", "--heartbeat-timeout"):
    parser.add_argument(name)
parser.add_argument("--workers", type=int)
parser.add_argument("--join", action="store_true")
given = parser.parse_args()

def whole(trial):
    time.sleep(0.2)
    return {"loss": (trial.params["x"] - 1) ** 2 + trial.params["n"]}

def staged(trial):
    for step in range(9):
        time.sleep(0.05)
        yield {"loss": (trial.params["x"] - 1) ** 2 + trial.params["n"] / (step + 1)}

options = RunOptions(join=given.join, heartbeat_timeout=float(given.heartbeat_timeout or 20), grace=5.0)
strategy = Hyperband(max_steps=9) if given.strategy == "hyperband" else given.strategy
search(
    staged if given.strategy == "hyperband" else whole, {"x": Float(0, 4, step=0.25), "n": Int(1, 9)},
    strategy=strategy, n_trials=None if given.strategy == "grid" else 150, minimize="loss", round_size=16,
    workers=given.workers, results=given.results, options=options,
)
"""
DIGITS = ("--dataset", "digits", "--train-size", "400")
SMALL = ("--epochs", "2", "--max-channels", "8", "--max-hidden-layer", "32", "--plot", "1")
STUDIES: dict[str, tuple[str, ...]] = {
    "toys": ("-m", "tests.toys", "12", "--courses", "3", "--rounds", "3", "--batch-trials", "2", "--array-size", "9",
             "--seconds", "0.3"),
    **{name: ("search.py", "--strategy", name) for name in ("grid", "random", "tpe", "hyperband")},
    "mnist_svm": ("-m", "mnist_svm", "6", *DIGITS),
    "mnist_nn": ("-m", "mnist_nn", "3", "4", *DIGITS, *SMALL),
}  # fmt: skip
TABLES = ("trials.csv", "results.csv")
AS_ROOT = {"PYTHONPATH": str(ROOT)}


class Broken(Exception):
    """A promise was not kept."""


class Chaos:
    """folder: on the shared disk."""

    def __init__(self, slurm: Slurm, hosts: Hosts, folder: Path, disk: Disk | None, seed: int):
        self.slurm, self.hosts, self.folder, self.disk = slurm, hosts, folder, disk
        self.random = random.Random(seed)
        self.faults: Counter[str] = Counter()
        self.studies = self.jobs_run = self.trials = self.evaluations = 0
        self.awake: list[tuple[float, Callable[[], None]]] = []  # what is to be done at a time
        self.clean: dict[str, Path] = {}
        (folder / "search.py").write_text(SEARCH)

    def command(self, name: str) -> tuple[str, ...]:
        words = STUDIES[name]
        return (str(self.folder / words[0]), *words[1:]) if words[0] == "search.py" else words

    def reference(self, name: str) -> Path:
        """The results of one process that nobody disturbs."""
        if name not in self.clean:
            folder = self.clean[name] = self.folder / f"clean-{name}"
            command = [sys.executable, *self.command(name), "--gpu", "none", "--workers", "2", "--results", folder]
            with contextlib.ExitStack() as stack:
                if STUDIES[name][0] == "search.py":
                    command = [word for word in command if word not in ("--gpu", "none")]
                log = stack.enter_context(open(self.folder / "clean.log", "w"))
                subprocess.run(
                    list(map(str, command)), cwd=ROOT, env=os.environ | AS_ROOT, stdout=log, stderr=log, check=True
                )
        return self.clean[name]

    def study(self, name: str, until: float, faults: bool) -> None:
        clean = self.reference(name)
        results = self.folder / f"study-{self.studies}"
        jobs: list[int] = []
        next_job = next_fault = time.monotonic()
        first_ended = 0.0
        end = time.monotonic() + 900
        while not self._complete(results):
            now = time.monotonic()
            if now > end:
                raise Broken(f"{name}: not complete after 15 minutes, jobs {[self._state(job) for job in jobs]}")
            self._act(now)
            if not faults and first_ended and now - first_ended > 120:
                raise Broken(f"{name}: all jobs have ended, and it is not complete")
            if now >= next_job and (len(jobs) < N_JOBS or not self._running(jobs)):
                jobs.append(self._submit(name, results))
                next_job = now + self.random.uniform(0.0, 4.0)
            if faults and now < until and now >= next_fault and self._running(jobs):
                self._fault(jobs)
                next_fault = now + self.random.uniform(0.5, 8.0)
            time.sleep(0.2)
        for _, act in self.awake:
            act()
        self.awake = []
        self._heal()
        late = self._submit(name, results)
        for job in [*jobs, late]:
            self._wait(job)
        if not faults and (status := self.slurm.job(late)["ExitCode"]) != "0:0":
            raise Broken(f"{name}: a job that came late ended with {status}")
        self._check(name, results, clean, faults)
        self.studies += 1
        self.jobs_run += len(jobs) + 1

    def _check(self, name: str, results: Path, clean: Path, faults: bool) -> None:
        for table in TABLES:
            if (clean / table).exists() and table_without_run(results / table) != table_without_run(clean / table):
                raise Broken(f"{name}: {results / table} differs from that of one process")
        keys = Counter(line["key"] for line in journal_lines(results) if not line["error"])
        expected = {line["key"] for line in journal_lines(clean)}
        if set(keys) != expected:
            raise Broken(f"{name}: {len(keys)} trials, and {len(expected)} in one process")
        self.trials += len(keys)
        self.evaluations += keys.total()
        if not faults and keys.total() > 1.02 * len(keys):
            raise Broken(f"{name}: {keys.total()} evaluations of {len(keys)} trials, and nothing happened")

    def _submit(self, name: str, results: Path) -> int:
        options = ("--nodes=1", "--ntasks=1", "--gpus-per-node=0", f"--cpus-per-task={self.random.randint(1, 2)}")
        output = f"--output={self.folder}/job-%j.out"
        command = ("sbatch", "--parsable", output, *options, "slurm/array.sbatch", *self.command(name))
        patience = ("--heartbeat-timeout", "3")
        environ = {"RESULTS": str(results)} | AS_ROOT
        return int(self.slurm.run(*command, *patience, cwd=ROOT, env=environ).stdout)

    def _complete(self, results: Path) -> bool:
        done = subprocess.run(
            [sys.executable, "-m", "mpitune", "status", results], cwd=ROOT, capture_output=True, text=True
        )
        return done.returncode == 0 and (results / "report.html").exists()

    def _state(self, job: int) -> str:
        return self.slurm.job(job)["JobState"]

    def _running(self, jobs: Sequence[int]) -> list[int]:
        return [job for job in jobs if self._state(job) == "RUNNING"]

    def _wait(self, job: int) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):  # Slurm has forgotten it
            if self._state(job) not in FINISHED:
                self.slurm.run("scancel", str(job), check=False) if self._state(job) == "PENDING" else None
                self.slurm.wait(job, FINISHED | {"PENDING"}, timeout=300)

    def _fault(self, jobs: Sequence[int]) -> None:
        kind = self.random.choice(KINDS)
        if not (running := self._running(jobs)):
            return
        seconds, now = self.random.uniform(*PAUSE), time.monotonic()
        job = self.random.choice(running)
        if kind in ("kill", "first", "two"):
            killed = {"kill": [job], "first": [running[0]], "two": running[:2]}[kind]
            self.slurm.run("scancel", "--signal=KILL", "--full", *map(str, killed), check=False)
        elif kind == "stop":
            self.slurm.run("scancel", "--batch", "--signal=USR1", str(job), check=False)
        elif kind == "stall":
            if self.disk is None or any(act == self.disk.thaw for _, act in self.awake):
                return
            self.disk.freeze(seconds)
            self.awake.append((now + seconds, self.disk.thaw))
        else:
            name = self.slurm.job(job).get("NodeList", "")
            host = next((host for host in self.slurm.nodes if host.name == name), None)
            if host is None:
                return
            if kind == "node":
                host.kill()
                self.awake.append((now + self.random.uniform(1.0, 20.0), self._heal))
            else:
                pids = [
                    process.pid
                    for process in self.slurm.processes().get(name, ())
                    if "slurmstepd" not in process.command
                ]

                def wake() -> None:
                    for pid in pids:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGCONT)

                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGSTOP)
                self.awake.append((now + seconds, wake))
        self.faults[kind] += 1

    def _act(self, now: float) -> None:
        due, self.awake = [one for one in self.awake if one[0] <= now], [one for one in self.awake if one[0] > now]
        for _, act in due:
            act()

    def _heal(self) -> None:
        """Give nodes that are off their power again."""
        for host in self.slurm.nodes:
            try:
                _ = host.pid
            except RuntimeError:  # it is off
                host.start()
                self.slurm.start(host)


def main() -> int:
    parser = argparse.ArgumentParser(description="Jobs that join, disturbed; see the module's text.")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--quiet-studies", action="store_true")
    parser.add_argument("--studies", nargs="+", choices=STUDIES, default=list(STUDIES))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    until = time.monotonic() + 60 * arguments.minutes
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp")))
        disk = None
        if reason := disks.missing():
            print(f"the file system does not hang: {reason}", flush=True)
        else:
            disk = stack.enter_context(Disk(folder))
        shared = disk.point if disk else folder
        hosts = stack.enter_context(Hosts(1 + N_NODES, shared=folder))
        slurm = stack.enter_context(Slurm(hosts))
        chaos = Chaos(slurm, hosts, shared, disk, arguments.seed)
        try:
            while chaos.studies < len(arguments.studies) if arguments.quiet_studies else time.monotonic() < until:
                name = arguments.studies[chaos.studies % len(arguments.studies)]
                begin = time.monotonic()
                chaos.study(name, until, faults=not arguments.quiet_studies)
                print(f"{name}: {time.monotonic() - begin:.0f} s, faults so far {dict(chaos.faults)}", flush=True)
        except Broken as broken:
            print(f"broken promise: {broken}")
            for path in sorted(shared.glob("job-*.out"), key=lambda path: path.stat().st_mtime)[-8:]:
                print(f"== {path.name}\n{path.read_text()[-700:]}")
            return 1
        finally:
            print(
                f"survived {chaos.faults.total()} faults ({', '.join(f'{n} {k}' for k, n in chaos.faults.items())}) in "
                f"{chaos.studies} studies by {chaos.jobs_run} jobs: {chaos.trials} trials, {chaos.evaluations} "
                f"evaluations, seed {arguments.seed}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
