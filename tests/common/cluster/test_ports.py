"""On one machine no process of a search listens: there is nothing that another user of it could speak to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT, TOYS, family, mpirun_command, wait_for_lines

LISTENING = {"tcp": (3, "0A"), "tcp6": (3, "0A"), "udp": (3, "07"), "udp6": (3, "07"), "unix": (3, "00010000")}


def listeners(pid: int) -> list[str]:
    """The sockets of a process that others can connect or send to, as /proc/net has them."""
    own = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
    found = []
    for protocol, (column, word) in LISTENING.items():
        for line in Path(f"/proc/{pid}/net/{protocol}").read_text().splitlines()[1:]:
            fields = line.split()
            inode = fields[6] if protocol == "unix" else fields[9]
            if fields[column] == word and f"socket:[{inode}]" in own:
                found.append(f"{protocol} {fields[1] if protocol != 'unix' else fields[7:]}")
    return found


@pytest.mark.parametrize("ranks", [0, 2])
def test_nobody_listens(tmp_path: Path, ranks: int) -> None:
    options = ("40", "--seconds", "0.5", "--gpu", "none", "--workers", "2", "--results", str(tmp_path / "r"))
    command = [*(mpirun_command(ranks) if ranks else []), sys.executable, *TOYS, *options]
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}) as job:
        try:
            wait_for_lines(tmp_path / "r", 4)
            ours = family(job.pid) - (
                {job.pid} if ranks else set()
            )  # mpirun listens: its daemons on other hosts call it
            assert len(ours) >= 3 * max(ranks, 1)
            assert {pid: heard for pid in ours if (heard := listeners(pid))} == {}
        finally:
            job.kill()
