"""The rooms of docs/architecture.md import each other as pyproject.toml says, and a rank needs no heavy library."""

import subprocess
import sys
from pathlib import Path

from tests.helpers import ROOT


def test_imports_go_in_one_direction() -> None:
    """The contracts of import-linter: no arrow up, no circle, one file that imports mpi4py. As in `make lint`."""
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_rank_and_its_help_need_no_heavy_library() -> None:
    """What a rank imports, on a laptop or a login node, holds no GPU library, no MPI, no solver."""
    code = (
        "import sys, mpitune.cli, mpitune.engine.node, mnist_svm.experiment, mnist_nn.experiment\n"
        "heavy = {'torch', 'torchvision', 'cuml', 'cupy', 'numba', 'sklearn', 'mpi4py', 'matplotlib', 'scipy'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
