"""What `python -m mpitune doctor` says of slices of GPUs and of compute modes, beside a stand-in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mpitune.devices.choose import Device
from mpitune.errors import Exit
from mpitune.tools.doctor import check_sharing
from tests.stand_ins import SLICES, A, B, Machine


@pytest.mark.slow
def test_slices_and_compute_modes_are_named(program: Any, tmp_path: Path) -> None:
    """A GPU in two slices, and one that admits one process."""
    machine = Machine(tmp_path / "machine", {A: SLICES, B: ()}, modes={B: "Exclusive_Process"})
    given = ("--gpu", "0,1,2,2", "--results", tmp_path / "r")
    said = program("-m", "mpitune", "doctor", *given, env=machine.environ(), status=Exit.USAGE).stdout
    assert all(f"cuda:{name}" in said for name in (*SLICES, B)) and f"cuda:{A}" not in said
    assert f"2 workers are to share cuda:{B}, whose mode is EXCLUSIVE_PROCESS: give it once, or start MPS" in said


@pytest.mark.parametrize("mps", [True, False])
def test_a_daemon_of_mps_shares_a_gpu_that_admits_one_process(
    mps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        Machine(tmp_path / "machine", {B: ()}, modes={B: "Exclusive_Process"}, mps=mps).environ().items()
    ):
        monkeypatch.setenv(name, value)
    device = Device(f"cuda:{B}", B)
    assert not list(check_sharing("here", [device]))
    found = list(check_sharing("here", [device, device]))
    assert [finding.fatal for finding in found] == ([] if mps else [True])
