"""What trials print: a worker marks it with the trial's key, its agent shows it.

Python, libraries in C and programs that a trial starts print into one pipe. Before the lines of another trial the
worker writes a mark there, which has its key.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from mpitune.errors import printable, typed
from mpitune.processes.output import STREAMS

MARK = "\0trial\0"  # a key follows, to the end of its line
STDERR = "\0stderr\0"  # begins a line that Python prints there
MARK_SECONDS = 0.1  # a trial that begins so long after the last mark is marked at once, as not only Python may print
MOST_LINES = 20  # of one rank that are shown in a second

log = logging.getLogger(__name__)


class Printed:
    """Stdout and stderr of a worker, from now on with marks."""

    def __init__(self) -> None:
        self._key = self._marked = ""
        self._at = 0.0
        self._streams: list[Any] = [
            getattr(sys, name) or os.fdopen(n, "w", closefd=False) for name, n in STREAMS.items()
        ]
        for stream in self._streams:
            stream.reconfigure(line_buffering=True)
        sys.stdout, sys.stderr = map(_Marked, self._streams, (self, self), ("", STDERR))

    def begin(self, key: str) -> None:
        """What is printed from now on is this trial's."""
        self._key = key
        if time.monotonic() - self._at > MARK_SECONDS:
            self.mark()

    def mark(self) -> None:
        """Write a mark, unless the last one is of the same trial."""
        if self._key == self._marked:
            return
        self._marked, self._at = self._key, time.monotonic()
        with suppress(OSError):  # the agent has gone
            for stream in self._streams:
                stream.flush()
            os.write(1, f"{MARK}{printable(self._key)}\n".encode())


class _Marked:
    def __init__(self, stream: Any, printed: Printed, begin: str) -> None:
        self._stream, self._printed = stream, printed
        self._begin, self._fresh = begin, True  # of each line

    def write(self, text: str) -> int:
        self._printed.mark()
        if text:
            begun = self._begin * self._fresh + text[:-1].replace("\n", f"\n{self._begin}") + text[-1]
            self._fresh = text.endswith("\n")
            self._stream.write(begun)
            if not self._fresh:  # nothing else flushes a line without an end before the trial's result is told
                self._stream.flush()
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class TrialOutput:
    """Shows the lines of a rank's trials, so many in a second.

    plainly: all lines are printed here as they are.
    """

    def __init__(self, plainly: bool = False):
        self._plainly, self._second, self._n = plainly, 0, 0

    def show(self, key: str, place: object, text: str, level: int = logging.INFO) -> None:
        """Show what a trial has printed, or without a key what the worker at this place has."""
        is_error, text = level > logging.INFO or text.startswith(STDERR), text.replace(STDERR, "")
        if self._plainly and level >= logging.INFO:
            print(text, file=sys.stderr if is_error else sys.stdout, flush=True)
            return
        if not text.strip():
            return
        if (second := int(time.monotonic())) != self._second:
            self.say_rest()
            self._second = second
        self._n += level == logging.INFO
        beyond = level == logging.INFO and self._n > MOST_LINES
        log.log(logging.DEBUG if beyond else level, "%s: %s", f"trial {key}" if key else place, text.rstrip())

    def say_rest(self) -> None:
        """Say how many lines were not shown since the last call."""
        if self._n > MOST_LINES:
            how = f": {option} shows all" if (option := typed("verbose")) else ""
            log.info("trials printed %d more lines%s", self._n - MOST_LINES, how)
        self._n = 0
