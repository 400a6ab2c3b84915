"""What somebody on the cluster's network can do to a job by speaking nonsense to its ports: nothing."""

from __future__ import annotations

import sys
from pathlib import Path

from mpitune.errors import Exit
from tests.helpers import PATIENCE, TOYS, wait_for_lines

from .hosts import Hosts
from .init import PORT
from .mpirun import mpirun

# Connects to every port given, says what is no greeting of any protocol there, and leaves some connections open.
STRANGER = """
import os, socket, sys, time
opened = []
for port in map(int, sys.argv[2:]):
    for said in (b"", b"GET / HTTP/1.0\\r\\n\\r\\n", b"\\0" * 4096, b"\\xff" * 4096, os.urandom(65536)):
        try:
            opened.append(socket.create_connection((sys.argv[1], port), timeout=2))
            opened[-1].settimeout(2)
            opened[-1].sendall(said)
        except OSError:
            pass
time.sleep(1)
print(len(opened))
"""


def test_nonsense_on_every_port_of_a_job_changes_nothing(hosts: Hosts, tmp_path: Path) -> None:
    options = ("30", "--seconds", "1.5", "--gpu", "none", "--workers", "1", "--results", str(tmp_path / "r"))
    with open(tmp_path / "log", "w") as log:
        job = hosts[0].popen(*mpirun(hosts[:2], sys.executable, *TOYS, *options), stdout=log, stderr=log)
    wait_for_lines(tmp_path / "r", 4)
    for host in hosts[:2]:
        lines = host.run("ss", "--no-header", "--listening", "--tcp", "--numeric").stdout.splitlines()
        places = [line.split()[3].rpartition(":") for line in lines]
        ports = sorted({port for address, _, port in places if not address.startswith("127.")} - {str(PORT)})
        assert len(ports) >= 2  # of a rank, and of mpirun or its daemon
        assert int(hosts[2].run(sys.executable, "-c", STRANGER, host.address, *ports).stdout) >= len(ports)
    assert job.wait(PATIENCE) == Exit.DONE, (tmp_path / "log").read_text()
    assert hosts[0].run(sys.executable, "-m", "mpitune", "status", tmp_path / "r").returncode == Exit.DONE
