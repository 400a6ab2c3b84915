"""However a study dies, nothing of it stays: no process, no shared memory, no words of a resource tracker."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from subprocess import Popen

import pytest

from tests.helpers import (
    PATIENCE,
    about,
    family,
    maps_of_sharers,
    rank_of,
    start,
    wait_for_lines,
    wait_for_the_end_of,
    wait_until,
    workers_of,
)
from tests.toys import STARTED

QUICK = [(2, "KILL of a rank")]
SLOW = [(2, "KILL"), (2, "TERM"), (0, "KILL of a worker")]


def die(job: Popen[str], way: str) -> None:
    number = signal.Signals[f"SIG{way.split()[0]}"]
    if way.endswith("worker"):
        os.kill(workers_of(job.pid).pop(), number)
        time.sleep(0.2)
        job.send_signal(signal.SIGUSR1)  # as the study goes on
    elif way.endswith("rank"):
        os.kill(rank_of(workers_of(job.pid).pop()), number)
    else:
        job.send_signal(number)


def commands_of(pid: int) -> dict[int, str]:
    return {member: words.replace("\0", " ") for member, words in about(family(pid), "cmdline").items()}


def named_memory(maps: str) -> set[str]:
    """What a process has of shared memory with a name, which can stay behind; but for Open MPI's own (72 KiB)."""
    return {line.split()[5] for line in maps.splitlines() if "/dev/shm/" in line and "/sm_segment." not in line}


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize(("ranks", "way"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)])
def test_nothing_stays(tmp_path: Path, ranks: int, way: str) -> None:
    """Nor of what a trial has started."""
    starts = ("--at", "t0=starts_programs", "t1=starts_programs")
    job = start(tmp_path, "4000", "--seconds", "0.05", "--data-size", "100000", *starts, ranks=ranks)
    wait_for_lines(tmp_path, 4)
    maps = maps_of_sharers(job.pid, 3 * max(1, ranks))
    assert wait_until(lambda: sum(STARTED in words for words in commands_of(job.pid).values()) >= 6)  # in two trials
    members = {*maps, *commands_of(job.pid)}
    assert not set().union(*map(named_memory, maps.values()))
    die(job, way)
    _, stderr = job.communicate(timeout=PATIENCE)
    assert job.returncode != 0
    assert "resource_tracker" not in stderr and "Traceback" not in stderr
    wait_for_the_end_of(members)
