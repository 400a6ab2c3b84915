"""Whether all processes of the training still live.

Collective operations wait: gloo notices a closed connection but not a silent one, and NCCL inside a node notices
neither of them. So each process says every two seconds in the store that it lives, and listens for the next one, in a
ring. What any process finds is written to the store for all to read. A thread does it, since the main one may be inside
an operation that never returns.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import time
from datetime import timedelta
from typing import Any, NoReturn

from mpitune.errors import Exit
from mpitune.ranks.heartbeat import BEATS, Silence

BEAT_S = 2.0
HEARTBEAT_TIMEOUT_S = BEATS * BEAT_S


class Watchdog(threading.Thread):
    """Ends this process when another process has ended before its work was done.

    Args:
        store: a connection that nobody else uses; its operations fail after its timeout.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        super().__init__(name="watch", daemon=True)
        self._store, self._rank, self._next, self._size = store, rank, (rank + 1) % size, size
        self._over = threading.Event()
        if rank == 0:
            store.set("failed", "")
        store.set(f"alive/{rank}", "0")

    def wait_for_all(self, seconds: float) -> None:
        """Wait until all processes have a watchdog. Raises RuntimeError after that many seconds."""
        self._store.wait([f"alive/{rank}" for rank in range(self._size)], timedelta(seconds=seconds))

    def run(self) -> None:
        silence = Silence()
        for beat in itertools.count(1):
            if self._over.wait(BEAT_S):
                return
            silence.beat()
            try:
                self._store.set(f"alive/{self._rank}", str(beat))
                failed, word = self._store.multi_get(["failed", f"alive/{self._next}"])
                silence.heard(self._next, word)
                if silence.silent() and not failed:
                    failed = f"rank {self._next} is silent".encode()
                    self._store.set("failed", failed)
            except RuntimeError:
                failed = b"rank 0 is gone"
            if failed and not self._over.is_set():
                self._end(failed.decode())

    def failed(self, why: str) -> None:
        """Tell the others that this process is about to end. Best effort: they would notice its silence too."""
        self._over.set()
        with contextlib.suppress(RuntimeError):
            self._store.set("failed", f"rank {self._rank}: {why}")

    def leave(self) -> None:
        """This process is done. Rank 0, whose host has the store, waits until all have said so."""
        self._over.set()
        self.join()
        self._store.set(f"alive/{self._rank}", "done")
        left, deadline = self._store.add("left", 1), time.monotonic() + HEARTBEAT_TIMEOUT_S
        while self._rank == 0 and left < self._size and time.monotonic() < deadline:
            time.sleep(0.01)
            left = self._store.add("left", 0)

    def _end(self, why: str) -> NoReturn:
        print(f"rank {self._rank} ends, as the training cannot go on: {why}", file=sys.stderr, flush=True)
        os._exit(Exit.ERROR)
