"""What `python -m mpitune doctor` says of slices of GPUs and of compute modes, beside a stand-in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mpitune.errors import Exit
from tests.helpers import write_files
from tests.stand_ins import SLICES, A, B, Machine


@pytest.mark.slow
def test_slices_and_compute_modes_are_named(program: Any, tmp_path: Path) -> None:
    """A GPU in two slices, and one that admits one process."""
    write_files(tmp_path / "MNIST" / "raw")
    machine = Machine(tmp_path / "machine", {A: SLICES, B: ()}, modes={B: "Exclusive_Process"})
    given = ("--gpu", "0,1,2,2", "--data", tmp_path, "--results", tmp_path / "r")
    said = program("-m", "mpitune", "doctor", *given, env=machine.environ(), status=Exit.USAGE).stdout
    assert all(f"cuda:{name}" in said for name in (*SLICES, B)) and f"cuda:{A}" not in said
    assert f"2 workers are to share cuda:{B}, whose mode is EXCLUSIVE_PROCESS: give it once, or nvidia-smi" in said
