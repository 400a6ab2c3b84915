"""Starts of data-parallel training: commands that cannot work, each launcher, and who has which GPU."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
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
    refuse_two_on_a_gpu,
)  # fmt: skip
from mpitune.errors import Exit, UsageError
from mpitune.ranks.launch import Launch
from tests.helpers import ROOT
from tests.mnist_nn.trainings import rows

pytestmark = pytest.mark.usefixtures("one_thread_everywhere")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("--backend nccl --no-cuda", "--backend nccl needs GPUs: --no-cuda leaves none: give --backend gloo"),
        pytest.param(
            "--backend nccl",
            f"--backend nccl needs GPUs: PyTorch {torch.__version__} sees no GPU: give --backend gloo",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
        ("--dataset digits", "--dataset digits does not fit the network: the Kubeflow network needs images of"),
        ("--network search", "--network search needs --from RESULTS"),
        ("--network kubeflow --from x", "name two networks"),
        ("--data nowhere-to-be-found/x --results r --from no-such", "no-such holds no network of an ended"),
        ("--batch-size 0", "0 is too small"),
        ("--lr 1e30", "the loss is not finite in step"),
    ],
)
def test_a_command_that_cannot_work_ends_in_one_line(
    data: Path, tmp_path: Path, capsys: Any, options: str, text: str
) -> None:
    words = options.replace("nowhere-to-be-found/x", str(data)).split()
    given = [] if "--data" in words else ["--data", str(data)]
    status = main([*words, *given, "--epochs", "1", *([] if "--results" in words else ["--results", str(tmp_path)])])
    said = capsys.readouterr().err
    assert status == (Exit.ERROR if "--lr" in words else Exit.USAGE) and text in said and said.count("\n") == 1


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


@pytest.mark.slow
def test_threads_wait_asleep(tmp_path: Path) -> None:
    """OpenMP says what it has read; what the user has set is left as it is."""
    environ = {**os.environ, "OMP_DISPLAY_ENV": "true"}
    environ.pop("OMP_WAIT_POLICY", None)
    for given, policy in (({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")):
        command = [sys.executable, "-m", "mnist_nn.ddp", "--backend", "nccl", "--no-cuda"]
        done = subprocess.run(command, cwd=ROOT, env={**environ, **given}, capture_output=True, text=True)
        assert done.returncode == Exit.USAGE
        if "OMP_WAIT_POLICY" not in done.stderr:
            pytest.skip("this PyTorch's OpenMP does not tell")
        assert f"OMP_WAIT_POLICY = '{policy}'" in done.stderr


# Which GPUs


@pytest.mark.parametrize(
    ("hosts", "gpus", "counts", "problem"),
    [
        (["a"], ["xy"], [2], ""),
        (["a"], ["x"], [2], "on a: 2 processes would share 1 GPU"),
        (["a", "a"], ["x", "x"], [1, 1], "on a: 2 processes would share 1 GPU"),
        (["a", "a"], ["x", "y"], [1, 1], ""),
        (["a", "a"], ["xy", "xy"], [1, 1], ""),
        (["a", "b"], ["x", "x"], [1, 1], ""),
        (["b", "a", "a", "a"], ["x", "xy", "xy", "xy"], [1, 1, 1, 1], "on a: 3 processes would share 2 GPU"),
        (["a"], [""], [3], ""),
    ],
    ids=["one each", "too many asked for", "mpirun on a GPU", "srun", "torchrun", "two hosts", "three on two", "CPUs"],
)  # fmt: skip
def test_no_two_processes_have_one_gpu(hosts: list[str], gpus: list[str], counts: list[int], problem: str) -> None:
    """A letter is a GPU."""
    if not problem:
        refuse_two_on_a_gpu(hosts, [list(names) for names in gpus], counts)
    else:
        with pytest.raises(UsageError, match=problem):
            refuse_two_on_a_gpu(hosts, [list(names) for names in gpus], counts)


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
