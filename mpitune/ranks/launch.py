"""What launched this process, when its job ends, and the transport to the other ranks that follows from it."""

from __future__ import annotations

import faulthandler
import os
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

from mpitune.errors import UsageError, typed
from mpitune.processes.process import die_with, require_linux
from mpitune.ranks.transport import LocalTransport, Transport

# (launcher, variable of the number of ranks, variable of this rank, another that is set), the surest sign first. In a
# Slurm job mpirun starts its daemons by srun: on other nodes the ranks see variables of Slurm that count these daemons.
_SIGNS = (
    ("mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", ""),
    ("prterun", "", "PMIX_RANK", "PRTE_LAUNCHED"),
    ("mpiexec", "PMI_SIZE", "PMI_RANK", ""),
    ("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_ID"),
)

MPI_INIT_SECONDS = 300.0

# On rank 0: whether the others wait for what it asks for, as it alone runs the script. See `mpitune.studies.serve`.
others_wait = False
_hidden: Launch | None = None  # how this process was started, once the environment no longer says it


@dataclass(frozen=True)
class Launch:
    """How this process was started."""

    launcher: str  # what started it, "" for a shell
    size: int  # processes by the launcher's count; 0 if it does not tell
    rank: int  # of this process


def launched(environ: Mapping[str, str] = os.environ) -> Launch:
    """How this process was started, by the environment. Imports nothing, so any error can use it.

    The steps of srun have their own task count; a batch script run without srun is a single process
    although SLURM_NTASKS is set in it.
    """
    if _hidden is not None and environ is os.environ:
        return _hidden
    for launcher, size, rank, set_too in _SIGNS:
        if all(environ.get(name, "").isdigit() for name in (size, rank, set_too) if name):
            if launcher == "mpiexec" and environ.get("SLURM_MPI_TYPE") == "pmi2":
                launcher = "srun"  # its --mpi=pmi2 speaks as mpiexec does
            return Launch(launcher, int(environ.get(size, "0")), int(environ[rank]))
    return Launch("", 1, 0)


def hide() -> None:
    """Let the script that this rank alone runs not see its ranks: accelerate would begin torch.distributed with them.

    `launched` still knows them.
    """
    global _hidden
    _hidden = launched()
    for name in [name for name in os.environ if name.startswith(("OMPI_COMM_WORLD_", "PMI_"))]:
        del os.environ[name]


def host_name() -> str:
    """The name of this machine, without its domain."""
    return socket.gethostname().split(".")[0]


def every_rank_runs() -> bool:
    """Whether each rank of a job of several runs the script, as far as the launcher tells how many there are."""
    return launched().size != 1 and not others_wait


def end_of_job(environ: Mapping[str, str] = os.environ) -> float | None:
    """Unix time at which Slurm will end the job, None outside of one or where it has no limit.

    Slurm sets SLURM_JOB_END_TIME from version 23.02 on; before, squeue is asked.
    """
    if (stated := environ.get("SLURM_JOB_END_TIME", "")).isdigit():
        return float(stated)
    job = environ.get("SLURM_JOB_ID", "")
    if not job.isdigit():
        return None
    try:
        done = subprocess.run(["squeue", "-h", "-j", job, "-o", "%e"], capture_output=True, text=True, timeout=10)
        return time.mktime(time.strptime(done.stdout.strip(), "%Y-%m-%dT%H:%M:%S"))
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None


def connect(launch: Launch, expect_nodes: int | None = None, heartbeat_timeout: float = 0.0) -> Transport:
    """The transport that fits the launch; MPI is initialised once in a process. See `RunOptions` for the arguments.

    Raises:
        UsageError: mpirun or srun started several processes that cannot see each other (each would run the whole
            study), the number of ranks is not `expect_nodes`, or this is not Linux.
    """
    require_linux()
    if launch.launcher:
        # If a daemon dies, MPI ends its rank only when the rank next talks to it, which may be never.
        die_with(os.getppid())
    # A single rank uses MPI too: so it ends with its mpirun, however that ends.
    alone = launch.size == 1 and (launch.launcher not in ("mpirun", "mpiexec") or find_spec("mpi4py") is None)
    transport = LocalTransport() if alone else _mpi(launch)
    if expect_nodes is not None and transport.size != expect_nodes:
        raise UsageError(
            f"{typed('expect_nodes', expect_nodes)}, but there {'is' if transport.size == 1 else 'are'} "
            f"{transport.size}: check the launcher's host list"
        )
    transport.watch(heartbeat_timeout)
    return transport


@cache
def _mpi(launch: Launch) -> Transport:
    if os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == str(launch.size):
        # On one host Open MPI's ranks share memory. Without this they would also listen for TCP on all addresses.
        os.environ.setdefault("OMPI_MCA_btl", "^tcp")
    # MPI_Init waits for all ranks, even if one has died. Then say where this rank waits, and end.
    faulthandler.dump_traceback_later(MPI_INIT_SECONDS, exit=True)
    try:
        from mpitune.ranks.mpi import MpiTransport, library
    except (ImportError, RuntimeError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "mpi4py":
            raise UsageError(
                f'{launch.launcher} started several processes, but mpi4py is not installed: pip install "mpitune[mpi]"'
            ) from error
        raise UsageError(
            f"mpi4py finds no MPI library ({str(error).splitlines()[0]}): install mpi4py, and the library that "
            f"{launch.launcher} belongs to"
        ) from error
    finally:
        faulthandler.cancel_dump_traceback_later()
    transport = MpiTransport()
    if launch.size not in (0, transport.size):
        fix = "srun --mpi=pmix" if launch.launcher == "srun" else f"the {launch.launcher} of that MPI"
        raise UsageError(
            f"{launch.launcher} started {launch.size} processes, but MPI ({library()}) sees {transport.size}, so "
            f"each would run the whole study: start them with {fix}"
        )
    return transport
