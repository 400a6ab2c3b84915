"""Starts of data-parallel training: commands that cannot work, each launcher, and who has which GPU."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from mnist_nn.ddp import main
from mnist_nn.parallel.rendezvous import (
    Address,
    derived_port,
    first_node,
    known_address,
    launch_info,
)  # fmt: skip
from mpitune.errors import Exit
from mpitune.ranks.launch import Launch
from tests.mnist_nn.trainings import rows

pytestmark = pytest.mark.usefixtures("one_thread_everywhere")


def test_a_taken_port_is_named(data: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": 0, "WORLD_SIZE": 2}.items():
            monkeypatch.setenv(name, str(value))
        assert main(["--data", str(data)]) == Exit.USAGE
    said = capsys.readouterr().err
    assert f"rank 0 at 127.0.0.1:{port} cannot listen" in said and said.count("\n") == 1


# Who launched us

SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "3"}
NODES = {"SLURM_STEP_NODELIST": "gpu[08-11,20],login"}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "2", "PMIX_NAMESPACE": "prte-1@1"}
TORCH = {"RANK": "2", "WORLD_SIZE": "3"}
MASTER = {"MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}


@pytest.mark.parametrize(
    ("environ", "who", "address"),
    [
        ({}, Launch("", 1, 0), Address("127.0.0.1", 0)),
        ({**TORCH, **MASTER}, Launch("torch", 3, 2), Address("job-master-0", 23456)),
        ({**TORCH, **MASTER, **SLURM}, Launch("torch", 3, 2), Address("job-master-0", 23456)),
        ({**SLURM, **NODES}, Launch("srun", 3, 2), Address("gpu08", derived_port("7.0"))),
        ({**SLURM, **NODES, **MASTER}, Launch("srun", 3, 2), Address("job-master-0", 23456)),
        (OPEN_MPI, Launch("mpirun", 3, 2), None),
        ({**OPEN_MPI, **MASTER}, Launch("mpirun", 3, 2), Address("job-master-0", 23456)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, Launch("mpiexec", 2, 1), None),
        ({"RANK": "3", "WORLD_SIZE": "3"}, Launch("", 1, 0), Address("127.0.0.1", 0)),
    ],
    ids=["shell", "torchrun", "torchrun in srun", "srun", "srun, told", "mpirun", "mpirun, told", "mpiexec", "none"],
)  # fmt: skip
def test_the_environment_says_who_and_where(environ: dict[str, str], who: Launch, address: Address | None) -> None:
    assert launch_info(environ) == who
    assert known_address(who, environ) == address


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("n1", "n1"), ("n1,n2", "n1"), ("n[1-3]", "n1"), ("a[08-11,13],b[1,2]", "a08"), ("a,b[1-2]", "a")],
)  # fmt: skip
def test_the_first_of_slurms_nodes(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


def test_gpus_that_torch_cannot_use_are_not_passed_over_in_silence(
    data: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mnist_nn.ddp.visible_gpus", lambda: ["0", "1"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    command = ["--data", str(data), "--results", str(tmp_path), "--epochs", "1", "--batch-size", "128"]
    assert main(command) == Exit.DONE
    assert rows(tmp_path)[0]["devices"] == "1"
    assert "has 2 GPUs, but PyTorch" in (said := capsys.readouterr().err) and "training on its CPU" in said
    assert main([*command, "--no-cuda"]) == Exit.DONE
    assert capsys.readouterr().err == ""
