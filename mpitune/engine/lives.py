"""Which jobs of a study live: each touches a file as long as it does."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from mpitune.ranks.heartbeat import Pulse, Silence
from mpitune.storage.files import ALIVE, JOBS, make_folder, regular_file


class Lives:
    """Which other jobs live, by the files that each touches.

    A job counts as gone when the time of its file has stayed the same during some heartbeats of one's own. No time is
    compared with that of a clock: clocks differ, and are set.

    Args:
        timeout: seconds without a sign after which a job counts as gone; 0 for never.
    """

    def __init__(self, folder: Path, job: str, timeout: float):
        self._folder, self._own = folder / JOBS, folder / JOBS / job / ALIVE
        self._silence = Silence()
        make_folder(self._own.parent)
        os.close(regular_file(self._own, os.O_WRONLY | os.O_CREAT))
        self._pulse = Pulse(self._touch, timeout) if timeout else None

    def _touch(self) -> None:
        with suppress(OSError):
            os.close(regular_file(self._own, os.O_WRONLY | os.O_CREAT))  # it may have been removed
            os.utime(self._own)
        self._silence.beat()

    def gone(self, jobs: Iterable[str]) -> set[str]:
        """Those of the jobs that have given no sign for too long, since this was first asked."""
        names = set(jobs)
        for job in names:
            self._silence.heard(job, _time_of(self._folder / job / ALIVE))
        return names.intersection(self._silence.silent())

    def close(self) -> None:
        """No sign is given any more."""
        if self._pulse is not None:
            self._pulse.stop()


def _time_of(path: Path) -> float:
    """When a file was touched, by the file server's clock; never where it is not there."""
    try:
        descriptor = regular_file(path)  # opened, so that NFS asks its server
    except OSError:
        return -math.inf
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
