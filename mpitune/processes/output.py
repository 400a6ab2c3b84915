"""Words to people who may have left (`python -m mnist_svm 24 | head`), and to full disks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

STREAMS = {"stdout": 1, "stderr": 2}


class _Outliving:
    """A stream that drops what it cannot write, and goes on: its reader has left, or its disk is full."""

    def __init__(self, name: str):
        self._stream: Any = getattr(sys, name) or os.fdopen(STREAMS[name], "w", closefd=False)

    def write(self, text: str) -> int:
        try:
            return int(self._stream.write(text) or 0)  # tqdm gives None
        except UnicodeEncodeError as error:
            return self.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
        except (OSError, ValueError):  # ValueError: it has been closed
            self._drop()
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._drop()

    def _drop(self) -> None:
        """What the stream still keeps is dropped too, so it does not fail once more as Python ends."""
        with suppress(OSError, ValueError, AttributeError):  # it has no file
            number = self._stream.fileno()
            kept = os.dup(number)
            try:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, number)
                os.close(nowhere)
                self._stream.flush()
            finally:
                os.dup2(kept, number, inheritable=number in STREAMS.values())
                os.close(kept)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def outlive_readers() -> None:
    """Let no stdout or stderr that cannot be written, or was closed, end this program. For the start of one."""
    _hold_numbers()
    for name in STREAMS:
        setattr(sys, name, _Outliving(name))


@contextmanager
def outliving() -> Iterator[None]:
    """As `outlive_readers`, for as long as a script is in what this decorates. What it prints itself is its own."""
    _hold_numbers()
    before = {name: getattr(sys, name) for name in STREAMS}
    streams = {name: _Outliving(name) for name in STREAMS}
    for name, stream in streams.items():
        setattr(sys, name, stream)
    try:
        yield
    finally:
        for name, stream in streams.items():
            stream.flush()
            if getattr(sys, name) is stream:  # another thread may be in such a call too
                setattr(sys, name, before[name])


def _hold_numbers() -> None:
    """Open nothing in place of stdin, stdout or stderr if it was closed.

    The next file to be opened would take its number, and get what libraries print.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # which is this number, the lowest that is free
