"""The import arrows of docs/architecture.md."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import ROOT

PACKAGES = ("common", "mnist_svm", "mnist_nn")
# Who may import what; nobody else may.
ONLY = {
    "mpi4py": ("common/mpi.py",),
    "matplotlib": ("common/figures.py", "mnist_svm/figures.py", "mnist_nn/figures.py"),
}


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """(module, whether it is imported when the file is) of every import in a file."""
    tree = ast.parse(path.read_text())
    inside = {
        id(node) for function in ast.walk(tree) if isinstance(function, ast.FunctionDef) for node in ast.walk(function)
    }
    guarded = {
        id(node) for block in ast.walk(tree) if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
        for node in ast.walk(block)
    }  # fmt: skip
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        for name in names:
            yield name, id(node) not in inside | guarded


FILES = sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=str)
def test_arrows(path: Path) -> None:
    package = path.parts[0]
    forbidden = set(PACKAGES) - {"common", package}
    for name, _ in imports(ROOT / path):
        top = name.split(".")[0]
        assert top not in forbidden, f"{path} imports {name}"
        assert str(path) in ONLY.get(top, (str(path),)), f"{path} imports {name}"


def test_the_rank_and_its_help_need_no_heavy_library() -> None:
    """What a rank imports, on a laptop or a login node, holds no GPU library, no MPI, no solver."""
    code = (
        "import sys, common.cli, common.node, mnist_svm.experiment, mnist_nn.experiment\n"
        "heavy = {'torch', 'torchvision', 'cuml', 'cupy', 'numba', 'sklearn', 'mpi4py', 'matplotlib', 'scipy'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
