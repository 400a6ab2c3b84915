"""Say what the main thread waits for where it cannot say it itself: one thread that looks on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)


class _Wait:
    """A block that is waited for: what is said of it, and for how long it has lasted."""

    def __init__(self, words: str, level: int):
        self.words, self.level, self.seconds = words, level, 0


_waits: list[_Wait] = []  # of the main thread, the innermost last
_watch: threading.Thread | None = None


@contextmanager
def waiting(words: str, level: int = logging.WARNING) -> Iterator[None]:
    """Log a line when the block takes longer than ten seconds, every half minute again, and once it has ended.

    The main thread may be inside a call of the system that does not return, so another one speaks. It counts its own
    seconds, as a suspended process waits for nothing.

    Args:
        words: As in "results folder r has not answered".
        level: Of the lines.
    """
    global _watch
    if _watch is None:
        _watch = threading.Thread(target=_look_on, name="waiting", daemon=True)
        _watch.start()
    _waits.append(wait := _Wait(words, level))
    try:
        yield
    finally:
        _waits.pop()
    if wait.seconds >= 10:
        log.log(level, "%s: it has taken %d s", words, wait.seconds)


def _look_on() -> None:
    while True:
        time.sleep(1.0)
        waits = _waits[::-1]
        for wait in waits:
            wait.seconds += 1
        said = next((wait for wait in waits if wait.seconds >= 10 and wait.seconds % 30 == 10), None)
        if said is not None:
            log.log(said.level, "%s for %d s", said.words, said.seconds)
