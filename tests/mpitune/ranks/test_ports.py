"""On one machine no process of a search listens: there is nothing that another user of it could speak to."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.helpers import family, listeners, start, wait_for_lines


@pytest.mark.parametrize("ranks", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_nobody_listens(tmp_path: Path, ranks: int) -> None:
    with start(tmp_path / "r", "4000", "--seconds", "0.5", ranks=ranks) as job:
        try:
            wait_for_lines(tmp_path / "r", 4)
            ours = family(job.pid) - (
                {job.pid} if ranks else set()
            )  # mpirun listens: its daemons on other hosts call it
            assert len(ours) >= 3 * max(ranks, 1)
            assert {pid: heard for pid in ours if (heard := listeners(pid))} == {}
        finally:
            os.killpg(job.pid, signal.SIGKILL)
