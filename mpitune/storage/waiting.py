"""Say what the main thread does where it cannot say it itself: one thread that looks on."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

log = logging.getLogger(__name__)


SILENCE = 8.5  # seconds without a line, after which `working` speaks: looked at once a second, so within ten


@dataclass
class _Wait:
    """The messages about a block. is_due: whether there is one after so many seconds."""

    words: str
    level: int
    is_due: Callable[[int], bool]
    seconds: int = 0


_waits: list[_Wait] = []  # of the main thread, the innermost last
_watch: threading.Thread | None = None
_spoken = time.monotonic()


def spoken() -> None:
    """People have just been told something, by whomever."""
    global _spoken
    _spoken = time.monotonic()


@contextmanager
def waiting(words: str) -> Iterator[None]:
    """Log a warning when the block takes longer than ten seconds, every half minute again, and once it has ended.

    For blocks of the main thread that wait for the system and compute nothing. The main thread may be inside a call
    that does not return, so another one speaks. It counts its own seconds, as a suspended process waits for nothing.

    Args:
        words: As in "results folder r has not answered".
    """
    with _watched(_Wait(words, logging.WARNING, lambda seconds: seconds >= 10 and seconds % 30 == 10)) as wait:
        yield
    if wait.seconds >= 10:
        log.warning("%s for %d s, and now has", words, wait.seconds)


@contextmanager
def working(words: str, rank: int) -> Iterator[None]:
    """Log what the main thread does whenever nothing was logged for ten seconds; at a terminal after a second, too.

    Args:
        words: As in "the data are loaded".
        rank: of this process; only rank 0 speaks.
    """
    level = logging.INFO if rank == 0 else logging.DEBUG
    first = 1 if sys.stderr.isatty() else 0
    with _watched(_Wait(words, level, lambda seconds: seconds == first or time.monotonic() - _spoken >= SILENCE)):
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
        waits = _waits[::-1]
        for wait in waits:
            wait.seconds += 1
        for wait in waits:
            if wait.is_due(wait.seconds):
                log.log(wait.level, "%s for %d s", wait.words, wait.seconds)
                break
