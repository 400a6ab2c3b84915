"""Which launcher is told from which variables. The variables are those that the launchers were seen to set."""

import os
import time
from pathlib import Path

import pytest

from mpitune.errors import UsageError
from mpitune.ranks import launch as launching
from mpitune.ranks.launch import Launch, connect, end_of_job, launched

BATCH = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "3", "SLURM_PROCID": "0"}
SRUN = {**BATCH, "SLURM_PROCID": "2", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "3"}
PMIX = {"PMIX_RANK": "2", "PMIX_NAMESPACE": "slurm.pmix.7.0", "SLURM_MPI_TYPE": "pmix"}
PMI2 = {"PMI_RANK": "2", "PMI_SIZE": "3", "SLURM_MPI_TYPE": "pmi2"}
MPIRUN = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "2", "PMIX_RANK": "2", "PRTE_LAUNCHED": "1"}
PRTERUN = {"PMIX_RANK": "2", "PRTE_LAUNCHED": "1"}
MPIEXEC = {"PMI_RANK": "2", "PMI_SIZE": "3"}  # MPICH and Intel MPI
# mpirun's daemons are tasks of a step of their own: two on the nodes other than the first one.
DAEMONS = {**SRUN, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}


@pytest.mark.parametrize(
    ("environ", "launch"),
    [
        ({}, Launch("", 1, 0)),
        (BATCH, Launch("", 1, 0)),
        (SRUN, Launch("srun", 3, 2)),
        ({**SRUN, **PMIX}, Launch("srun", 3, 2)),
        ({**SRUN, **PMI2}, Launch("srun", 3, 2)),
        (MPIRUN, Launch("mpirun", 3, 2)),
        ({**BATCH, **MPIRUN}, Launch("mpirun", 3, 2)),
        ({**DAEMONS, **MPIRUN}, Launch("mpirun", 3, 2)),
        ({**DAEMONS, **MPIRUN, "SLURM_MPI_TYPE": "pmix"}, Launch("mpirun", 3, 2)),
        (PRTERUN, Launch("prterun", 0, 2)),
        ({**DAEMONS, **PRTERUN}, Launch("prterun", 0, 2)),
        (MPIEXEC, Launch("mpiexec", 3, 2)),
        ({**DAEMONS, **MPIEXEC}, Launch("mpiexec", 3, 2)),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "", "SLURM_PROCID": "x"}, Launch("", 1, 0)),
    ],
    ids=[
        "shell", "sbatch", "srun", "srun pmix", "srun pmi2", "mpirun", "mpirun in a job", "mpirun on its other nodes",
        "mpirun on its other nodes, pmix by default", "prterun", "prterun on its other nodes", "mpiexec",
        "mpiexec on its other nodes", "nonsense",
    ],
)  # fmt: skip
def test_the_launcher_is_known_by_its_variables(environ: dict[str, str], launch: Launch) -> None:
    assert launched(environ) == launch


def test_too_few_nodes_are_refused() -> None:
    with pytest.raises(UsageError, match="--expect-nodes 2, but there is 1"):
        connect(Launch("", 1, 0), expect_nodes=2)


def test_slurm_states_the_end_or_squeue_does_where_it_is_older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert end_of_job({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1800000000"}) == 1_800_000_000
    assert end_of_job({}) is None
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert end_of_job({"SLURM_JOB_ID": "7"}) is None, "no squeue there"
    squeue = tmp_path / "squeue"
    squeue.write_text('#!/bin/sh\n[ "$*" = "-h -j 7 -o %e" ] && echo 2027-01-15T08:00:00\n')
    squeue.chmod(0o755)
    assert end_of_job({"SLURM_JOB_ID": "7"}) == time.mktime((2027, 1, 15, 8, 0, 0, 0, 0, -1))
    squeue.write_text("#!/bin/sh\necho NONE\n")
    assert end_of_job({"SLURM_JOB_ID": "7"}) is None, "no time limit"


def test_a_script_does_not_see_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that it uses would wait for the others."""
    monkeypatch.setattr(launching, "_hidden", None)
    for name, value in {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "0", "PMI_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    launching.hide()
    assert launched() == Launch("mpirun", 3, 0)
    assert not [name for name in os.environ if name.startswith(("OMPI_COMM_WORLD_", "PMI_"))]
