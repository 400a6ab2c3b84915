"""What `python -m mpitune doctor` says of GPUs in use, on machines that are stand-ins."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpitune.errors import Exit
from tests.helpers import ROOT, alive, write_files
from tests.stand_ins import SLICES, A, B, Machine

DOCTOR = ("-m", "mpitune", "doctor")
TORCH = "import numpy\ndef ones(n, device): return numpy.ones(n)\n"


@pytest.fixture
def doctor(program: Any, tmp_path: Path) -> Any:
    """doctor(*options, machine=...) runs it on a stand-in with a torch that works and a small data set."""
    write_files(tmp_path / "MNIST" / "raw")
    libraries = {"torch": TORCH, "sklearn": ""}

    def run(*options: str, status: Exit = Exit.DONE, libraries: dict[str, str] = libraries, **machine: Any) -> str:
        environ = Machine(tmp_path / "machine", **machine).environ(CUDA_DEVICE_ORDER="PCI_BUS_ID")
        for name, content in libraries.items():
            (tmp_path / "libraries" / name).mkdir(parents=True, exist_ok=True)
            (tmp_path / "libraries" / name / "__init__.py").write_text(content)
        environ["PYTHONPATH"] = f"{tmp_path / 'libraries'}:{environ['PYTHONPATH']}"
        arguments = ("--data", tmp_path, "--results", tmp_path / "r", *options)
        return program(*DOCTOR, *arguments, env=environ, status=status).stdout

    return run


@pytest.mark.slow
def test_gpus_are_asked_through_the_driver(doctor: Any) -> None:
    assert f"cuda:{A}  1        Example GPU  79.0 of 80.0 GiB" in doctor("--gpu", "0")


@pytest.mark.slow
def test_slices_and_whole_gpus_are_devices_by_name(doctor: Any) -> None:
    said = doctor("--gpu", "all", gpus={A: SLICES, B: ()})
    assert all(f"cuda:{name}" in said for name in (*SLICES, B)) and f"cuda:{A}" not in said


@pytest.mark.slow
def test_workers_cannot_share_a_gpu_in_exclusive_mode(doctor: Any) -> None:
    said = doctor("--gpu", "0,0", modes={A: "Exclusive_Process"}, status=Exit.USAGE)
    assert f"2 workers are to share cuda:{A}, whose mode is EXCLUSIVE_PROCESS: give it once, or nvidia-smi" in said
    assert "error" not in doctor("--gpu", "0", modes={A: "Exclusive_Process"})


@pytest.mark.slow
def test_a_gpu_that_another_process_has_for_itself(doctor: Any) -> None:
    said = doctor(context=46, status=Exit.USAGE)
    assert "busy or unavailable (46)): another process has it, in EXCLUSIVE_PROCESS mode" in said


def test_a_driver_that_was_updated(doctor: Any) -> None:
    said = doctor("--gpu", "0", smi="Driver/library version mismatch", code=803, status=Exit.USAGE)
    assert "no GPU is visible (the driver says cuInit: system has unsupported display driver" in said


@pytest.mark.slow
def test_a_library_that_works_nowhere_stops_only_the_programs_that_need_it(doctor: Any) -> None:
    broken = {"torch": "raise ImportError('no kernel image is available for execution')", "sklearn": ""}
    said = doctor(libraries=broken)
    assert "warning:" in said and "torch does not work on" in said
    assert "mnist_nn cannot run: install a build for this GPU" in said and "a study can run here" in said


ORPHAN = """
import os, time
if os.fork():
    os._exit(0)
parent = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == parent:
    time.sleep(0.01)
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def orphan() -> Iterator[int]:
    """A process whose parent has ended."""
    started = subprocess.Popen(
        [sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert started.stdout is not None
    pid = int(started.stdout.readline())
    started.wait()
    yield pid
    os.kill(pid, 9)
    started.stdout.close()


@pytest.mark.slow
def test_leftover_processes_are_named_and_not_ended(doctor: Any, orphan: int) -> None:
    parent = int(Path(f"/proc/{orphan}/stat").read_text().rpartition(")")[2].split()[1])
    if parent != 1 or Path("/proc/1/comm").read_text().startswith("python"):
        pytest.skip("orphans have another parent here")
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], cwd=ROOT)
    try:
        said = doctor(apps=((orphan, A, 4321), (child.pid, A, 99), (1, B, 7), (999_999_999, B, 7)))
    finally:
        child.kill()
        child.wait()
    (line,) = (line for line in said.splitlines() if "of yours holds" in line)
    assert f"process {orphan} of yours holds 4321 MiB of {A} and belongs to no running job (since 20" in line
    assert "import os, time" in line and f"`kill {orphan}` ends it" in line
    assert alive({orphan})
