"""The rooms of docs/architecture.md import each other as pyproject.toml says, and a rank needs no heavy library."""

import re
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
        "import sys, mpitune.cli, mpitune.engine.rank, mnist_svm.experiment, mnist_nn.experiment\n"
        "heavy = {'torch', 'torchvision', 'cuml', 'cupy', 'numba', 'sklearn', 'mpi4py', 'matplotlib', 'scipy'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_every_file_that_a_page_names_is_there() -> None:
    """Those with a folder: a name alone may be a file of the reader's."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = set(listed.stdout.split())
    tops = "|".join(sorted({name.split("/")[0] for name in files if "/" in name}))
    pages = [ROOT / name for name in files if name.endswith(".md")]
    named = {
        (page.name, name)
        for page in pages
        for name in re.findall(rf"(?<![\w/.-])((?:{tops})/[\w./-]+\.(?:py|sh|md))\b", page.read_text())
    }
    assert len(named) > 50
    assert not [(page, name) for page, name in sorted(named) if name not in files]
