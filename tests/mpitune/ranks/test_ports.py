"""On one machine no process of a search listens where another user of it could speak to it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.helpers import family, listeners, start, wait_for_lines


def is_private(listener: str) -> bool:
    """Whether it is a socket in a folder of the user's alone, as that of a fork server."""
    kind, place = listener.split(maxsplit=1)
    return kind == "unix" and Path(place.strip("[']")).parent.stat().st_mode & 0o077 == 0


def test_nobody_listens(tmp_path: Path) -> None:
    with start(tmp_path / "r", "4000", "--seconds", "0.5", ranks=2) as job:
        try:
            wait_for_lines(tmp_path / "r", 4)
            ours = family(job.pid) - {job.pid}  # mpirun listens: its daemons on other hosts call it
            assert len(ours) >= 6
            heard = [each for pid in ours for each in listeners(pid) if not is_private(each)]
            assert heard == []
        finally:
            os.killpg(job.pid, signal.SIGKILL)
