"""What all tests share: running programs as a user does, on one process or under a real mpirun."""

from __future__ import annotations

import gc
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

# Several tests run at a time on two cores, where threads of NumPy and PyTorch would only wait for each other. They
# read this when they are imported; programs that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from tests.helpers import ROOT, mpirun_command

# Tests of what one machine has not: several hosts, a Slurm, Kubernetes, containers, other MPI libraries.
CLUSTER = ("tests/cluster", "tests/k8s", "tests/test_mpi_flavours.py")
SHARED_MNIST = ROOT.parent / "shared" / "data"


settings.register_profile("ours", max_examples=25, deadline=None)  # others in each run
settings.load_profile("ours")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a cluster are marked by where they lie.

    One process runs those that share a Slurm or a file's fixtures; hosts of different tests have networks of their own.
    """
    places = tuple(ROOT / name for name in CLUSTER)
    for item in items:
        if any(item.path.is_relative_to(place) for place in places):
            shared = "slurm" if "slurm" in getattr(item, "fixturenames", ()) else item.path.stem
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.xdist_group(f"cluster {shared}"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file without any test that is asked for is not read: each process would take seconds to import what it does."""
    asked = config.getoption("markexpr")
    if "not cluster" in asked and any(collection_path.is_relative_to(ROOT / name) for name in CLUSTER):
        return True
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text()
    is_slow = re.search(r"^pytestmark = \[?pytest\.mark\.slow", text, re.MULTILINE)
    return True if "not slow" in asked and is_slow else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """What a test changes in the environment is not there for the next one, nor what its fixtures change."""
    before = dict(os.environ)
    try:
        return (yield)
    finally:
        if os.environ != before:
            os.environ.clear()
            os.environ.update(before)


def pytest_collection_finish() -> None:
    """What is imported by now stays: Python's collector of garbage need not look through it again and again."""
    gc.freeze()


def pytest_unconfigure() -> None:
    """Libraries written in C++ complain about objects that are left at the end."""
    gc.unfreeze()


def pytest_runtest_call() -> None:
    """A study that ran in this process has changed where the log goes; `caplog` of later tests must see it again."""
    logger = logging.getLogger("mpitune")
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


@pytest.fixture
def program() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `python ARGUMENTS` in the repository, under mpirun with further words when ranks are given."""

    def run(*arguments: Any, ranks: int = 0, mpirun: Sequence[str] = (), status: int | None = 0, **options: Any) -> Any:
        launcher = [*mpirun_command(ranks), *mpirun] if ranks else []
        command = [*launcher, sys.executable, *map(str, arguments)]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
        options = {"cwd": ROOT, "timeout": 600, "capture_output": True, "text": True, **options}
        done = subprocess.run(command, env=environ, **options)
        if status is not None:
            assert done.returncode == status, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


@pytest.fixture(scope="session")
def mnist() -> Path:
    """The folder of real MNIST in torchvision's layout. Skips where there is none."""
    for folder in (ROOT / "data", SHARED_MNIST):
        if (folder / "MNIST" / "raw").exists():
            return folder
    pytest.skip("MNIST is not in ./data or ../shared/data: python mnist.py --dataset mnist")
