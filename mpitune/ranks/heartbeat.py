"""Heartbeats: they show whether other ranks, jobs and processes still live when nothing else does.

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
from collections.abc import Callable, Hashable
from typing import Any

BEATS = 8  # another one counts as dead when this one has made so many beats without a word from it


class Silence:
    """Others that have been silent for too long.

    Silence is counted in one's own beats and not by a clock. Who was suspended made none meanwhile, so it blames nobody
    for the time that it slept. It counts from the first word on.
    """

    def __init__(self) -> None:
        self._beats = 0
        self._heard: dict[Hashable, tuple[object, int]] = {}  # the last word of each, and the beat that heard it first

    def beat(self) -> None:
        """Another beat of this process."""
        self._beats += 1

    def heard(self, who: Hashable, word: object = None) -> None:
        """It has spoken. A `word` that can be read again and again counts once."""
        if word is None or self._heard.get(who, (None, 0))[0] != word:
            self._heard[who] = word, self._beats

    def silent(self) -> list[Any]:
        """Those that have not spoken for too long."""
        return [who for who, (_, beat) in list(self._heard.items()) if self._beats - beat >= BEATS]


class Pulse:
    """A thread that calls `beat`, which must return soon, again and again until it is stopped.

    timeout: seconds in which it makes one beat more than `BEATS`, as the last word may have come just after a beat.
    """

    def __init__(self, beat: Callable[[], None], timeout: float):
        self._beat, self._interval = beat, timeout / (BEATS + 1)
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
