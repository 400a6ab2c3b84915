"""What a build of the definition files cannot find, and which of them the build script picks."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.apptainer.definitions import FOLDER, SHELL, read
from tests.helpers import ROOT
from tests.install.rooms import rooms


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.def")), ids=lambda path: path.stem)
def test_a_definition(path: Path) -> None:
    """Caches hold compiled code: another user could make a folder in /tmp first and put code of his own there."""
    definition, cpu = read(path), read(FOLDER / "cpu.def")
    for section in SHELL:
        fails = "set -e\n" if section in ("post", "test") else ""  # as Apptainer runs them
        checks = [["sh", "-n"]]
        if shutil.which("shellcheck"):  # a failing `id` is of no consequence
            checks.append(["shellcheck", "--shell", "sh", "--exclude", "SC2155", "-"])
        for check in checks:
            done = subprocess.run(check, input=fails + definition.shell(section), capture_output=True, text=True)
            assert done.returncode == 0, f"%{section}\n{done.stdout}{done.stderr}"
    assert rooms() <= set(definition.files())
    assert definition.sections["runscript"] == cpu.sections["runscript"]
    assert "/tmp/" not in definition.shell("environment") and "CACHE" not in definition.shell("environment")


def test_modules_are_those_of_the_image_and_scripts_find_their_neighbours(tmp_path: Path) -> None:
    """The runscript, which all have, in a folder that holds a package and a script with a helper."""
    (tmp_path / "mpitune").mkdir()
    (tmp_path / "mpitune" / "__init__.py").write_text("print('of the host')")
    (tmp_path / "helper.py").write_text("print('neighbour')")
    (tmp_path / "script.py").write_text("import helper")
    runscript = read(FOLDER / "cpu.def").shell("runscript")
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for arguments, expected in ((["-m", "mpitune", "status", "--help"], "usage"), (["script.py"], "neighbour")):
        command = ["sh", "-c", runscript, "sh", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
        assert expected in done.stdout and "of the host" not in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("driver", "mpirun", "built", "version"),
    [
        ("", "", "OPENMPI=5.0 cpu", "1.2.0"),
        ("", "", "", "1.1.9"),  # 1.2 is the first that knows %arguments
        ("CUDA Version: 11.4 ", "mpirun (Open MPI) 5.1.2", "OPENMPI=5.1 cu11", "1.10.1-1.el9"),
        ("CUDA Version: 14.0 ", "mpirun (Open MPI) 4.0.7", "OPENMPI=5.0 cu13", "1.2.0"),
    ],
)
def test_the_build_script(driver: str, mpirun: str, built: str, version: str, tmp_path: Path) -> None:
    """With an apptainer that records its calls."""
    for name, body in {
        "apptainer": f'[ "$1" != --version ] || exec echo apptainer version {version}\necho "$@" >> {tmp_path}/calls',
        "nvidia-smi": f"echo '| Driver Version: 1 {driver}|'" if driver else "exit 9",
        "mpirun": f"echo '{mpirun}'" if mpirun else "exit 127",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "OUT": str(tmp_path), "OPTIONS": "--fakeroot"}
    done = subprocess.run([FOLDER / "build.sh"], env=environ, capture_output=True, text=True)
    assert done.returncode == (0 if built else 2), done.stderr
    if built:
        argument, name = built.split()
        (call,) = (tmp_path / "calls").read_text().splitlines()
        assert call == f"build --fakeroot --build-arg {argument} {tmp_path}/{name}.sif apptainer/{name}.def"
