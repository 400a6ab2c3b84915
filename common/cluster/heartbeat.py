"""Whether the ranks at the other end still live, where nobody else would say.

A node that loses its power or its link sends nothing, not even an end of its connections. TCP's keepalive, which MPI's
daemons can be told to use, does not notice as long as sent data waits for its acknowledgement; that takes a quarter of
an hour. So every rank says now and then that it lives: the others to rank 0, and rank 0 to them.

A thread does that. The main thread may be inside a call of the system that does not return: a write to Lustre or NFS
waits for minutes when a server fails over, and no signal handler of Python runs meanwhile. Such a rank is alive. The
thread goes on, since Python gives up its lock around such calls. Two other ways were weighed. A process with sockets of
its own would open a port to everybody on the network, and would say that a rank lives that has hung. Writing the
journal in a thread would leave out data and figures.
"""

from __future__ import annotations

import atexit
import signal
import threading
from collections.abc import Callable

BEATS = 8  # of its own that a rank makes without a word from another one, until that one counts as dead


class Heartbeat:
    """Ranks that have been silent for too long.

    Silence is counted in one's own beats and not by a clock. A rank that was suspended made none meanwhile, so it
    blames nobody for the time that it slept.

    Args:
        size: Number of ranks.
        timeout: Seconds without a word after which a rank counts as dead.
    """

    def __init__(self, size: int, timeout: float):
        self.interval = timeout / (BEATS + 1)  # the last word may have come just after a beat
        self._missed: list[int | None] = [None] * size  # own beats since the last word; None before the first

    def heard(self, rank: int) -> None:
        """That rank has spoken. It is listened for from its first word on."""
        self._missed[rank] = 0

    def beat(self) -> None:
        """Another beat of this rank."""
        self._missed = [None if missed is None else missed + 1 for missed in self._missed]

    def forget(self, rank: int) -> None:
        """That rank is dead: it is not listened for until it speaks again."""
        self._missed[rank] = None

    def lives(self, rank: int) -> bool:
        """Whether that rank has spoken, and not too long ago."""
        missed = self._missed[rank]
        return missed is not None and missed < BEATS

    def silent(self) -> list[int]:
        """The ranks that have not spoken for too long."""
        return [rank for rank, missed in enumerate(self._missed) if missed is not None and missed >= BEATS]


class Pulse:
    """Calls `beat` every `interval` seconds until it is stopped.

    Args:
        beat: Must return soon.
        interval: Seconds.
        in_thread: Whether a thread calls it. Otherwise a timer's signal interrupts the main thread, which does not help
            while that waits for the system.
    """

    def __init__(self, beat: Callable[[], None], interval: float, in_thread: bool):
        self._beat, self._interval = beat, interval
        self._stopped = threading.Event()
        atexit.register(self.stop)  # before MPI is finalized
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True) if in_thread else None
        if self._thread is not None:
            self._thread.start()
        else:
            signal.signal(signal.SIGALRM, lambda number, frame: beat())
            signal.siginterrupt(signal.SIGALRM, False)  # libraries that do not expect it need not know
            signal.setitimer(signal.ITIMER_REAL, interval, interval)

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            self._beat()

    def stop(self) -> None:
        """No beat is made after this returns."""
        atexit.unregister(self.stop)
        if self._thread is None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        else:
            self._stopped.set()
            self._thread.join()
