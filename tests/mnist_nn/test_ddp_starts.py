"""Starts and ends of data-parallel training: launchers, hosts that do not fit, who may reach it, and deaths."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from mnist_nn.ddp import main
from mnist_nn.parallel.rendezvous import LOOPBACK, Address, Meeting, RankInfo, known_address, ranks_here
from mnist_nn.parallel.settings import Settings, launch_info
from mpitune.errors import Exit, UsageError
from mpitune.ranks.launch import Launch
from tests.helpers import PATIENCE, ROOT, family, listeners, mpirun_command, wait_for_the_end_of
from tests.mnist_nn.trainings import DDP, pods, rows, wait_for_an_epoch

pytestmark = pytest.mark.usefixtures("one_thread_everywhere")


def test_a_taken_port_is_named(data: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": 0, "WORLD_SIZE": 2}.items():
            monkeypatch.setenv(name, str(value))
        assert main(["--data", str(data)]) == Exit.USAGE
    said = capsys.readouterr().err
    assert f"rank 0 at 127.0.0.1:{port} cannot listen" in said and said.count("\n") == 1


SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "3"}
NODES = {"SLURM_STEP_NODELIST": "gpu[08-11,20],login"}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "2", "PMIX_NAMESPACE": "prte-1@1"}
TORCH = {"RANK": "2", "WORLD_SIZE": "3"}
MASTER = {"MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
TOLD = Address("job-master-0", 23456)


@pytest.mark.parametrize(
    ("environ", "who", "address"),
    [
        ({}, Launch("", 1, 0), Address(LOOPBACK, 0)),
        ({**TORCH, **MASTER, **SLURM}, Launch("torch", 3, 2), TOLD),
        ({**SLURM, **NODES, "MASTER_PORT": "9"}, Launch("srun", 3, 2), Address("gpu08", 9)),
        ({**SLURM, **NODES, **MASTER}, Launch("srun", 3, 2), TOLD),
        ({**OPEN_MPI, **SLURM, **NODES}, Launch("mpirun", 3, 2), None),
        ({**OPEN_MPI, **MASTER}, Launch("mpirun", 3, 2), TOLD),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, Launch("mpiexec", 2, 1), None),
        ({"RANK": "3", "WORLD_SIZE": "3"}, Launch("", 1, 0), Address(LOOPBACK, 0)),
    ],
    ids=["shell", "torchrun in srun", "srun", "srun, told", "mpirun", "mpirun, told", "mpiexec", "none"],
)  # fmt: skip
def test_the_environment_says_who_and_where(environ: dict[str, str], who: Launch, address: Address | None) -> None:
    assert launch_info(environ) == who
    assert known_address(who, environ) == address


@pytest.mark.parametrize(
    ("nodes", "first"), [("n1,n2", "n1"), ("n[1-3]", "n1"), ("a[08,13],b", "a08"), ("a,b[1]", "a")]
)
def test_the_tasks_of_a_step_of_slurm_meet_at_its_first_node(nodes: str, first: str) -> None:
    me, step = Launch("srun", 3, 2), {**SLURM, "SLURM_STEP_NODELIST": nodes}
    one, other = known_address(me, step), known_address(me, {**step, "SLURM_STEP_ID": "1"})
    assert one is not None and other is not None and one.host == first and one.port != other.port


def ranks(others: list[tuple[str, int]], *, version: str = "1", why: str = "", **settings: Any) -> list[RankInfo]:
    """Those of the first process, on host a with 4 GPUs, where there are others: (host, GPUs), of that version."""
    store = dist.HashStore()
    for rank, (host, n_gpus) in enumerate(others, start=1):
        store.set(f"here/{rank}", json.dumps([host, n_gpus, why, {"code": version}]))
    meeting = Meeting(Launch("mpirun", len(others) + 1, 0), Address(LOOPBACK, 1), store)
    return ranks_here(meeting, Settings(**settings), 4, "")


@pytest.fixture
def on_host_a(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "a")
    monkeypatch.setattr("mnist_nn.parallel.rendezvous.code_and_libraries", lambda *rooms: {"code": "1"})


@pytest.mark.usefixtures("on_host_a")
def test_a_process_alone_on_its_host_stands_for_one_on_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ranks([("b", 2), ("c", 0)]) == [RankInfo(n, 7, n, 4, 3) for n in range(4)]
    assert ranks([("b", 2)], nproc_per_node=3) == [RankInfo(n, 6, n, 3, 2) for n in range(3)]
    assert ranks([("a", 4), ("b", 2)]) == [RankInfo(0, 4, 0, 2, 2)]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert ranks([("b", 2)]) == [RankInfo(0, 2, 0, 1, 2)], "torchrun has started all there shall be"


@pytest.mark.usefixtures("on_host_a")
def test_hosts_that_do_not_fit_are_named(capsys: Any) -> None:
    with pytest.raises(UsageError, match="on b: it has no GPU"):
        ranks([("b", 1)], why="it has no GPU")
    with pytest.raises(UsageError, match="--nproc-per-node 2, but mpirun has started the processes: leave it out"):
        ranks([("a", 1)], nproc_per_node=2)
    with pytest.raises(UsageError, match="hosts have different versions: code 1 on a, 2 on b"):
        ranks([("b", 1)], version="2")
    assert len(ranks([("b", 1)], version="2", allow_mixed_versions=True)) == 4
    assert capsys.readouterr().err.startswith("warning: hosts have different versions")


def test_gpus_that_torch_cannot_use_are_not_passed_over_in_silence(
    data: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mnist_nn.parallel.process.visible_gpus", lambda: ["0", "1"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    command = ["--data", str(data), "--results", str(tmp_path), "--epochs", "1", "--batch-size", "128"]
    assert main(command) == Exit.DONE
    assert rows(tmp_path)[0]["devices"] == "1"
    assert "has 2 GPUs, but PyTorch" in (said := capsys.readouterr().err) and "training on its CPU" in said


# Ends

FOR_EVER = ("--epochs", "100000")


@pytest.mark.slow
@pytest.mark.parametrize("who", ["a child", "the parent"])
def test_a_killed_process_ends_the_node(data: Path, tmp_path: Path, who: str) -> None:
    command = (*DDP, *FOR_EVER, "--data", data, "--results", tmp_path, "--nproc-per-node", "2")
    job = subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=subprocess.DEVNULL, text=True)
    wait_for_an_epoch(tmp_path, job)
    members = family(job.pid)
    children = [pid for pid in members if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(max(children) if who == "a child" else job.pid, signal.SIGKILL)
    assert len(children) == 2 and job.wait(PATIENCE) != 0
    wait_for_the_end_of(members)


@pytest.mark.slow
def test_without_a_launcher_the_other_one_notices(data: Path, tmp_path: Path) -> None:
    both = pods("--data", data, "--results", tmp_path, *FOR_EVER)
    try:
        wait_for_an_epoch(tmp_path, *both)
        both[0].kill()
        assert both[1].wait(PATIENCE) == Exit.ERROR
    finally:
        for pod in both:
            pod.kill()
            pod.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [0, 2])
def test_training_on_one_host_listens_on_the_loopback_only(data: Path, tmp_path: Path, ranks: int) -> None:
    """PyTorch's store and gloo ask for no secret."""
    options = ("--data", data, "--epochs", "20", "--batch-size", "50", "--results", tmp_path)
    command = [*mpirun_command(ranks), *DDP, *options] if ranks else [*DDP, *options, "--nproc-per-node", "2"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    job = subprocess.Popen(
        list(map(str, command)), cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    seen: set[str] = set()
    while job.poll() is None:
        for pid in family(job.pid) - ({job.pid} if ranks else set()):  # mpirun itself listens, for its daemons
            with suppress(FileNotFoundError):  # it has ended
                seen.update(listeners(pid))
        time.sleep(0.2)
    assert job.returncode == Exit.DONE, job.communicate()[0]
    assert len(seen) >= 3, "the store and gloo of each process"
    assert all(socket.startswith("tcp 0100007F:") for socket in seen), seen
