"""Kill at random, run again, and see whether anything is lost: `python -m tests.chaos --minutes 2 --seed 1`.

A study of toy trials with known answers runs on three hosts (network namespaces, as root). Some of its trials start
programs, forks and daemons, some of them deaf to SIGTERM. Processes, hosts and links are killed at random moments.
Ranks and the launcher get each of the signals to stop, before the trials, in them and in the report. Ranks sleep, the
results folder hangs for 5 to 60 s, and the disk of the log is full. The same command is then run on another random
layout, until the study is complete. Then its table must equal that of a run that nobody disturbed, every trial must be
in the journal once, and no process, be it one that a trial has started, and no shared memory may be left on any host.
Where only ranks other than 0 slept, the folder hung, the log was lost, or workers, their keepers or the servers that
fork them were killed, the job itself must have completed the study. Over and over until the time is up. Exit status 1
at the first thing that is not so. Open MPI's own daemons now and then stay when they lose a rank while they start it
(5.0.11); they are counted, ended, and not taken for ours.
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
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path

from mpitune.engine.progress import read_status_file
from mpitune.errors import Exit
from tests.cluster import disk as disks
from tests.cluster.disk import Disk
from tests.cluster.hosts import Host, Hosts, ranks_of
from tests.cluster.mpirun import mpirun
from tests.helpers import TOYS, journal_lines, parent_of, session_of, table_without_run
from tests.toys import STARTED

STUDY = (
    "40", "--courses", "2", "--rounds", "2", "--batch-trials", "2", "--array-size", "20", "--seconds", "0.05",
    "--linger", "1", "--at", *(f"c{course}/r0/t{trial}=starts_programs" for course in (0, 1) for trial in (0, 7, 20)),
)  # fmt: skip
N_TRIALS = 160
END_SECONDS = 30.0  # within which the last process of a wounded job must have ended
STOPS = ("TERM", "INT", "USR1")
OF_A_SLOT = ("worker", "keeper", "server")
KINDS = (*OF_A_SLOT, "rank", "launcher", "host", "link", "any", "sleep", "stall", *STOPS)
START, TRIALS, REPORT = PHASES = ("before the trials", "in the trials", "in the report")
PAUSE = (5.0, 60.0)  # seconds that a rank sleeps or the results folder hangs, at least and at most
OF_MPI = ("sm_segment", "vader_segment")  # in /dev/shm


class Broken(Exception):
    """A promise was not kept."""


class Chaos:
    """folder: for all hosts, on the disk if there is one.  log: where nothing hangs.  full: one on a full disk."""

    def __init__(self, hosts: Hosts, folder: Path, log: Path, full: Path | None, disk: Disk | None, seed: int):
        self.hosts, self.folder, self.log, self.full, self.disk = hosts, folder, log, full, disk
        self.random = random.Random(seed)
        self.sleepers: dict[int, threading.Timer] = {}
        self.kills: Counter[str] = Counter()
        self.stopped: Counter[str] = Counter()  # jobs that got one signal and met nothing else, with their exit status
        self.studies = self.runs = self.left_by_mpi = 0
        self.log.touch()
        self.expected = self._clean_table()

    def _clean_table(self) -> str:
        folder = self.folder / "clean"
        self.hosts[0].run(sys.executable, *TOYS, *STUDY, "--gpu", "none", "--workers", "2", "--results", folder)
        return table_without_run(folder / "trials.csv")

    def study(self, until: float) -> None:
        """One study to its end, through as many deaths as it takes; undisturbed once the time is up."""
        folder = self.folder / f"study-{self.studies}"
        while True:
            harmless = self._run(folder, disturb=time.monotonic() < until)
            self.runs += 1
            if self._complete(folder):
                break
            if harmless:
                raise Broken(f"{folder}: a job ended although nothing died")
        keys = Counter(line["key"] for line in journal_lines(folder))
        if len(keys) != N_TRIALS or max(keys.values()) > 1:
            raise Broken(f"{folder}: {len(keys)} of {N_TRIALS} trials, most often {keys.most_common(1)}")
        if table_without_run(folder / "trials.csv") != self.expected:
            raise Broken(f"{folder}: the table differs from the undisturbed one")
        self.studies += 1

    def _complete(self, folder: Path) -> bool:
        command = (sys.executable, "-m", "mpitune", "status", folder)
        status = self.hosts[0].run(*command, check=False)
        if status.returncode not in (Exit.DONE, Exit.STOPPED, Exit.USAGE):  # usage: killed before the first line
            raise Broken(f"{folder}: {status.stdout}{status.stderr}")
        return bool(status.returncode == Exit.DONE)

    def _run(self, folder: Path, disturb: bool) -> bool:
        """The command on a random layout; then, if it is to be disturbed, a few random kills.

        Returns whether all that was done to it should have cost it nothing but time.
        """
        chosen = self.random.sample(list(self.hosts), self.random.randint(1, 3))
        lost = disturb and self.full is not None and self.random.random() < 0.3
        arguments = ("--gpu", "none", "--workers", self.random.randint(1, 2), "--results", folder)
        command = [sys.executable, *TOYS, *STUDY, *map(str, arguments), "--verbose" if lost else "--quiet"]
        if lost:  # that of each rank; mpirun alone would lose it for them
            command = ["sh", "-c", f'exec "$@" >> "{self.full}" 2>&1', "sh", *command]
            self.kills["full log"] += 1
        runs_before = _runs(folder)
        with open(self.full if lost and self.full else self.log, "ab") as log:
            job = chosen[0].popen(*mpirun(chosen, *command), stdout=log, stderr=log)
        phase = partial(_phase, folder, runs_before)
        wounds = self._wound(job, chosen, phase) if disturb else []
        harmless = all(what in ("sleep", "stall", *OF_A_SLOT) for what in wounds)
        self._wait(180.0 if harmless else END_SECONDS + PAUSE[1], f"after {' and '.join(wounds) or 'its start'}")
        if left := [process for found in self.hosts.processes().values() for process in found]:
            self.left_by_mpi += 1
            for process in left:
                os.kill(process.pid, signal.SIGKILL)
        job.wait(10)
        if len(wounds) == 1 and wounds[0].startswith(STOPS) and not left:
            self.stopped[f"{wounds[0]}: {job.returncode}"] += 1
        for host in self.hosts:
            self._heal(host)
        for pid in list(self.sleepers):
            self._wake(pid)
        if self.disk is not None:
            self.disk.thaw()
        return harmless

    def _wait(self, seconds: float, words: str) -> None:
        """Until no process is left, or only daemons of Open MPI are after that time."""
        deadline = time.monotonic() + seconds
        while left := [process for found in self.hosts.processes().values() for process in found]:
            if time.monotonic() > deadline:
                ours = [p for p in left if p.pid in self._ours()]
                if ours:
                    every = {name: [p.command[:70] for p in of] for name, of in self.hosts.processes().items()}
                    raise Broken(f"a job was not gone {seconds:g} s {words}: {ours}\nall that is left: {every}")
                return
            time.sleep(0.05)

    def _ours(self) -> list[int]:
        """Ranks, workers and their resource trackers, and what trials have started."""
        return [pid for host in self.hosts for pid in ranks_of(host) + _started(host, "multiprocessing", STARTED)]

    def _heal(self, host: Host) -> None:
        try:
            left = os.listdir(f"/proc/{host.pid}/root/dev/shm")
        except RuntimeError:  # it is off
            host.start()
        else:
            if ours := [name for name in left if not name.startswith(OF_MPI)]:
                raise Broken(f"shared memory was left on {host.name}: {ours}")
        host.mend()  # harmless when it was not cut

    def _wound(self, job: subprocess.Popen[str], chosen: list[Host], phase: Callable[[], str]) -> list[str]:
        """Something happens, the first of it in a random phase of the job. Returns what did."""
        done: list[str] = []
        first = self.random.choice(PHASES)
        while phase() != first and job.poll() is None:
            time.sleep(0.05)
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            try:
                job.wait(self.random.uniform(0.0, 3.0 if phase() == START else 1.5))
                return done
            except subprocess.TimeoutExpired:
                pass
            host = self.random.choice(chosen)
            kind, seen = self.random.choice(KINDS), phase()
            if kind in ("host", "link") and seen == START:
                continue  # our heartbeat guards a job, not its launch: there TCP's and MPI's own patience counts
            if kind in OF_A_SLOT and set(OF_A_SLOT) & set(done):
                continue  # a trial that loses two workers has failed, and one of two keepers may be at work
            if what := self._pause(kind, host) if kind in ("sleep", "stall") else self._kill(kind, host, job):
                # Ranks wait for a sleeping rank 0 as long as for a dead one, and for anybody while the job starts.
                fatal = kind == "sleep" and (host is chosen[0] or seen == START)
                what += f" {seen}" if kind in STOPS else ""
                self.kills[what] += 1
                done.append(f"{what}, which may kill" if fatal else what)
        return done

    def _pause(self, kind: str, host: Host) -> str:
        """A rank sleeps, or the results folder hangs, for a while. Returns its kind if that is so."""
        seconds = self.random.uniform(*PAUSE)
        if kind == "stall":
            if self.disk is None:
                return ""
            self.disk.freeze(seconds)
            return kind
        if not (pids := [pid for pid in ranks_of(host) if pid not in self.sleepers]):
            return ""
        try:
            os.kill(pids[0], signal.SIGSTOP)
        except ProcessLookupError:
            return ""
        self.sleepers[pids[0]] = timer = threading.Timer(seconds, self._wake, pids)
        timer.daemon = True
        timer.start()
        return kind

    def _wake(self, pid: int) -> None:
        if (timer := self.sleepers.pop(pid, None)) is not None:
            timer.cancel()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _kill(self, kind: str, host: Host, job: subprocess.Popen[str]) -> str:
        """Returns what was done, "" for nothing."""
        if kind == "host":
            host.kill()
        elif kind == "link":
            host.cut()
        else:
            ranks, workers = ranks_of(host), _started(host, "spawn_main")
            servers = [pid for pid in _children(ranks, workers) if session_of(pid) != pid]
            outer = [pid for pid in _children([*ranks, *servers], workers) if pid not in servers]
            inner = _children(outer, workers)
            pids = {
                "worker": _children(inner, workers),
                "keeper": outer + inner,
                "server": servers,
                "rank": ranks,
                "launcher": [job.pid],
                "any": [p.pid for p in host.processes() if p.pid not in workers],
            }.get(kind, [*ranks, job.pid])
            if not pids:
                return ""
            pid = self.random.choice(pids)
            try:
                os.kill(pid, signal.Signals[f"SIG{kind if kind in STOPS else 'KILL'}"])
            except ProcessLookupError:
                return ""
            if kind in STOPS:
                return f"{kind} to {'the launcher' if pid == job.pid else 'a rank'}"
        return kind


def _runs(folder: Path) -> int:
    """How often the study was begun, by its journal."""
    journal = folder / "journal.jsonl"
    return journal.read_text().count('{"run"') if journal.exists() else 0


def _phase(folder: Path, runs_before: int) -> str:
    """What a job does that has found so many runs in the journal."""
    if _runs(folder) == runs_before:
        return START
    seen = read_status_file(folder)
    return REPORT if seen and "figures" in seen.doing else TRIALS


def _children(parents: Collection[int], among: Iterable[int]) -> list[int]:
    return [pid for pid in among if parent_of(pid) in parents]


def _started(host: Host, *words: str) -> list[int]:
    return [process.pid for process in host.processes() if any(word in process.command for word in words)]


@contextlib.contextmanager
def _full_log() -> Iterator[Path | None]:
    """A file on a disk of its own, which has room for a few lines; None where nothing can be mounted."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # each host has a /tmp of its own
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", folder]).returncode:
            yield None
            return
        try:
            path = Path(folder, "log")
            path.write_bytes(b"." * 4000 + b"\n")
            yield path
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Random kills; see the module's text.")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    until = time.monotonic() + 60 * arguments.minutes
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        disk = None
        if reason := disks.missing():
            print(f"the results folder does not hang: {reason}", flush=True)
        else:
            disk = stack.enter_context(Disk(folder))
        shared = disk.point if disk else folder
        full = stack.enter_context(_full_log())
        hosts = stack.enter_context(Hosts(3, shared=shared))
        chaos = Chaos(hosts, shared, folder / "log", full, disk, arguments.seed)
        try:
            while time.monotonic() < until:
                chaos.study(until)
        except Broken as broken:
            print(f"last words of the jobs:\n{chaos.log.read_text()[-3000:]}\nbroken promise: {broken}")
            return 1
        finally:
            print(
                f"survived {chaos.kills.total()} faults ({', '.join(f'{n} {k}' for k, n in chaos.kills.items())}) in "
                f"{chaos.runs} runs of {chaos.studies} studies, {N_TRIALS} trials each, seed {arguments.seed}; "
                f"daemons of Open MPI were left {chaos.left_by_mpi} times; "
                f"exit statuses after one signal and nothing else: {dict(chaos.stopped)}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
