"""Kill at random, run again, and see whether anything is lost: `python -m tests.chaos --minutes 2 --seed 1`.

A study of toy trials with known answers runs on three hosts (network namespaces, as root). Processes, hosts and links
are killed at random moments, ranks sleep and the results folder hangs for 5 to 60 s; the same command is then run on
another random layout, until the study is complete. Then its table must equal that of a run that nobody disturbed, every
trial must be in the journal once, and no process and no shared memory of it may be left on any host. Where only ranks
other than 0 slept or the folder hung, the job itself must have completed the study. Over and over until the time is up.
Exit status 1 at the first thing that is not so. Open MPI's own daemons now and then stay when they lose a rank while
they start it (5.0.11); they are counted, ended, and not taken for ours.
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
from collections.abc import Callable
from pathlib import Path

from common.errors import Exit
from tests.cluster import disk as disks
from tests.cluster.disk import Disk
from tests.cluster.hosts import Host, Hosts
from tests.cluster.mpirun import mpirun
from tests.helpers import TOYS, journal_lines, table_without_run

STUDY = ("40", "--courses", "2", "--rounds", "2", "--batch-trials", "2", "--array-size", "20", "--seconds", "0.05")
N_TRIALS = 160
END_SECONDS = 30.0  # within which the last process of a wounded job must have ended
PAUSE = (5.0, 60.0)  # seconds that a rank sleeps or the results folder hangs, at least and at most
OF_MPI = ("sm_segment", "vader_segment")  # in /dev/shm


class Broken(Exception):
    """A promise was not kept."""


class Chaos:
    """folder: for all hosts, on the disk if there is one.  log: of the jobs, where nothing hangs."""

    def __init__(self, hosts: Hosts, folder: Path, log: Path, disk: Disk | None, seed: int):
        self.hosts, self.folder, self.log, self.disk = hosts, folder, log, disk
        self.random = random.Random(seed)
        self.sleepers: dict[int, threading.Timer] = {}
        self.kills: Counter[str] = Counter()
        self.studies = self.runs = self.left_by_mpi = 0
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
        command = (sys.executable, "-m", "common.status", folder)
        status = self.hosts[0].run(*command, check=False)
        if status.returncode not in (Exit.DONE, Exit.STOPPED, Exit.USAGE):  # usage: killed before the first line
            raise Broken(f"{folder}: {status.stdout}{status.stderr}")
        return bool(status.returncode == Exit.DONE)

    def _run(self, folder: Path, disturb: bool) -> bool:
        """The command on a random layout; then, if it is to be disturbed, a few random kills.

        Returns whether all that was done to it should have cost it nothing but time.
        """
        chosen = self.random.sample(list(self.hosts), self.random.randint(1, 3))
        arguments = ("--gpu", "none", "--workers", self.random.randint(1, 2), "--results", folder, "--quiet")
        command = (sys.executable, *TOYS, *STUDY, *map(str, arguments))
        runs_before = _runs(folder)
        with open(self.log, "ab") as log:
            job = chosen[0].popen(*mpirun(chosen, *command), stdout=log, stderr=log)
        wounds = self._wound(job, chosen, lambda: _runs(folder) > runs_before) if disturb else []
        harmless = all(kind in ("sleep", "stall") for kind in wounds)
        self._wait(180.0 if harmless else END_SECONDS + PAUSE[1], f"after {' and '.join(wounds) or 'its start'}")
        if left := [process for found in self.hosts.processes().values() for process in found]:
            self.left_by_mpi += 1
            for process in left:
                os.kill(process.pid, signal.SIGKILL)
        job.wait(10)
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
        """Ranks, workers and their resource trackers."""
        return [pid for host in self.hosts for pid in _ranks(host) + _started(host, "multiprocessing")]

    def _heal(self, host: Host) -> None:
        try:
            left = os.listdir(f"/proc/{host.pid}/root/dev/shm")
        except RuntimeError:  # it is off
            host.start()
        else:
            if ours := [name for name in left if not name.startswith(OF_MPI)]:
                raise Broken(f"shared memory was left on {host.name}: {ours}")
        host.mend()  # harmless when it was not cut

    def _wound(self, job: subprocess.Popen[str], chosen: list[Host], is_up: Callable[[], bool]) -> list[str]:
        """Something happens, mostly soon, sometimes only after the job's end. Returns what did."""
        done: list[str] = []
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            try:
                job.wait(self.random.uniform(0.3, 4.0))
                return done
            except subprocess.TimeoutExpired:
                pass
            host = self.random.choice(chosen)
            kind = self.random.choice(("worker", "rank", "launcher", "host", "link", "any", "stop", "sleep", "stall"))
            if kind in ("host", "link") and not is_up():
                continue  # our heartbeat guards a job, not its launch: there TCP's and MPI's own patience counts
            if self._pause(kind, host) if kind in ("sleep", "stall") else self._kill(kind, host, job):
                # Ranks wait for a sleeping rank 0 as long as for a dead one, and for anybody while the job starts.
                fatal = kind == "sleep" and (host is chosen[0] or not is_up())
                self.kills[kind] += 1
                done += [] if kind == "worker" else [f"{kind}, which may kill" if fatal else kind]
        return done

    def _pause(self, kind: str, host: Host) -> bool:
        """A rank sleeps, or the results folder hangs, for a while."""
        seconds = self.random.uniform(*PAUSE)
        if kind == "stall":
            if self.disk is not None:
                self.disk.freeze(seconds)
            return self.disk is not None
        if not (pids := [pid for pid in _ranks(host) if pid not in self.sleepers]):
            return False
        try:
            os.kill(pids[0], signal.SIGSTOP)
        except ProcessLookupError:
            return False
        self.sleepers[pids[0]] = timer = threading.Timer(seconds, self._wake, pids)
        timer.daemon = True
        timer.start()
        return True

    def _wake(self, pid: int) -> None:
        if (timer := self.sleepers.pop(pid, None)) is not None:
            timer.cancel()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _kill(self, kind: str, host: Host, job: subprocess.Popen[str]) -> bool:
        if kind == "host":
            host.kill()
        elif kind == "link":
            host.cut()
        else:
            pids = {
                "worker": _started(host, "spawn_main"),
                "rank": _ranks(host),
                "launcher": [job.pid],
                "any": [p.pid for p in host.processes()],
                "stop": _ranks(host),
            }[kind]
            if not pids:
                return False
            try:
                os.kill(self.random.choice(pids), signal.SIGTERM if kind == "stop" else signal.SIGKILL)
            except ProcessLookupError:
                return False
        return True


def _runs(folder: Path) -> int:
    """How often the study was begun, by its journal."""
    journal = folder / "journal.jsonl"
    return journal.read_text().count('{"run"') if journal.exists() else 0


def _started(host: Host, word: str) -> list[int]:
    return [process.pid for process in host.processes() if word in process.command]


def _ranks(host: Host) -> list[int]:
    return [p.pid for p in host.processes() if "-m tests.toys" in p.command and "--host" not in p.command]


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
        hosts = stack.enter_context(Hosts(3, shared=shared))
        chaos = Chaos(hosts, shared, folder / "log", disk, arguments.seed)
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
                f"daemons of Open MPI were left {chaos.left_by_mpi} times",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
