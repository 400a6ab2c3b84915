"""What is built of the repository."""

import shutil
import subprocess
import sys
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
        if name.startswith(("mpitune/", "hydra_plugins/")) or "/" not in name:
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
