"""Which jobs of a study live: each touches a file as long as it does."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from mpitune.ranks.heartbeat import BEATS, Pulse
from mpitune.storage.files import ALIVE, JOBS, make_folder, regular_file

SEEN = 3  # own heartbeats during which another job made none, before it counts as gone


class Lives:
    """Which other jobs live, by the files that each touches.

    Clocks of hosts differ, so only times of the file server are compared: those of others' files with that of one's
    own. A job that was suspended, as others may have been, looks for some own heartbeats before it blames anybody.

    Args:
        timeout: seconds without a sign after which a job counts as gone; 0 for never.
    """

    def __init__(self, folder: Path, job: str, timeout: float):
        self._folder, self._mine = folder / JOBS, folder / JOBS / job / ALIVE
        self._timeout = timeout or math.inf
        self._beats = 0
        self._seen: dict[str, tuple[float, int]] = {}  # the time of a job's file, and the beat that first saw it
        make_folder(self._mine.parent)
        os.close(regular_file(self._mine, os.O_WRONLY | os.O_CREAT))
        self._touch()
        self._pulse = Pulse(self._touch, timeout / (BEATS + 1)) if timeout else None

    def _touch(self) -> None:
        with suppress(OSError):
            os.utime(self._mine)
        self._beats += 1

    def gone(self, jobs: Iterable[str], seen: int = SEEN) -> set[str]:
        """Those of the jobs that have given no sign for too long, and for so many heartbeats of this job."""
        beats, now = self._beats, _time_of(self._mine)
        gone = set()
        for job in jobs:
            time = _time_of(self._folder / job / ALIVE)
            last, since = self._seen.setdefault(job, (time, beats))
            if last != time:
                self._seen[job] = (time, beats)
            elif now - time > self._timeout and beats - since >= seen:
                gone.add(job)
        return gone

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
