"""What the preflight says of a layout, and what `python -m mpitune doctor` finds on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mpitune.devices.choose import visible_gpus
from mpitune.engine.preflight import Node, mixed_versions, problems
from mpitune.errors import Exit
from mpitune.options import RunOptions
from mpitune.tools.doctor import check_cores
from mpitune.trial import Place
from tests.stand_ins import Machine

DOCTOR = ("-m", "mpitune", "doctor")


def node(host: str = "node0", rank: int = 0, slots: int = 1, device: str = "cuda:0", **changes: Any) -> Node:
    places = tuple(Place(host, rank, slot, device) for slot in range(slots))
    sound = Node(host, places, 1, cores=8, cores_there=8, pinned=False, memory=64 << 30)
    return replace(sound, **changes)


SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3"}
SHARED = [node("a"), node("b", 1), node("b", 2), node("b", 3)]
BOUND = "warning: node0: the rank and all its workers are bound"
LAYOUTS: list[tuple[list[Node], dict[str, str], dict[str, Any], str]] = [
    ([node("node0"), node("node1", 1)], {**SLURM, "SLURM_JOB_NUM_NODES": "2"}, {}, ""),
    (SHARED, {}, {}, "error: ranks 1, 2 and 3 are on one host, b, and would claim the same GPUs"),
    ([node("a", 0, device="cpu"), node("a", 1, device="cpu")], {}, {}, ""),  # where there are none, they run on CPUs
    ([node("a", 0, device="cpu"), node("a", 1)], {}, {}, "error: "),
    ([node(slots=4, pinned=True, cores=1)], {}, {}, BOUND),
    ([node(threads=4, pinned=True, cores=1)], {}, {}, BOUND),
    ([node(device="cpu", pinned=True, cores=1)], {}, {}, BOUND),  # one worker, since one core was seen
    ([node(device="cpu", pinned=True, cores=1)], {}, {"workers": 1}, ""),
    ([node(pinned=True, cores=1)], {}, {}, ""),
    ([node(slots=4, cores=1, cores_there=1)], {}, {}, ""),
    ([node()], SLURM, {}, "Slurm's job 7 has 3 nodes, this run uses 1"),
]


@pytest.mark.parametrize(("nodes", "environ", "options", "text"), LAYOUTS)
def test_a_layout_has_this_problem(
    nodes: list[Node], environ: dict[str, str], options: dict[str, Any], text: str
) -> None:
    found = "\n".join(map(str, problems(nodes, RunOptions(**options), environ)))
    assert text in found and bool(text) == bool(found) and ("--bind-to none" in found) == (text == BOUND)


def test_versions_and_threads_that_do_not_fit_are_named() -> None:
    old, new = {"python": "3.11.7", "torch": "2.9.1", "numpy": "2.4.6"}, {"python": "3.11.7", "torch": "2.10.0"}
    assert mixed_versions([("a", old), ("b", old)]) == ""
    text = "hosts have different versions: torch 2.9.1 on a, b, 2.10.0 on c; numpy 2.4.6 on a, b, missing on c: install"
    assert mixed_versions([("a", old), ("b", old), ("c", new)]).startswith(text)
    (found,) = check_cores([node(slots=5), node(rank=1, slots=4), node("node1", 2, slots=8)])
    assert "node0: 9 workers x 1 threads would wait for each other on 8 cores" in str(found)
    assert not list(check_cores([node(slots=9, pinned=True)])), "which the preflight says"


# From outside.


def test_what_could_not_work_is_status_2(program: Any) -> None:
    done = program(*DOCTOR, "--gpu", "7", env={"CUDA_VISIBLE_DEVICES": ""}, status=Exit.USAGE)
    (error,) = (line for line in done.stdout.splitlines() if line.startswith("error: "))
    assert (
        "--gpu 7, but no GPU is visible" in error and "a study would not run here" in done.stdout and done.stderr == ""
    )


@pytest.mark.slow
def test_two_ranks_on_this_host(program: Any, tmp_path: Path) -> None:
    """They would claim the same GPUs. Without a GPU they share the cores."""
    done = program(*DOCTOR, "--results", tmp_path / "r", ranks=2, env={"CUDA_VISIBLE_DEVICES": ""})
    assert "a study can run here" in done.stdout and "2 ranks started by mpirun" in done.stdout
    done = program(*DOCTOR, ranks=2, env=Machine(tmp_path / "machine").environ(), status=Exit.USAGE)
    assert "error: ranks 0 and 1 are on one host" in done.stdout


@pytest.mark.gpu
@pytest.mark.skipif(not visible_gpus(), reason="no GPU is visible")
def test_a_real_gpu_is_found(program: Any) -> None:
    done = program(*DOCTOR, status=None)
    row = next(line for line in done.stdout.splitlines() if " cuda:" in line)
    assert "GiB" in row and "NVIDIA" in row, done.stdout
