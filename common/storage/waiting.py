"""Say what the main thread does where it cannot say it itself: one thread that looks on."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

log = logging.getLogger(__name__)


@dataclass
class _Wait:
    """What is said of a block: after `first` seconds, then every `again`."""

    words: str
    level: int
    first: int
    again: int
    seconds: int = 0

    @property
    def was_said(self) -> bool:
        return self.seconds >= self.first


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
    with _watched(_Wait(words, logging.WARNING, first=10, again=30)) as wait:
        yield
    if wait.was_said:
        log.warning("%s for %d s, and now has", words, wait.seconds)


@contextmanager
def working(words: str, rank: int) -> Iterator[None]:
    """Log what the main thread does for each ten seconds that it takes; to people at a terminal from the first on.

    Args:
        words: As in "the data are loaded".
        rank: of this process; only rank 0 speaks.
    """
    level = logging.INFO if rank == 0 else logging.DEBUG
    with _watched(_Wait(words, level, first=1 if sys.stderr.isatty() else 10, again=10)):
        yield


@contextmanager
def _watched(wait: _Wait) -> Iterator[_Wait]:
    global _watch
    if _watch is None:
        _watch = threading.Thread(target=_look_on, name="waiting", daemon=True)
        _watch.start()
    _waits.append(wait)
    try:
        yield wait
    finally:
        _waits.pop()


def _look_on() -> None:
    while True:
        time.sleep(1.0)
        for wait in _waits[-1:]:
            wait.seconds += 1
            if wait.was_said and (wait.seconds - wait.first) % wait.again == 0:
                log.log(wait.level, "%s for %d s", wait.words, wait.seconds)
