"""Disturb at random, run again, and see whether anything is lost: `python -m tests.chaos --minutes 2 --seed 1`.

Studies with known answers run on hosts that are network namespaces (as root), one after the other. One is worked on by
one MPI job at a time, the next by up to twenty jobs that join. Meanwhile processes, jobs, hosts and links are killed;
ranks and launchers get each of the signals to stop; ranks sleep for 5 to 60 s.

The command is run again on another random layout until the study is complete. Then its table must equal that of a run
that nobody disturbed, and every trial must be in the journal (of one job: once). No process, be it one that a trial has
started, and no shared memory may be left. Where only workers, their keepers or the servers that fork them were killed,
an MPI job must have completed the study. Exit status 1 at the first thing that is not so.
Open MPI's own daemons now and then stay when they lose a rank while they start it (5.0.11): they are ended.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mpitune.errors import Exit
from mpitune.storage.history import read_header, read_study
from tests.cluster.hosts import Host, Hosts, Process
from tests.cluster.mpirun import mpirun
from tests.helpers import ROOT, STARTED_BY, is_server, journal_lines, parent_of, table_without_run
from tests.toys import STARTED

SEARCH = """
import time
from mpitune import Float, Int, RunOptions, search
from mpitune.settings import Parser, add_settings, from_namespace
from mpitune.strategies import Hyperband

def objective(trial):  # its checkpoint has all that came before: a step that is done twice would show
    state, part = trial.folder / "state", trial.folder / "part"
    done = list(map(float, state.read_text().split())) if state.exists() else []
    for step in range(len(done) + 1, 10):
        time.sleep(0.015)
        done.append((trial.params["x"] - 1) ** 2 + trial.params["n"] / step)
        part.write_text(" ".join(map(repr, done)))
        part.rename(state)
        yield {"step": step, "loss": sum(map(float, state.read_text().split()))}

parser = Parser()
parser.add_argument("strategy")
add_settings(parser, RunOptions)
given = parser.parse_args()
search(
    objective, {"x": Float(0, 4, step=0.25), "n": Int(1, 9)}, n_trials=120, minimize="loss", window=16,
    strategy=Hyperband(max_steps=9) if given.strategy == "hyperband" else given.strategy,
    options=from_namespace(RunOptions, given),
)
"""
STUDIES = {
    "toys": "-m tests.toys 20 --courses 3 --rounds 2 --batch-trials 2 --array-size 20 --seconds 0.05 "
    "--linger 1 --at c0/r0/t7=starts_programs c1/r1/t0=starts_programs",
    "tpe": "search.py tpe",
    "hyperband": "search.py hyperband",
}
N_JOBS, AT_A_TIME = 20, 4  # that join a study
SOON = ("--join", "--heartbeat-timeout", "3")  # of them: one is gone after three times as long
END_SECONDS, LONG = 30.0, 900.0  # within which all of a wounded job must have ended, and a study
STOPS = ("TERM", "INT", "USR1")
OF_A_SLOT = ("worker", "keeper", "server")  # which end no job
OF_ALL = ("rank", "launcher", "host", "link", "sleep", *STOPS)
KINDS, OF_JOINED = (*OF_ALL, *OF_A_SLOT, "any"), (*OF_ALL, "job", "first", "two")
PAUSE = (5.0, 60.0)  # seconds that a rank sleeps, at least and at most
OF_MPI = ("sm_segment", "vader_segment")  # in /dev/shm


class Broken(Exception):
    """A promise was not kept."""


@dataclass
class Job:
    """hosts: the first runs its command.  runs: in the journal before it."""

    hosts: list[Host]
    process: subprocess.Popen[str]
    joins: bool
    runs: int
    most: int  # wounds
    wounds: list[str] = field(default_factory=list)

    def lives(self) -> bool:
        return self.process.poll() is None


class Study:
    """name: of STUDIES.  joined: by jobs that join."""

    def __init__(self, name: str, joined: bool, folder: Path):
        self.name, self.joined, self.folder = name, joined, folder
        self.clean = folder.parent / f"clean-{name}"

    def words(self, folder: Path | None = None) -> list[str]:
        """The command."""
        words = [sys.executable, *STUDIES[self.name].split(), "--gpu", "none", "--results", str(folder or self.folder)]
        words[1] = words[1].replace("search.py", str(self.folder.parent / "search.py"))
        return words

    def begun(self) -> bool:
        """Whether the folder holds it."""
        return read_header(self.folder) is not None

    def runs(self) -> int:
        """How often it was begun, by its journal."""
        return (self.folder / "journal.jsonl").read_text().count('{"run"') if self.begun() else 0

    def is_starting(self, job: Job) -> bool:
        """Whether the job has not begun with its trials."""
        return not self.begun() or (self.runs() == job.runs and not job.joins)


class Chaos:
    """folder: for all hosts."""

    def __init__(self, hosts: Hosts, folder: Path, seed: int):
        self.hosts, self.folder, self.log, self.random = hosts, folder, folder / "log", random.Random(seed)
        self.sleepers: dict[int, threading.Timer] = {}
        self.faults: Counter[str] = Counter()
        self.studies = self.jobs = self.trials = self.left_by_mpi = 0
        self.log.touch()
        (folder / "search.py").write_text(SEARCH)

    def study(self, name: str, joined: bool, until: float) -> None:
        study = Study(name, joined, self.folder / f"study-{self.studies}")
        if not study.clean.exists():
            self.hosts[0].run(*study.words(folder=study.clean), "--workers", "2", "--quiet")
        self._work(study, until)
        self._check(study)
        self.studies += 1

    def _work(self, study: Study, until: float) -> None:
        """Jobs, and what happens to them, until the study is complete; nothing happens once the time is up."""
        jobs: list[Job] = []
        next_job = next_fault = 0.0
        end = time.monotonic() + LONG
        while True:
            now, living = time.monotonic(), [job for job in jobs if job.lives()]
            joins = study.joined
            if jobs and not joins and (not living or len(jobs[-1].wounds) == jobs[-1].most or now >= until):
                self._end(jobs[-1].wounds)
                living = []
            if (joins or not living) and self._complete(study):
                break
            if jobs and not (living or study.joined) and all(wound in OF_A_SLOT for wound in jobs[-1].wounds):
                raise Broken(
                    f"{study.folder} is not complete although nothing died; to its last job: {jobs[-1].wounds}"
                )
            if now > end:
                raise Broken(f"{study.folder} is not complete after {LONG:g} s; {len(living)} of {len(jobs)} jobs live")
            on = [host for host in self.hosts if _is_on(host)]
            if on and now >= next_job and len(living) < (AT_A_TIME if joins else 1):
                if not living or len(jobs) < N_JOBS:
                    jobs.append(self._start(study, on, joins))
                    next_job, next_fault = now + self.random.uniform(0, 4), now + self.random.uniform(0, 3)
            elif living and next_fault <= now < until:
                job = self.random.choice(living)
                if len(job.wounds) < job.most:
                    self._wound(study, job, living)
                    next_fault = now + self.random.uniform(0, 4 if joins else 1.5)
            if joins and self.random.random() < 0.2:
                _heal(self.random.choice(list(self.hosts)))
            time.sleep(0.5 if joins else 0.05)
        if study.joined:  # a job that comes late finds nothing to do
            self._calm()
            late = self._popen([self.hosts[0]], [*study.words(), *SOON])
            if status := late.wait(PAUSE[1]):
                raise Broken(f"{study.folder}: a job that came late ended with {status}")
            self._end([])

    def _popen(self, hosts: Sequence[Host], command: Sequence[str]) -> subprocess.Popen[str]:
        self.jobs += 1
        command = [*command, "--workers", str(self.random.randint(1, 2)), "--quiet"]
        with open(self.log, "ab") as file:
            return hosts[0].popen(*(mpirun(hosts, *command) if len(hosts) > 1 else command), stdout=file, stderr=file)

    def _start(self, study: Study, on: list[Host], joins: bool) -> Job:
        hosts = self.random.sample(on, min(len(on), self.random.choice((1, 1, 1, 2) if joins else (1, 2, 3))))
        most = N_JOBS if joins else self.random.choice((1, 1, 1, 2, 3))
        runs = study.runs()
        process = self._popen(hosts, [*study.words(), *(SOON if joins else ())])
        return Job(hosts, process, joins, runs, most)

    def _complete(self, study: Study) -> bool:
        words = (sys.executable, "-m", "mpitune", "status", study.folder)
        status = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
        if status.returncode not in (Exit.DONE, Exit.STOPPED, Exit.USAGE):  # usage: killed before the first line
            raise Broken(f"{study.folder}: {status.stdout}{status.stderr}")
        return status.returncode == Exit.DONE and study.begun() and study.folder.joinpath("report.html").exists()

    def _check(self, study: Study) -> None:
        for table in ("trials.csv", "results.csv"):
            clean, ours = (folder / table for folder in (study.clean, study.folder))
            if clean.exists() and table_without_run(ours) != table_without_run(clean):
                raise Broken(f"{ours} differs from that of a study that nobody disturbed")
        keys = Counter(line["key"] for line in journal_lines(study.folder) if not line["error"])
        known, expected = (set(read_study(folder).results) for folder in (study.folder, study.clean))
        if known != expected or not (study.joined or set(keys.values()) <= {1}):
            raise Broken(f"{study.folder}: {len(known)} of {len(expected)} trials, most often {keys.most_common(1)}")
        self.trials += len(keys)

    def _end(self, wounds: list[str]) -> None:
        """Wait until nothing is left of the jobs, and let all go on that hangs; for Open MPI's daemons only so long."""
        seconds = PAUSE[1] + (END_SECONDS if set(wounds) - set(OF_A_SLOT) else 120)
        deadline = time.monotonic() + seconds
        while (left := [p for found in self.hosts.processes().values() for p in found]) and time.monotonic() < deadline:
            time.sleep(0.05)
        if ours := [p for p in left if "multiprocessing" in p.command or STARTED in p.command or _is_rank(p)]:
            raise Broken(f"a job was not gone after {seconds:g} s and {wounds}: {ours}\nall that is left: {left}")
        self.left_by_mpi += bool(left)
        for process in left:
            _kill(process.pid, signal.SIGKILL)
        self._calm()
        for host in self.hosts:
            if found := [name for name in os.listdir(f"/proc/{host.pid}/root/dev/shm") if not name.startswith(OF_MPI)]:
                raise Broken(f"shared memory was left on {host.name}: {found}")

    def _calm(self) -> None:
        for pid in list(self.sleepers):
            self._wake(pid)
        for host in self.hosts:
            _heal(host)

    def _wound(self, study: Study, job: Job, living: list[Job]) -> None:
        """Something happens to this job, or to all of them."""
        kind, starting = self.random.choice(OF_JOINED if job.joins else KINDS), study.is_starting(job)
        host = self.random.choice([host for host in job.hosts if _is_on(host)] or [job.hosts[0]])
        if not _is_on(host) or (kind in ("host", "link") and starting):
            return  # our heartbeat guards a job, not its launch; and who comes first is not refused
        if kind in OF_A_SLOT and set(OF_A_SLOT) & set(job.wounds):
            return  # a trial that loses two workers has failed
        if what := self._happen(kind, living, job, host):
            self.faults[what] += 1
            job.wounds.append(kind)

    def _happen(self, kind: str, living: list[Job], job: Job, host: Host) -> str:
        """Returns what was done, "" for nothing."""
        if kind in ("job", "first", "two"):
            for each in {"job": [job], "first": living[:1], "two": living[:2]}[kind]:
                _kill(-each.process.pid, signal.SIGKILL)
        elif kind == "host":
            host.kill()
        elif kind == "link":
            host.cut()
        elif kind == "sleep":
            ranks = [p.pid for p in host.processes() if _is_rank(p) and p.pid not in self.sleepers][:1]
            pids = [p.pid for p in host.processes()] if job.joins else ranks
            for pid in pids:
                _kill(pid, signal.SIGSTOP)
                self.sleepers[pid] = timer = threading.Timer(self.random.uniform(*PAUSE), self._wake, [pid])
                timer.daemon = True
                timer.start()
            return kind if pids else ""
        else:
            return self._signal(kind, host, job.process.pid)
        return kind

    def _wake(self, pid: int) -> None:
        if (timer := self.sleepers.pop(pid, None)) is not None:
            timer.cancel()
            _kill(pid, signal.SIGCONT)

    def _signal(self, kind: str, host: Host, launcher: int) -> str:
        """Kill one process, or tell it to stop."""
        ranks = [p.pid for p in host.processes() if _is_rank(p)]
        started = [p.pid for p in host.processes() if any(word in p.command for word in STARTED_BY)]
        servers = [pid for pid in _children(ranks, started) if is_server(pid)]
        keepers = [pid for pid in _children([*ranks, *servers], started) if pid not in servers]
        pids = {
            "worker": _children(keepers, started), "keeper": keepers, "server": servers, "rank": ranks,
            "launcher": [launcher], "any": [p.pid for p in host.processes() if p.pid not in started],
        }.get(kind, [*ranks, launcher])  # fmt: skip
        if pids:
            _kill(pid := self.random.choice(pids), signal.Signals[f"SIG{kind if kind in STOPS else 'KILL'}"])
            return f"{kind} to {'the launcher' if pid == launcher else 'a rank'}" if kind in STOPS else kind
        return ""


def _is_rank(process: Process) -> bool:
    """Whether it is a rank of a study, not its launcher."""
    words = process.command.split()
    return words[0] == sys.executable and "--results" in words


def _is_on(host: Host) -> bool:
    with contextlib.suppress(RuntimeError):
        return bool(host.pid)
    return False


def _heal(host: Host) -> None:
    if not _is_on(host):
        host.start()
    host.mend()  # harmless when it was not cut


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _children(parents: Collection[int], among: Iterable[int]) -> list[int]:
    return [pid for pid in among if parent_of(pid) in parents]


def main() -> int:
    parser = argparse.ArgumentParser(description="Random disturbances; see the module's text.")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    until = time.monotonic() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory() as folder, Hosts(4, shared=Path(folder)) as hosts:
        chaos = Chaos(hosts, Path(folder), arguments.seed)
        try:
            for number, name in enumerate(itertools.cycle(STUDIES)):  # of which there are three: each is joined in turn
                if (begin := time.monotonic()) >= until:
                    break
                chaos.study(name, number % 2 == 1, until)
                print(f"{name}: {time.monotonic() - begin:.0f} s, faults so far {dict(chaos.faults)}", flush=True)
        except Broken as broken:
            print(f"last words of the jobs:\n{chaos.log.read_text()[-3000:]}\nbroken promise: {broken}")
            return 1
        finally:
            print(
                f"survived {chaos.faults.total()} faults in {chaos.studies} studies by {chaos.jobs} jobs, "
                f"{chaos.trials} trials, seed {arguments.seed}; "
                f"daemons of Open MPI were left {chaos.left_by_mpi} times",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
