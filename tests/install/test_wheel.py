"""What is in the files that would be published."""

import email
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import mpitune
from tests.helpers import ROOT
from tests.test_readme_blocks import blocks

pytestmark = pytest.mark.xdist_group("wheel")  # it is built once


@pytest.mark.slow
def test_what_would_be_published_has_one_name_and_all_of_it(built: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        said = email.message_from_bytes(archive.read(metadata))
        (commands,) = (archive.read(name).decode() for name in names if name.endswith("entry_points.txt"))
    assert {name.split("/")[0] for name in names} == {"mpitune", "hydra_plugins", metadata.split("/")[0]}
    assert "mpitune/py.typed" in names
    listed = subprocess.run(["git", "ls-files", "mpitune"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(listed.stdout.split()) == {name for name in names if name.startswith("mpitune/")}
    assert (said["Name"], said["Version"]) == ("mpitune", mpitune.__version__)
    assert "mpitune = mpitune.__main__:main" in commands
    assert [each for each in said.get_all("Requires-Dist", []) if "mpi4py" in each] == ['mpi4py>=4.0; extra == "mpi"']
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert {"pyproject.toml", "README.md", "LICENSE", "mpitune/py.typed", "mpitune/__init__.py"} <= set(names)
    pytest.importorskip("twine")
    command = [sys.executable, "-m", "twine", "check", "--strict", wheel, path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("PASSED") == 2, done.stdout + done.stderr


def test_the_version_has_one_source() -> None:
    """pyproject.toml reads that of the package; the citation names it, too."""
    assert 'version = { attr = "mpitune.__version__" }' in (ROOT / "pyproject.toml").read_text()
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited and cited[1] == mpitune.__version__


def test_a_commit_is_checked_as_make_lint_checks() -> None:
    yaml = pytest.importorskip("yaml")
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    recipe = re.search(r"^lint: .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe and [hook["entry"] for hook in local["hooks"]] == recipe[1].strip().replace("\t", "").split("\n")
    forms = [yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")]
    assert sum("body" in form for form in forms) == 2


@pytest.mark.slow
def test_the_readme_installs_the_package_for_scripts_elsewhere(tmp_path: Path) -> None:
    """Its commands as they stand, in a clone that they leave clean; what pip would fetch is this environment's."""
    (block,) = (block for block in blocks("README.md") if "pip install ." in block)
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", clone], check=True)
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"}  # 0 means that there is none
    environ = {**os.environ, **offline, "HOME": str(tmp_path), "PYTHONPATH": sysconfig.get_paths()["purelib"]}
    (tmp_path / "digits.py").write_text("import mpitune.sklearn\nprint(mpitune.__file__)\n")
    script = f"set -e\n{block}\ngit status --porcelain\ncd ..\nunset PYTHONSAFEPATH\npython digits.py"
    done = subprocess.run(["bash", "-c", script], cwd=clone, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, before, last = done.stdout.splitlines()
    assert last.startswith(str(tmp_path / "mpitune-venv")), "the package of the environment"
    assert not before.startswith("??"), f"pip left {before}"
