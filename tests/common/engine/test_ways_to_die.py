"""However a study dies, nothing of it stays: no process, no shared memory, no words of a resource tracker."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from subprocess import Popen

import pytest

from tests.helpers import alive, family, start, wait_for_lines

WAYS = ("TERM", "INT", "USR1", "KILL", "KILL of a rank", "KILL of a worker", "KILL of the group")


def die(job: Popen[str], way: str) -> None:
    number = signal.Signals[f"SIG{way.split()[0]}"]
    workers = {pid for pid in family(job.pid) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()}
    if way.endswith("group"):
        os.killpg(job.pid, number)
    elif way.endswith("worker"):
        os.kill(max(workers), number)
        time.sleep(0.2)
        job.send_signal(signal.SIGUSR1)  # as the study goes on
    elif way.endswith("rank"):
        os.kill(max(parent_of(pid) for pid in workers), number)
    else:
        job.send_signal(number)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def named_memory(pid: int) -> set[str]:
    """What a process has of shared memory with a name, which can stay behind; but for Open MPI's own (72 KiB)."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split()[5] for line in lines if "/dev/shm/" in line and "/sm_segment." not in line}


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ranks", [0, 2])
def test_nothing_stays(tmp_path: Path, ranks: int, way: str) -> None:
    job = start(tmp_path, "4000", "--seconds", "0.05", "--data-size", "100000", ranks=ranks)
    wait_for_lines(tmp_path, 4)
    members = family(job.pid)
    assert not set().union(*map(named_memory, members))
    shared = [pid for pid in members if "/memfd:search" in Path(f"/proc/{pid}/maps").read_text()]
    assert len(shared) >= 3, "a rank and its workers share the data, without a name"
    die(job, way)
    _, stderr = job.communicate(timeout=60)
    assert job.returncode != 0
    assert "resource_tracker" not in stderr and "Traceback" not in stderr
    deadline = time.monotonic() + 20
    while left := alive(members):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.05)
