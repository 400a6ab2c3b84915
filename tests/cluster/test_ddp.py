"""Data-parallel training on namespace hosts, started in the ways that docs/training.md lists."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

from tests.helpers import PATIENCE
from tests.mnist_nn.scaled_digits import write_as_mnist

from .hosts import Hosts
from .mpirun import mpirun
from .slurm import Slurm


def command(tmp_path: Path, *options: str) -> list[str | Path]:
    write_as_mnist(tmp_path / "data", 300, 101)
    return [
        sys.executable, "-m", "mnist_nn.ddp", "--epochs", "1", "--batch-size", "32", "--data", tmp_path / "data",
        "--results", tmp_path / "r", *options,
    ]  # fmt: skip


def row(tmp_path: Path) -> tuple[str, str]:
    with open(tmp_path / "r" / "ddp.csv", newline="") as file:
        (one,) = csv.DictReader(file)
    return one["nodes"], one["devices"]


@pytest.mark.parametrize("mpi", [(), ("--mpi=pmix",)], ids=["without MPI", "pmix"])
def test_srun(slurm: Slurm, tmp_path: Path, mpi: tuple[str, ...]) -> None:
    """Two tasks on the first node, one on the second; without MPI they meet at the name of the first node."""
    slurm.run("srun", "--nodes=2", "--ntasks=3", "--cpus-per-task=1", *mpi, *command(tmp_path))
    assert row(tmp_path) == ("2", "3")


def test_mpirun_fills_the_slots_of_a_hostfile(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("node0 slots=2\nnode1 slots=2\n")
    line = mpirun(hosts[:2], *command(tmp_path), options=["-n", "4"], hostfile=tmp_path / "hosts")
    hosts[0].run(*line)
    assert row(tmp_path) == ("2", "4")


def test_torchrun_on_each_node_by_variables_as_a_trainjob_sets_them(hosts: Hosts, tmp_path: Path) -> None:
    python, *program = command(tmp_path)
    given = {"NNODES": "2", "NPROC_PER_NODE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "29400"}
    nodes = []
    for rank, host in enumerate(hosts[:2]):
        environ = {f"PET_{name}": value for name, value in {**given, "NODE_RANK": str(rank)}.items()}
        nodes.append(host.popen(python, "-m", "torch.distributed.run", *program, env=environ))
    assert [node.wait(PATIENCE) for node in nodes] == [0, 0]
    assert row(tmp_path) == ("2", "4")


def test_one_process_per_node_starts_the_others(hosts: Hosts, tmp_path: Path) -> None:
    hosts[0].run(*mpirun(hosts[:2], *command(tmp_path, "--nproc-per-node", "2")))
    assert row(tmp_path) == ("2", "4")
