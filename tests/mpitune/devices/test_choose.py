"""Which devices a rank's slots get, from what a user asks and what is there."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpitune.devices.choose import CPU, Device, choose, usable_cores, visible_gpus, why_no_gpu
from mpitune.errors import UsageError
from tests.stand_ins import SLICES, A, B, Machine

MIG = list(SLICES)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts an nvidia-smi as it is asked for in this process's way."""

    def put(**what: Any) -> None:
        for name, value in Machine(tmp_path, **what).environ().items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return put


@pytest.fixture
def driver(machine: Callable[..., None]) -> None:
    """A GPU cut in two slices, and a whole one."""
    machine(gpus={A: SLICES, B: ()})


def names(slots: list[Device]) -> list[str]:
    return [device.visible for device in slots]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (dict(gpus={A: ()}, mig=(A,)), f"({A} is in MIG mode and has no slice"),
        (dict(gpus={A: ()}, modes={A: "Prohibited"}), f"({A} is in compute mode Prohibited"),
    ],
)
def test_gpus_that_no_program_can_use_are_not_visible(
    what: dict[str, Any], said: str, machine: Callable[..., None]
) -> None:
    machine(**what)
    assert f"no GPU is visible {said}" in choose(None, None, 1)[1]
    with pytest.raises(UsageError, match=re.escape(f"--gpu 0, but no GPU is visible {said}")):
        choose("0", None, 1)


def test_slices_are_listed_in_place_of_their_gpu_also_where_it_has_none(machine: Callable[..., None]) -> None:
    machine(gpus={A: SLICES, B: ()})
    assert visible_gpus({}) == [*MIG, B]
    machine(gpus={A: SLICES, B: ()}, mig=(B,))
    assert visible_gpus({}) == MIG


def test_device_files_without_the_driver(machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that was not given --nv."""
    machine(smi="not found")
    assert visible_gpus({}) == [] and why_no_gpu({}) == ""
    monkeypatch.setattr("mpitune.devices.choose.DEVICE_FILES", __file__)
    assert visible_gpus({}) == visible_gpus({"CUDA_VISIBLE_DEVICES": "0"}) == []
    assert "apptainer needs --nv, docker --gpus all" in why_no_gpu({})


@pytest.mark.parametrize("listed", ["", "-1", "NoDevFiles"])
def test_a_list_that_shows_nothing_is_named(listed: str, driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert f"no GPU is visible (CUDA_VISIBLE_DEVICES is {listed!r}): using" in choose(None, None, 1)[1]


@pytest.mark.parametrize(
    ("listed", "seen"),
    [
        ("0,1", ["0", "1"]),
        (" 3 , 5", ["3", "5"]),
        ("GPU-5c89852c", ["GPU-5c89852c"]),
        (",".join(MIG), MIG),
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
        slots, note = choose(asked, None, 1, lambda: gpus)
        assert names(slots) == given and note == ""
    assert choose("0", None, 1, lambda: gpus)[0][0].name == "cuda:4"


def test_without_gpus_the_cpu_is_used_and_said() -> None:
    slots, note = choose(None, None, 1, list)
    assert slots == [CPU] * usable_cores() and "no GPU is visible" in note
    assert choose("none", 3, 1, list) == ([CPU] * 3, "")
    assert len(choose("none", None, 10_000, list)[0]) == 1


@pytest.mark.parametrize("asked", ["3", "all,0", "0,", "x", "-1", "0 1", "GPU-", "GPU-;rm", "0x1", "٣", "all"])
def test_what_is_not_there_is_refused(asked: str) -> None:
    with pytest.raises(UsageError, match="--gpu"):
        choose(asked, None, 1, (lambda: []) if asked == "all" else lambda: ["0", "1", "2"])


def test_workers_are_cpu_slots() -> None:
    with pytest.raises(UsageError, match="--workers 2"):
        choose("0", 2, 1, lambda: ["0"])
