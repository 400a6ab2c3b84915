"""Ranks that do not understand each other: the job ends at once. `test_preflight.py` has those that do."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from mpitune.errors import Exit
from tests.helpers import PATIENCE, ROOT, TOYS, mpirun_command

# The first messages of ranks from before the first words: each sends its host's name, and waits for all names.
OLDER = """
import socket, sys
from mpi4py import MPI
world, rank = MPI.COMM_WORLD, MPI.COMM_WORLD.rank
if rank:
    world.send(socket.gethostname(), dest=0, tag=0)
    world.recv(source=0, tag=0)
    world.recv(source=0, tag=0)
else:
    hosts = [world.recv(source=other, tag=0) for other in range(1, world.size)]
    for other in range(1, world.size):
        world.send(hosts, dest=other, tag=0)
    world.recv(source=1, tag=0)
world.recv(tag=9)
"""


@pytest.mark.slow
@pytest.mark.parametrize("older", [0, 1])
def test_ranks_of_two_versions_end_at_once(tmp_path: Path, older: int) -> None:
    ours = [sys.executable, *TOYS, "3", "--gpu", "none", "--workers", "1", "--results", str(tmp_path / "results")]
    programs = [ours, ours]
    programs[older] = [sys.executable, "-c", OLDER]
    command = [*mpirun_command(1), *programs[0], ":", "-n", "1", *programs[1]]
    begin = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == Exit.USAGE, done.stderr
    assert time.monotonic() - begin < PATIENCE / 2, "nobody waits for a time limit"
    assert "runs another version of this program" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "results").exists()
