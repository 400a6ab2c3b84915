"""Fixtures of namespace hosts and of a Slurm on them. They skip with a reason where that is impossible.

With REQUIRE_CLUSTER=1 in the environment (continuous integration) they fail instead.
"""

import os
from collections.abc import Iterator

import pytest

from . import hosts as namespaces
from . import mpirun, slurm
from .hosts import Hosts
from .slurm import Slurm


def need(*reasons: str) -> None:
    """Skip the test for the first reason that is not empty."""
    for reason in filter(None, reasons):
        if os.environ.get("REQUIRE_CLUSTER"):
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Three fresh hosts, node0 to node2, that share every tmp_path, with mpirun. They take a tenth of a second."""
    need(namespaces.missing(), mpirun.missing())
    with Hosts(3, shared=tmp_path_factory.getbasetemp()) as three:
        yield three


@pytest.fixture(scope="session")
def slurm_of_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A Slurm that stays up for the session; tests use `slurm`."""
    need(slurm.missing(), mpirun.missing())
    with Hosts(4, shared=tmp_path_factory.getbasetemp()) as four, Slurm(four) as cluster:
        yield cluster


@pytest.fixture(name="slurm")
def idle_slurm(slurm_of_session: Slurm) -> Iterator[Slurm]:
    """Slurm with login host node0 and nodes node1 to node3, four fake GPUs each, idle.

    It is shared by all tests of the session, so a test that kills nodes makes its own Hosts and Slurm.
    """
    yield slurm_of_session
    slurm_of_session.settle()
