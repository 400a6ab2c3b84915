"""What the preflight says of a layout, and what `python -m mpitune doctor` finds on this machine."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mpitune.devices.choose import visible_gpus
from mpitune.engine.preflight import Node, mixed_versions, problems
from mpitune.errors import Exit
from mpitune.options import RunOptions
from mpitune.tools.doctor import check_cores, check_results
from mpitune.trial import Place
from tests.helpers import PATIENCE, ROOT, TOYS, journal_lines, start, wait_for_lines
from tests.stand_ins import Machine

DOCTOR = ("-m", "mpitune", "doctor")


def node(host: str = "node0", rank: int = 0, slots: int = 1, device: str = "cuda:0", **changes: Any) -> Node:
    places = tuple(Place(host, rank, slot, device) for slot in range(slots))
    sound = Node(host, places, 1, cores=8, cores_there=8, pinned=False, memory=64 << 30)
    return replace(sound, **changes)


def said(nodes: list[Node], environ: dict[str, str] | None = None, **options: Any) -> str:
    return "\n".join(map(str, problems(nodes, RunOptions(**options), environ or {})))


def test_a_sound_layout_has_no_problem() -> None:
    assert said([node("node0"), node("node1", 1)]) == ""
    slurm = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "7"}
    assert said([node("node0"), node("node1", 1)], environ=slurm) == ""


def test_ranks_that_share_a_host_would_claim_the_same_gpus() -> None:
    nodes = [node("a"), node("b", 1), node("b", 2), node("b", 3)]
    assert said(nodes).startswith("error: ranks 1, 2 and 3 are on one host, b, and would claim the same GPUs")
    assert said(nodes, allow_shared_host=True) == ""
    # Where there are none, the ranks run on CPUs.
    assert said([node("a", 0, device="cpu"), node("a", 1, device="cpu")]) == ""
    assert said([node("a", 0, device="cpu"), node("a", 1, device="cuda:0")]).startswith("error:")


def test_hosts_with_other_versions_are_named() -> None:
    old, new = {"python": "3.11.7", "torch": "2.9.1", "numpy": "2.4.6"}, {"python": "3.11.7", "torch": "2.10.0"}
    assert mixed_versions([("a", old), ("b", old)]) == ""
    text = "hosts have different versions: torch 2.9.1 on a, b, 2.10.0 on c; numpy 2.4.6 on a, b, missing on c: install"
    assert mixed_versions([("a", old), ("b", old), ("c", new)]).startswith(text)


@pytest.mark.parametrize(
    ("node_", "options", "warned"),
    [
        (node(slots=4, pinned=True, cores=1), {}, True),
        (node(threads=4, pinned=True, cores=1), {}, True),
        (node(device="cpu", pinned=True, cores=1), {}, True),  # one worker, since one core was seen
        (node(device="cpu", pinned=True, cores=1), {"workers": 1}, False),
        (node(pinned=True, cores=1), {}, False),
        (node(slots=4, cores=1, cores_there=1), {}, False),
    ],
)
def test_a_rank_bound_to_one_core_is_told_how_not_to_be(node_: Node, options: dict[str, Any], warned: bool) -> None:
    assert ("warning: node0: the rank and all its workers are bound" in said([node_], **options)) == warned
    assert ("--bind-to none" in said([node_], **options)) == warned


def test_hosts_that_a_scheduler_gave_and_nobody_uses(tmp_path: Path) -> None:
    slurm = {"SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_ID": "7"}
    assert "Slurm's job 7 has 3 nodes, this run uses 1" in said([node()], environ=slurm)
    (tmp_path / "hostfile").write_text("# by the operator\nw-0.job.ns.svc slots=1\nw-1.job.ns.svc slots=1\n\n")
    operator = {"OMPI_MCA_orte_default_hostfile": str(tmp_path / "hostfile")}
    assert "hostfile has 2 nodes, this run uses 1" in said([node()], environ=operator)
    assert said([node()], environ={"OMPI_MCA_orte_default_hostfile": str(tmp_path / "absent")}) == ""


def test_more_threads_than_cores() -> None:
    assert not list(check_cores([node(slots=8)]))
    (found,) = check_cores([node(slots=5), node(rank=1, slots=4), node("node1", 2, slots=8)])
    assert "node0: 9 workers x 1 threads would wait for each other on 8 cores" in str(found)
    assert not list(check_cores([node(slots=9, pinned=True)])), "which the preflight says"


def test_results_folders(program: Any, tmp_path: Path) -> None:
    def problem(folder: Path) -> str:
        return "\n".join(map(str, check_results(folder)[1]))

    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        assert problem(folder).startswith("error: results folder") and "cannot be written" in problem(folder)
    described, _ = check_results(tmp_path / "new" / "below")
    assert f"{tmp_path / 'new' / 'below'} (" in described and not (tmp_path / "new").exists()
    job = start(tmp_path / "r", "4000", "--seconds", "0.1")
    wait_for_lines(tmp_path / "r", 2)
    assert "another job is writing" in problem(tmp_path / "r")
    job.terminate()
    job.communicate(timeout=PATIENCE)
    n_known = len(journal_lines(tmp_path / "r"))
    assert f"a study of toys: {n_known} trials known" in check_results(tmp_path / "r")[0]
    assert "error" not in problem(tmp_path / "r")
    (tmp_path / "r" / "journal.jsonl").write_text("no journal\n")
    assert "error:" in problem(tmp_path / "r") and "is not a journal header" in problem(tmp_path / "r")


# From outside.


@pytest.mark.slow
def test_this_machine_could_run_a_study(program: Any, tmp_path: Path) -> None:
    done = program(*DOCTOR, "--gpu", "none", "--workers", "1", cwd=tmp_path)
    assert "a study can run here" in done.stdout and not list(tmp_path.iterdir())


def test_what_could_not_work_is_status_2(program: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    arguments = ("--gpu", "7", "--results", tmp_path / "file")
    done = program(*DOCTOR, *arguments, env={"CUDA_VISIBLE_DEVICES": ""}, status=Exit.USAGE)
    errors = [line for line in done.stdout.splitlines() if line.startswith("error: ")]
    for words in ("--gpu 7, but no GPU is visible", "cannot be written"):
        assert any(words in line for line in errors), errors
    assert "a study would not run here" in done.stdout and done.stderr == ""


@pytest.mark.slow
def test_two_ranks_on_this_host(program: Any, tmp_path: Path) -> None:
    """They would claim the same GPUs. Without a GPU they share the cores."""
    done = program(*DOCTOR, "--results", tmp_path / "r", ranks=2, env={"CUDA_VISIBLE_DEVICES": ""})
    assert "a study can run here" in done.stdout and "2 ranks started by mpirun" in done.stdout
    with_gpu = Machine(tmp_path / "machine").environ()
    done = program(*DOCTOR, ranks=2, env=with_gpu, status=Exit.USAGE)
    assert "error: ranks 0 and 1 are on one host" in done.stdout
    # The study itself says the same, before anything is written.
    study = (*TOYS, "4", "--results", tmp_path / "r")
    done = program(*study, ranks=2, env=with_gpu, status=Exit.USAGE)
    assert "ranks 0 and 1 are on one host" in done.stderr and not (tmp_path / "r").exists()
    program(*study, "--allow-shared-host", ranks=2, env=with_gpu)


@pytest.mark.slow
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_a_study_on_one_core_of_several_is_warned(program: Any, tmp_path: Path) -> None:
    core = {min(os.sched_getaffinity(0))}
    pinned = {"preexec_fn": lambda: os.sched_setaffinity(0, core)}
    study = (*TOYS, "2", "--gpu", "none", "--results", tmp_path)
    assert "--bind-to none" in program(*study, **pinned).stderr
    assert "--bind-to none" not in program(*study, "--workers", "1", **pinned).stderr


@pytest.mark.slow
def test_an_mpi_that_cannot_be_used_is_a_warning(program: Any, tmp_path: Path) -> None:
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("class rc:\n    pass")
    (tmp_path / "mpi4py" / "MPI.py").write_text("raise RuntimeError('cannot load MPI library')")
    done = program(*DOCTOR, "--gpu", "none", cwd=tmp_path, env={"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert "warning: MPI cannot be used (RuntimeError: cannot load MPI library)" in done.stdout


@pytest.mark.gpu
@pytest.mark.skipif(not visible_gpus(), reason="no GPU is visible")
def test_a_real_gpu_is_found(program: Any) -> None:
    done = program(*DOCTOR, status=None)
    row = next(line for line in done.stdout.splitlines() if " cuda:" in line)
    assert "GiB" in row and "NVIDIA" in row, done.stdout
