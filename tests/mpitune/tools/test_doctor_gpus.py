"""What `python -m mpitune doctor` says of slices of GPUs, compute modes and GPUs in use, beside a stand-in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpitune.errors import Exit
from tests.helpers import alive, write_files
from tests.stand_ins import SLICES, A, B, Machine

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
def test_slices_compute_modes_and_leftover_processes_are_named(program: Any, orphan: int, tmp_path: Path) -> None:
    """A GPU in two slices, and one that admits one process. Leftovers are not ended."""
    write_files(tmp_path / "MNIST" / "raw")
    machine = Machine(
        tmp_path / "machine", {A: SLICES, B: ()}, modes={B: "Exclusive_Process"},
        apps=((orphan, A, 4321), (os.getpid(), A, 99), (1, B, 7), (999_999_999, B, 7)),
    )  # fmt: skip
    given = ("--gpu", "0,1,2,2", "--data", tmp_path, "--results", tmp_path / "r")
    said = program("-m", "mpitune", "doctor", *given, env=machine.environ(), status=Exit.USAGE).stdout
    assert all(f"cuda:{name}" in said for name in (*SLICES, B)) and f"cuda:{A}" not in said
    assert f"2 workers are to share cuda:{B}, whose mode is EXCLUSIVE_PROCESS: give it once, or nvidia-smi" in said
    parent = int(Path(f"/proc/{orphan}/stat").read_text().rpartition(")")[2].split()[1])
    if parent != 1 or Path("/proc/1/comm").read_text().startswith("python"):
        pytest.skip("orphans have another parent here")
    (line,) = (line for line in said.splitlines() if "of yours holds" in line)
    assert f"process {orphan} of yours holds 4321 MiB of {A} and belongs to no running job (since 20" in line
    assert "import os, time" in line and f"`kill {orphan}` ends it" in line
    assert alive({orphan})
