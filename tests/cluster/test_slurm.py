"""The variables by which a program can tell what has launched it under a real Slurm."""

from pathlib import Path

from .slurm import Slurm

MPIRUN = "mpirun --allow-run-as-root --map-by ppr:1:node --bind-to none"
THREE = ("--nodes=3", "--ntasks-per-node=1")
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
