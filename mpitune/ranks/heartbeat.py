"""Heartbeats: they show whether other ranks still live when nothing else does.

A node that loses its power or its link sends nothing, and does not close its connections. MPI's daemons can use TCP's
keepalive. But that notices nothing while sent data waits to be acknowledged, for up to a quarter of an hour. So every
rank tells rank 0 regularly that it lives, and rank 0 tells all others.

A thread does that, because the main thread may wait inside a call of the system: a write to Lustre or NFS takes minutes
when a server fails over, and no signal handler of Python runs meanwhile. Such a rank is alive. The thread goes on,
since Python releases its lock around such calls. docs/architecture.md says why other ways are worse.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

BEATS = 8  # another rank counts as dead when this rank has made so many beats without a word from it


class Heartbeat:
    """Ranks that have been silent for too long.

    Silence is counted in one's own beats and not by a clock. A rank that was suspended made none meanwhile, so it
    blames nobody for the time that it slept.
    """

    def __init__(self, size: int, timeout: float):
        self.interval = timeout / (BEATS + 1)  # the last word may have come just after a beat
        self._missed: list[int | None] = [None] * size  # own beats since the last word; None before the first

    def heard(self, rank: int) -> None:
        """That rank has spoken. Silence counts from its first word on."""
        self._missed[rank] = 0

    def beat(self) -> None:
        """Another beat of this rank."""
        self._missed = [None if missed is None else missed + 1 for missed in self._missed]

    def forget(self, rank: int) -> None:
        """That rank is dead: its silence does not count until it speaks again."""
        self._missed[rank] = None

    def lives(self, rank: int) -> bool:
        """Whether that rank has spoken, and not too long ago."""
        missed = self._missed[rank]
        return missed is not None and missed < BEATS

    def silent(self) -> list[int]:
        """The ranks that have not spoken for too long."""
        return [rank for rank, missed in enumerate(self._missed) if missed is not None and missed >= BEATS]


class Pulse:
    """A thread that calls `beat`, which must return soon, every `interval` seconds until it is stopped."""

    def __init__(self, beat: Callable[[], None], interval: float):
        self._beat, self._interval = beat, interval
        self._stopped = threading.Event()
        atexit.register(self.stop)  # before MPI is finalized
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            self._beat()

    def stop(self) -> None:
        """No beat is made after this returns."""
        atexit.unregister(self.stop)
        self._stopped.set()
        self._thread.join()
