"""Data-parallel training ends, on all hosts, when a part of it dies or cannot take part."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mpitune.errors import Exit
from tests.helpers import PATIENCE, ROOT
from tests.mnist_nn.trainings import free_port

ENDS_WITHIN_S = PATIENCE  # gloo itself waits for 30 minutes
pytestmark = pytest.mark.usefixtures("one_thread_everywhere")


def start(arguments: list[str], **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mnist_nn.ddp", "--epochs", "100000", *arguments], cwd=ROOT, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def wait_for_an_epoch(folder: Path, *processes: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not (folder / "checkpoint.pt").exists():
        assert time.monotonic() < deadline and all(process.poll() is None for process in processes)
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    """Processes that train: the command line of a spawned child says so; the resource tracker's does not."""
    found = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [child for child in found if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_ends_the_node(data: Path, tmp_path: Path, victim: int) -> None:
    job = start(["--data", str(data), "--results", str(tmp_path), "--nproc-per-node", "2"])
    wait_for_an_epoch(tmp_path, job)
    ranks = children(job.pid)
    os.kill(ranks[victim], signal.SIGKILL)
    assert job.wait(ENDS_WITHIN_S) != 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)


def pods(arguments: list[str], *options: list[str]) -> list[subprocess.Popen[str]]:
    """A process for each of `options`, as the pods of a PyTorchJob: nobody ends them from outside."""
    port = free_port()
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(len(options))}
    return [start([*arguments, *more], RANK=str(rank), **where) for rank, more in enumerate(options)]


@pytest.mark.slow
def test_a_process_that_fails_at_its_start_ends_the_others(data: Path, tmp_path: Path) -> None:
    """Before the group stands: there a GPU that is taken shows, and the others wait for minutes."""
    port = free_port()
    fails = (
        "import sys, torch.distributed as dist\n"
        "def init(*_, **__): raise RuntimeError('CUDA-capable device(s) is/are busy or unavailable')\n"
        "from mnist_nn.ddp import main\n"
        "dist.init_process_group = init\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    both = [
        subprocess.Popen(
            [sys.executable, *how, "--data", str(data), "--results", str(tmp_path), "--epochs", "1"], cwd=ROOT,
            env={**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "RANK": str(rank)},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for rank, how in enumerate((["-m", "mnist_nn.ddp"], ["-c", fails]))
    ]  # fmt: skip
    try:
        _, said = both[0].communicate(timeout=PATIENCE)
        assert both[0].returncode == Exit.ERROR and "busy or unavailable" in said
    finally:
        for process in both:
            process.kill()
            process.communicate()


@pytest.mark.slow
def test_a_node_that_cannot_take_part_is_named(data: Path, tmp_path: Path) -> None:
    first, second = pods(["--data", str(data), "--results", str(tmp_path), "--no-cuda"], [], ["--backend", "nccl"])
    _, said = first.communicate(timeout=PATIENCE)
    second.communicate(timeout=PATIENCE)
    assert first.returncode == Exit.USAGE and "--backend nccl needs GPUs: --no-cuda leaves none" in said


@pytest.mark.slow
def test_a_host_with_another_version_of_the_code_is_refused(data: Path, tmp_path: Path) -> None:
    """The second pod has an image of yesterday."""
    other = tmp_path / "other"
    for package in ("mpitune", "common", "mnist_nn"):
        shutil.copytree(ROOT / package, other / package, ignore=shutil.ignore_patterns("__pycache__"))
    with open(other / "mnist_nn" / "net.py", "a") as file:
        file.write("# of yesterday\n")
    for more, status in (([], Exit.USAGE), (["--allow-mixed-versions", "--epochs", "1"], Exit.DONE)):
        port = free_port()
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
        command = [sys.executable, "-m", "mnist_nn.ddp", "--data", str(data), "--results", str(tmp_path / "r"), *more]
        both = [
            subprocess.Popen(
                command, cwd=folder, env={**os.environ, **where, "RANK": str(rank), "PYTHONPATH": str(folder)},
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )
            for rank, folder in enumerate((ROOT, other))
        ]  # fmt: skip
        said = [process.communicate(timeout=PATIENCE)[1] for process in both]
        assert both[0].returncode == status, said
        assert "hosts have different versions: code " in said[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "how"), [(1, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGSTOP)],
    ids=["rank 1 killed", "rank 0 killed", "rank 1 silent"],
)  # fmt: skip
def test_without_a_launcher_the_others_notice(data: Path, tmp_path: Path, victim: int, how: signal.Signals) -> None:
    """A stopped process says nothing, and keeps its connections."""
    both = pods(["--data", str(data), "--results", str(tmp_path)], [], [])
    try:
        wait_for_an_epoch(tmp_path, *both)
        both[victim].send_signal(how)
        assert both[1 - victim].wait(ENDS_WITHIN_S) == Exit.ERROR
    finally:
        for pod in both:
            pod.kill()
            pod.communicate()
