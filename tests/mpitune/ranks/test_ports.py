"""On one machine no process of a search listens: there is nothing that another user of it could speak to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT, TOYS, family, listeners, mpirun_command, wait_for_lines


@pytest.mark.parametrize("ranks", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_nobody_listens(tmp_path: Path, ranks: int) -> None:
    options = ("4000", "--seconds", "0.5", "--gpu", "none", "--workers", "2", "--results", str(tmp_path / "r"))
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
