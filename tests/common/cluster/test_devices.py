"""Which devices a rank's slots get, from what a user asks and what is there."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from common.cluster.devices import CPU, Device, choose, usable_cores, visible_gpus
from common.errors import UsageError

LISTING = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f)
  MIG 3g.20gb     Device  0: (UUID: MIG-8f0c1d2e-0000-5555-aaaa-1234567890ab)
  MIG 3g.20gb     Device  1: (UUID: MIG-8f0c1d2e-0000-5555-aaaa-1234567890ac)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc40)
"""
MIG = ["MIG-8f0c1d2e-0000-5555-aaaa-1234567890ab", "MIG-8f0c1d2e-0000-5555-aaaa-1234567890ac"]


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: Any) -> None:
    """An nvidia-smi on PATH that lists a GPU cut in two slices and a whole one."""
    script = tmp_path / "nvidia-smi"
    script.write_text(f"#!/bin/sh\ncat <<'END'\n{LISTING}END\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def names(devices: list[Device]) -> list[str]:
    return [device.visible for device in devices]


def test_the_driver_lists_slices_in_place_of_their_gpu(driver: None) -> None:
    assert visible_gpus({}) == [*MIG, "1"]


@pytest.mark.parametrize(
    ("listed", "seen"),
    [
        ("0,1", ["0", "1"]),
        (" 3 , 5", ["3", "5"]),
        ("GPU-5c89852c", ["GPU-5c89852c"]),
        (",".join(MIG), MIG),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,-1,2", ["0"]),
    ],
)
def test_the_visible_list_is_opaque(driver: None, listed: str, seen: list[str]) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": listed}) == seen


def test_what_is_asked_is_what_slots_get() -> None:
    gpus = ["4", "GPU-abc", MIG[0]]
    for asked, given in {
        None: ["4"],
        "all": gpus,
        "0": ["4"],
        "2,0": [MIG[0], "4"],
        "0,0": ["4", "4"],
        "GPU-xyz": ["GPU-xyz"],
        "MIG-GPU-12/3/0,1": ["MIG-GPU-12/3/0", "GPU-abc"],
    }.items():
        devices, note = choose(asked, None, 1, lambda: gpus)
        assert names(devices) == given and note == ""
    assert choose("0", None, 1, lambda: gpus)[0][0].name == "cuda:4"


def test_without_gpus_the_cpu_is_used_and_said() -> None:
    devices, note = choose(None, None, 1, list)
    assert devices == [CPU] * usable_cores() and "no GPU is visible" in note
    assert choose("none", 3, 1, list) == ([CPU] * 3, "")
    assert len(choose("none", None, 10_000, list)[0]) == 1


@pytest.mark.parametrize("asked", ["3", "all,0", "0,", "x", "-1", "0 1", "GPU-", "GPU-;rm", "0x1", "٣", "all"])
def test_what_is_not_there_is_refused(asked: str) -> None:
    with pytest.raises(UsageError, match="--gpu"):
        choose(asked, None, 1, (lambda: []) if asked == "all" else lambda: ["0", "1", "2"])


def test_workers_are_cpu_slots() -> None:
    with pytest.raises(UsageError, match="--workers 2"):
        choose("0", 2, 1, lambda: ["0"])
