"""Ranks, nodes, links and launchers die; the same command on another layout finishes, and nothing is done twice.

Where nobody died and something only slept, the job goes on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpitune.errors import Exit
from tests.helpers import PATIENCE, TOYS, journal_lines, table_without_run, wait_until

from .hosts import Host, Hosts, ranks_of
from .mpirun import mpirun

STUDY = ("60", "--rounds", "2", "--array-size", "9", "--data-size", "100000")
N_TRIALS = 120


def command(folder: Path, *options: Any, seconds: float = 0.1) -> tuple[str, ...]:
    layout = ("--gpu", "none", "--workers", "2", "--results", str(folder))
    return (sys.executable, *TOYS, *STUDY, "--seconds", str(seconds), *layout, *options)


def start(
    hosts: Hosts, folder: Path, options: tuple[str, ...] = (), arguments: tuple[str, ...] = (), seconds: float = 0.5
) -> subprocess.Popen[str]:
    """The study on all hosts, left alone until every rank has returned something."""
    words = folder.parent / "log"
    program = command(folder, *arguments, seconds=seconds)
    with open(words, "w") as log:
        job = hosts[0].popen(*mpirun(hosts, *program, options=options), stdout=log, stderr=log)
    deadline = time.monotonic() + PATIENCE
    while not (folder / "journal.jsonl").exists() or {line["place"][1] for line in journal_lines(folder)} != {0, 1, 2}:
        assert time.monotonic() < deadline and job.poll() is None, words.read_text()
        time.sleep(0.05)
    return job


def require_whole(folder: Path, clean: str) -> None:
    """Every trial is there once, and the table is that of a run that nobody disturbed."""
    keys = [line["key"] for line in journal_lines(folder)]
    assert len(keys) == len(set(keys)) == N_TRIALS
    assert table_without_run(folder / "trials.csv") == clean


def status_of(hosts: Hosts, folder: Path) -> int:
    return hosts[0].run(sys.executable, "-m", "mpitune", "status", folder, check=False).returncode


def shared_memory(host: Host) -> list[str]:
    """Names of the shared memory that is left on a host; Open MPI's own (72 KiB) is not counted."""
    names = host.run("ls", "/dev/shm").stdout.split()
    return [name for name in names if not name.startswith("sm_segment.")]


def kill_rank(hosts: Hosts, number: int) -> None:
    (pid,) = ranks_of(hosts[number])
    os.kill(pid, signal.SIGKILL)


FAULTS: dict[str, Callable[[Hosts, subprocess.Popen[str]], None]] = {
    "rank 1 killed": lambda hosts, job: kill_rank(hosts, 1),
    "node of rank 0 killed": lambda hosts, job: hosts[0].kill(),
    "link cut": lambda hosts, job: hosts[1].cut(),
}


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The table of an undisturbed run."""
    from .hosts import REPOSITORY, environment

    folder = tmp_path_factory.mktemp("clean")
    subprocess.run(command(folder / "r"), cwd=REPOSITORY, env=environment(), check=True, capture_output=True)
    return table_without_run(folder / "r" / "trials.csv")


@pytest.mark.parametrize("fault", FAULTS)
def test_the_job_ends_and_the_same_command_finishes(hosts: Hosts, tmp_path: Path, clean: str, fault: str) -> None:
    folder = tmp_path / "r"
    job = start(hosts, folder)
    FAULTS[fault](hosts, job)
    assert wait_until(lambda: not hosts.processes()), hosts.processes()
    job.wait(PATIENCE)
    dead = {"node of rank 0 killed": "node0"}.get(fault)
    assert {host.name: shared_memory(host) for host in hosts if host.name != dead and shared_memory(host)} == {}
    assert len(journal_lines(folder)) < N_TRIALS
    for host in hosts:  # the dead node and the cut link stay so: the job goes on with what is left
        if fault == "node of rank 0 killed" and host.name == "node0":
            host.start()
    assert status_of(hosts, folder) == Exit.STOPPED
    living = hosts[:1] if fault == "link cut" else [hosts[0], hosts[1]]
    hosts[0].run(*mpirun(living, *command(folder)))
    assert status_of(hosts, folder) == Exit.DONE
    require_whole(folder, clean)


def test_a_link_that_is_cut_as_the_study_begins_leaves_no_rank_behind(hosts: Hosts, tmp_path: Path, clean: str) -> None:
    """Nobody but our heartbeat notices: Open MPI's daemons have no keepalive here, and wait for 480 s."""
    folder, log = tmp_path / "r", tmp_path / "log"
    with open(log, "w") as words:
        study = command(folder, seconds=0.5)
        job = hosts[0].popen(*mpirun(hosts, *study, keepalive=False), stdout=words, stderr=words)
    journal = folder / "journal.jsonl"
    assert wait_until(lambda: journal.exists() and '{"run"' in journal.read_text()), log.read_text()
    hosts[1].cut()
    assert wait_until(lambda: not any(map(ranks_of, hosts))), log.read_text()
    assert "rank 1 has given no sign of life" in log.read_text() and status_of(hosts, folder) == Exit.STOPPED
    job.kill()
    hosts[0].run(*mpirun(hosts[:1], *study))
    require_whole(folder, clean)


def test_a_job_that_is_suspended_as_a_whole_goes_on(hosts: Hosts, tmp_path: Path, clean: str) -> None:
    """As by `scontrol suspend`: all ranks sleep for longer than --heartbeat-timeout, and wake one after the other."""
    folder = tmp_path / "r"
    job = start(hosts, folder, arguments=("--heartbeat-timeout", "6"))
    sleepers = [pid for host in hosts for pid in ranks_of(host)]
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in sleepers:
            os.kill(pid, number)
            time.sleep(0.2)
        time.sleep(12 if number == signal.SIGSTOP else 0)
    assert job.wait(PATIENCE) == Exit.DONE, (tmp_path / "log").read_text()
    assert "lost" not in (tmp_path / "log").read_text()
    require_whole(folder, clean)
