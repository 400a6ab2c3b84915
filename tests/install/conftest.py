"""What is built of the repository, and an environment that has only that and its requirements."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.helpers import ROOT

UV = [str(Path(sys.executable).with_name("uv")), "--offline"]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel built of it. From a copy, since building writes beside the sources."""
    whole = tmp_path_factory.mktemp("built")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if name.startswith("mpitune/") or "/" not in name:
            (whole / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, whole / "source" / name)
    command = [*UV, "build", "--quiet", "--no-build-isolation", "--python", sys.executable, "--out-dir", whole / "dist"]
    done = subprocess.run([*command, whole / "source"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return whole / "dist"


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment with the wheel; what it requires is this environment's, by a link."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    subprocess.run([*UV, "pip", "install", "--quiet", "--no-deps", "--python", python, wheel], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "requirements.pth").write_text(sysconfig.get_paths()["purelib"] + os.linesep)
    return folder / "bin"
