"""Signals that ask a study to stop while no loop hears them: before the first trial, and while results are written.

That work has no trials. It ends where it is: all that it writes is written whole, and the same command does it again.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from mpitune.errors import Exit, how_to_go_on
from mpitune.processes.process import STOPS

ONCE_S = 0.2  # within which a signal is the same one
_heard_at: dict[int, float] = {}  # each signal, last


def is_another(number: int) -> bool:
    """Whether a signal is not the one before, sent again: GNU timeout sends it to the program, then to its group."""
    now, before = time.monotonic(), _heard_at.get(number, -math.inf)
    if now - before >= ONCE_S:
        _heard_at[number] = now
    return now - before >= ONCE_S


class Stopped(BaseException):
    """A signal has asked the study to stop."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number

    def __str__(self) -> str:
        return f"{signal.Signals(self.number).name}: {how_to_go_on()}"


class Stops:
    """Hears the signals of `ending_at_stops`."""

    def __init__(self) -> None:
        self._heard: int | None = None
        self._held = False

    def hear(self, number: int, frame: FrameType | None) -> None:
        if not is_another(number):
            return
        if self._heard is not None:
            os._exit(Exit.STOPPED)
        self._heard = number
        if not self._held:
            raise Stopped(number)

    def hold(self) -> None:
        """Let a signal wait for `release`, where nothing can be left as it is."""
        self._held = True

    def release(self) -> None:
        """Raises Stopped where a signal has come since `hold`."""
        self._held = False
        if self._heard is not None:
            raise Stopped(self._heard)


@contextmanager
def ending_at_stops() -> Iterator[Stops]:
    """Raise `Stopped` where one of STOPS arrives. A second one ends the process: what cleans up may hang.

    Only the main thread can hear signals; in another one this does nothing.
    """
    stops = Stops()
    if threading.current_thread() is not threading.main_thread():
        yield stops
        return
    before = {number: signal.signal(number, stops.hear) for number in STOPS}
    try:
        yield stops
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
