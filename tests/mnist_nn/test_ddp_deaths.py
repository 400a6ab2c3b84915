"""Data-parallel training ends, on all hosts, when a part of it dies or cannot take part."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from mpitune.errors import Exit
from tests.helpers import PATIENCE, ROOT
from tests.mnist_nn.trainings import DDP, pods, wait_for_an_epoch

ENDS_WITHIN_S = PATIENCE  # a silent process is waited for twice as long
FOR_EVER = ("--epochs", "100000")
pytestmark = pytest.mark.usefixtures("one_thread_everywhere")


def children(pid: int) -> list[int]:
    """Processes that train: the command line of a spawned child says so; the resource tracker's does not."""
    found = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [child for child in found if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.mark.slow
def test_a_killed_process_ends_the_node(data: Path, tmp_path: Path) -> None:
    command = (*DDP, *FOR_EVER, "--data", data, "--results", tmp_path, "--nproc-per-node", "2")
    job = subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=subprocess.DEVNULL, text=True)
    wait_for_an_epoch(tmp_path, job)
    ranks = children(job.pid)
    os.kill(ranks[1], signal.SIGKILL)
    assert job.wait(ENDS_WITHIN_S) != 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "both", "status", "says"),
    [
        ("--backend nccl", "--no-cuda", Exit.USAGE, "--backend nccl needs GPUs: --no-cuda leaves none"),
        ("", "", Exit.USAGE, "hosts have different versions: code "),
        ("", "--allow-mixed-versions", Exit.DONE, "hosts have different versions: code "),
    ],
)
def test_a_host_that_cannot_take_part_is_named(
    data: Path, tmp_path: Path, options: str, both: str, status: int, says: str
) -> None:
    """The second pod has other options, or an image of yesterday."""
    other = tmp_path / "other"
    for package in ("mpitune", "common", "mnist_nn"):
        shutil.copytree(ROOT / package, other / package, ignore=shutil.ignore_patterns("__pycache__"))
    with open(other / "mnist_nn" / "net.py", "a") as file:
        file.write("# of yesterday\n")
    given = ("--data", data, "--results", tmp_path / "r", "--epochs", "1", *both.split())
    pair = pods(given, (*given, *options.split()), folders=(ROOT, ROOT if options else other))
    said = [process.communicate(timeout=PATIENCE)[1] for process in pair]
    assert pair[0].returncode == status and says in said[0], said


@pytest.mark.slow
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
