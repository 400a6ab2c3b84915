"""Data-parallel training ends, on all hosts, when a part of it dies."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from mpitune.errors import Exit
from tests.helpers import PATIENCE, ROOT, family, wait_for_the_end_of
from tests.mnist_nn.trainings import DDP, pods, wait_for_an_epoch

ENDS_WITHIN_S = PATIENCE  # a silent process is waited for twice as long
FOR_EVER = ("--epochs", "100000")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread_everywhere")]


@pytest.mark.parametrize("who", ["a child", "the parent"])
def test_a_killed_process_ends_the_node(data: Path, tmp_path: Path, who: str) -> None:
    command = (*DDP, *FOR_EVER, "--data", data, "--results", tmp_path, "--nproc-per-node", "2")
    job = subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=subprocess.DEVNULL, text=True)
    wait_for_an_epoch(tmp_path, job)
    members = family(job.pid)
    children = [pid for pid in members if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(max(children) if who == "a child" else job.pid, signal.SIGKILL)
    assert len(children) == 2 and job.wait(ENDS_WITHIN_S) != 0
    wait_for_the_end_of(members)


def test_without_a_launcher_the_other_one_notices(data: Path, tmp_path: Path) -> None:
    both = pods(*[("--data", data, "--results", tmp_path, *FOR_EVER)] * 2)
    try:
        wait_for_an_epoch(tmp_path, *both)
        both[0].kill()
        assert both[1].wait(ENDS_WITHIN_S) == Exit.ERROR
    finally:
        for pod in both:
            pod.kill()
            pod.communicate()
