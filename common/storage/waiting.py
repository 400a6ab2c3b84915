"""Say what the program waits for, where a file system does not answer: one thread that looks on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

log = logging.getLogger(__name__)

FIRST, AGAIN = 10, 30  # seconds after which it is said, and between further times


@dataclass
class _Wait:
    words: str
    seconds: int = 0


_waits: list[_Wait] = []  # of the main thread, the innermost last
_watch: threading.Thread | None = None


@contextmanager
def waiting(words: str) -> Iterator[None]:
    """Log a warning when the block takes longer than ten seconds, every half minute again, and once it has ended.

    For blocks of the main thread that wait for the system and compute nothing. The main thread may be inside a call
    that does not return, so another one speaks. It counts its own seconds, as a suspended process waits for nothing.

    Args:
        words: As in "results folder r has not answered".
    """
    global _watch
    if _watch is None:
        _watch = threading.Thread(target=_look_on, name="waiting", daemon=True)
        _watch.start()
    wait = _Wait(words)
    _waits.append(wait)
    try:
        yield
    finally:
        _waits.pop()
        if wait.seconds >= FIRST:
            log.warning("%s for %d s, and now has", words, wait.seconds)


def _look_on() -> None:
    while True:
        time.sleep(1.0)
        for wait in _waits[-1:]:
            wait.seconds += 1
            if wait.seconds >= FIRST and (wait.seconds - FIRST) % AGAIN == 0:
                log.warning("%s for %d s", wait.words, wait.seconds)
