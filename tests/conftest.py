"""What all tests share: running programs as a user does, on one process or under a real mpirun."""

from __future__ import annotations

import gc
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# Several tests run at a time on two cores, where threads of NumPy and PyTorch would only wait for each other. They
# read this when they are imported; programs that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from mpitune.devices.choose import CPU, environment
from mpitune.processes.fork_server import OWN_VARIABLES, ForkServer
from tests.helpers import ROOT, mpirun_command

# Tests of what one machine has not: several hosts, a Slurm, Kubernetes, containers, other MPI libraries.
CLUSTER = ("tests/cluster", "tests/k8s", "tests/test_mpi_flavours.py")
SHARED_MNIST = ROOT.parent / "shared" / "data"


settings.register_profile("ours", max_examples=25, deadline=None)  # others in each run
settings.load_profile("ours")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a cluster are marked by where they lie, and one process runs those that use the same things.

    Such as a Slurm, the fixtures of a file, or a server of workers that has imported what a file needs. Long tests are
    apart and come first, so that no process waits for another one at the end.
    """
    places = tuple(ROOT / name for name in CLUSTER)
    for item in items:
        if any(item.path.is_relative_to(place) for place in places):
            shared = "slurm" if "slurm" in getattr(item, "fixturenames", ()) else item.path.stem
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.xdist_group(f"cluster {shared}"))
        elif not any(item.get_closest_marker(name) for name in ("slow", "xdist_group")):
            item.add_marker(pytest.mark.xdist_group(f"{item.path.parent.name}/{item.path.stem}"))
    items.sort(key=lambda item: not (item.get_closest_marker("cluster") or item.get_closest_marker("slow")))


# What workers of tests import, nearly all of them some of it.
PRELOADED = (
    "_pytest.assertion.rewrite", "cloudpickle", "joblib", "mpitune.engine.worker", "mpitune.hyperopt.minimizing",
    "mpitune.optimize.tuning", "mpitune.sklearn.search.folds", "numpy", "optuna", "sklearn.ensemble",
    "sklearn.linear_model", "sklearn.model_selection", "sklearn.neighbors", "sklearn.pipeline",
    "sklearn.preprocessing", "sklearn.svm", "sklearn.tree", "tests.toys",
)  # fmt: skip


class Packages(frozenset[str]):
    """Names of modules. What else there is in their packages a worker imports itself."""

    def issuperset(self, others: Iterable[str]) -> bool:
        return {name.partition(".")[0] for name in self}.issuperset(name.partition(".")[0] for name in others)


@pytest.fixture(scope="session", autouse=True)
def one_server() -> Iterator[None]:
    """Workers of most tests of a process are forks of one server: to begin one takes longer than most tests do.

    A test that changes variables, the folder or the path of modules has a server of its own, as a script has.
    """
    place, begin = (os.getcwd(), sys.path[:]), ForkServer.__init__
    with environment(CPU, 1):
        usual = dict(os.environ)

    def begin_with_all(server: ForkServer, modules: Iterable[str], environ: Mapping[str, str]) -> None:
        changed = {name for name, _ in environ.items() ^ usual.items()} - OWN_VARIABLES
        of_a_study = {"joblib", "mpitune", "optuna", "sklearn"}.intersection(name.partition(".")[0] for name in modules)
        if (os.getcwd(), sys.path) == place and not changed and of_a_study:
            modules = {*modules, *PRELOADED}
        begin(server, modules, environ)
        server.modules = Packages(server.modules)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForkServer, "__init__", begin_with_all)
        yield


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
