"""Slurm on the namespace hosts: jobs start, see their GPUs, pass messages, get signals and leave no process."""

import signal
import subprocess
from pathlib import Path

import pytest

from tests.helpers import PATIENCE, wait_until

from .hosts import Hosts
from .mpirun import RING, SERVE
from .slurm import Slurm

MPIRUN = "mpirun --allow-run-as-root --map-by ppr:1:node --bind-to none"
THREE = ("--nodes=3", "--ntasks-per-node=1")


def test_a_batch_job_runs_on_three_nodes(slurm: Slurm, tmp_path: Path) -> None:
    job = slurm.sbatch(*THREE, script="#!/bin/sh\nsrun hostname\nexit 7\n", cwd=tmp_path)
    done = slurm.wait(job)
    assert (done["JobState"], done["ExitCode"], done["NodeList"]) == ("FAILED", "7:0", "node[1-3]")
    assert sorted(Path(done["StdOut"]).read_text().split()) == ["node1", "node2", "node3"]
    assert Path(done["StdOut"]).parent == tmp_path


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        (("--nodes=3", "--gres=gpu:2"), ["0 0,1", "1 0,1", "2 0,1"]),
        (("--nodes=1", "--ntasks=2", "--gpus-per-task=2"), ["0 0,1", "1 2,3"]),
        (("--nodes=3", "--ntasks-per-node=1", "--gpus-per-node=3"), ["0 0,1,2", "1 0,1,2", "2 0,1,2"]),
    ],
)
def test_tasks_see_the_gpus_they_asked_for(slurm: Slurm, options: tuple[str, ...], seen: list[str]) -> None:
    done = slurm.run("srun", *options, "sh", "-c", "echo $SLURM_PROCID $CUDA_VISIBLE_DEVICES")
    assert sorted(done.stdout.splitlines()) == seen


def test_srun_with_pmix_makes_one_world(slurm: Slurm) -> None:
    done = slurm.run("srun", *THREE, "--mpi=pmix", "python", "-c", RING)
    assert sorted(line[6:] for line in done.stdout.splitlines()) == ["3 0", "3 1", "3 2"]


def test_srun_without_pmix_makes_worlds_of_one(slurm: Slurm) -> None:
    done = slurm.run("srun", *THREE, "python", "-c", RING)
    assert sorted(done.stdout.splitlines()) == ["node1 1 0", "node2 1 0", "node3 1 0"]


def test_mpirun_in_a_batch_job_finds_its_nodes(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "ring.py").write_text(RING)
    done = slurm.wait(slurm.sbatch(*THREE, script=f"#!/bin/sh\n{MPIRUN} python ring.py\n", cwd=tmp_path))
    said = Path(done["StdOut"]).read_text()
    assert sorted(said.splitlines()) == ["node1 3 2", "node2 3 0", "node3 3 1"]


JOB = {"SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_PROCID"}
STEP = {"SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"}
PMIX = {"PMIX_RANK", "PMIX_NAMESPACE"}
PMI = {"PMI_RANK", "PMI_SIZE"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PRTE_LAUNCHED"}


def test_each_launcher_is_known_by_its_variables(slurm: Slurm, tmp_path: Path) -> None:
    """The table by which a program can tell its launcher.

    mpirun starts its daemons on the other nodes with an srun of its own, so ranks there see that step's variables, with
    numbers of that step: SLURM_STEP_NUM_TASKS and SLURM_PROCID count daemons, not ranks.
    """
    expected = {
        "batch": [JOB],
        "srun": [JOB | STEP] * 3,
        "srun --mpi=pmix": [JOB | STEP | PMIX] * 3,
        "srun --mpi=pmi2": [JOB | STEP | PMI] * 3,
        MPIRUN: [JOB | PMIX | OPEN_MPI] + [JOB | STEP | PMIX | OPEN_MPI] * 2,
    }
    show = tmp_path / "show.sh"
    show.write_text('#!/bin/sh\nenv -0 > "$1.$(hostname)"\n[ -z "$PRTE_LAUNCHED" ] || sleep 0.5\n')
    show.chmod(0o755)
    lines = [f"{'' if name == 'batch' else name} {show} case{case}" for case, name in enumerate(expected)]
    slurm.wait(slurm.sbatch(*THREE, script="\n".join(["#!/bin/sh", *lines, ""]), cwd=tmp_path))

    telling = JOB | STEP | PMIX | PMI | OPEN_MPI
    seen = {
        name: [
            {entry.split("=")[0] for entry in path.read_text().split("\0")} & telling
            for path in sorted(tmp_path.glob(f"case{case}.node*"))
        ]
        for case, name in enumerate(expected)
    }
    assert seen == expected


@pytest.mark.parametrize("launch", ["srun --mpi=pmix", MPIRUN], ids=["srun", "mpirun"])
def test_scancel_leaves_no_process(slurm: Slurm, tmp_path: Path, launch: str) -> None:
    (tmp_path / "serve.py").write_text(SERVE)
    job = slurm.sbatch(*THREE, "--output=out", script=f"#!/bin/sh\n{launch} python serve.py\n", cwd=tmp_path)
    assert wait_until(lambda: (tmp_path / "out").exists() and (tmp_path / "out").read_text().count("up\n") == 3)
    assert set(slurm.processes()) == {"node1", "node2", "node3"}
    slurm.cancel(job)
    assert slurm.wait(job)["JobState"] == "CANCELLED"
    assert wait_until(lambda: slurm.processes() == {}), slurm.processes()


def test_a_signal_before_the_end_and_requeue_continue_a_job(slurm: Slurm, tmp_path: Path) -> None:
    script = """#!/bin/bash
echo "start ${SLURM_RESTART_COUNT:-0}"
[ -n "$SLURM_RESTART_COUNT" ] && exit 0
trap 'echo signalled; scontrol requeue $SLURM_JOB_ID' USR1
sleep 1000 & wait
wait
"""
    job = slurm.sbatch("--requeue", "--open-mode=append", "--output=out", script=script, cwd=tmp_path)
    assert wait_until(lambda: (tmp_path / "out").exists() and "start 0" in (tmp_path / "out").read_text())
    slurm.cancel(job, "--batch", "--signal=USR1")
    assert slurm.wait(job, {"COMPLETED"})["Restarts"] == "1"
    said = (tmp_path / "out").read_text()
    assert said.index("start 0") < said.index("signalled") < said.index("start 1")


def test_srun_is_a_process_like_any_other(slurm: Slurm) -> None:
    command = ("srun", "--nodes=2", "sh", "-c", "echo up; exec sleep 1000")
    with slurm.login.popen(*command, stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        assert [job.stdout.readline() for _ in range(2)] == ["up\n"] * 2
        job.send_signal(signal.SIGTERM)
        assert job.wait(timeout=PATIENCE) != 0
    assert wait_until(lambda: slurm.processes() == {}), slurm.processes()


@pytest.mark.slow
def test_a_lost_node_fails_the_job_and_comes_back(tmp_path_factory: pytest.TempPathFactory, slurm: Slurm) -> None:
    with Hosts(4, shared=tmp_path_factory.getbasetemp()) as hosts, Slurm(hosts) as own:
        job = own.sbatch(*THREE, "--no-requeue", script="#!/bin/sh\nsrun sleep 1000\nsleep 1000\n")
        own.wait(job, {"RUNNING"})
        hosts[2].kill()
        assert own.wait(job)["JobState"] == "NODE_FAIL"
        assert wait_until(lambda: own.processes() == {}), own.processes()
        hosts[2].start()
        own.start(hosts[2])
        own.settle()
        assert len(own.run("srun", "--nodes=3", "hostname").stdout.split()) == 3
