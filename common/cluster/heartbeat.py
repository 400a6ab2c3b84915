"""Whether the ranks at the other end still live, where nobody else would say.

A node that loses its power or its link sends nothing, not even an end of its connections. TCP's keepalive, which MPI's
daemons can be told to use, does not notice as long as sent data waits for its acknowledgement; that takes a quarter of
an hour. So every rank says now and then that it lives: the others to rank 0, and rank 0 to them.
"""

from __future__ import annotations

import time


class Heartbeat:
    """When to speak to whom, and who has been silent for too long.

    silence: seconds without a word after which a rank counts as dead. A rank is listened for from its first word on.
    """

    def __init__(self, rank: int, size: int, silence: float):
        self.others = list(range(1, size)) if rank == 0 else [0]
        self.interval = silence / 8
        self._silence = silence
        self._heard: dict[int, float] = {}

    def heard(self, rank: int) -> None:
        """That rank has spoken."""
        self._heard[rank] = time.monotonic()

    def lost(self, rank: int) -> None:
        """That rank is dead: neither speak to it nor wait for it."""
        self.others = [other for other in self.others if other != rank]

    def silent(self) -> list[int]:
        """The ranks that have not spoken for too long."""
        now = time.monotonic()
        return [other for other in self.others if now - self._heard.get(other, now) > self._silence]
