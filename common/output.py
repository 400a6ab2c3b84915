"""Words to people who may have left (`python -m mnist_svm 24 | head`), and from processes of several hosts."""

from __future__ import annotations

import os
import sys
from typing import Any


class _Outliving:
    """A stream that goes on, into nothing, once it cannot be written: its reader has left, or its disk is full."""

    def __init__(self, stream: Any, name: str) -> None:
        self._stream, self._name, self.lost = stream, name, ""

    def write(self, text: str) -> int:
        try:
            return int(self._stream.write(text))
        except OSError as error:
            self._to_nowhere(error)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._to_nowhere(error)

    def _to_nowhere(self, error: OSError) -> None:
        """What the stream still keeps goes there too, so it does not fail once more as Python ends."""
        if not isinstance(error, BrokenPipeError):
            self.lost = f"{self._name}: {error.strerror}"
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def outlive_readers() -> None:
    """Let no stdout or stderr that cannot be written, or was closed, end this program. For the start of one."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        try:
            os.fstat(number)
        except OSError:  # closed: the next file to be opened would take its number, and get what libraries print
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere == number:
                os.set_inheritable(number, True)
            else:
                os.dup2(nowhere, number)
                os.close(nowhere)
        stream = getattr(sys, name) or os.fdopen(number, "w", closefd=False)
        setattr(sys, name, _Outliving(stream, name))


def lost_output() -> str:
    """Which of stdout and stderr could not be written since `outlive_readers`, and why; empty if both could."""
    streams = (getattr(sys, name) for name in ("stdout", "stderr"))
    return "; ".join(stream.lost for stream in streams if isinstance(stream, _Outliving) and stream.lost)


def tag_output(tag: str) -> None:
    """Begin each line that this process prints from now on with `tag`."""
    sys.stdout, sys.stderr = _Tagged(sys.stdout, tag), _Tagged(sys.stderr, tag)


class _Tagged:
    def __init__(self, stream: Any, tag: str) -> None:
        self._stream, self._tag, self._fresh = stream, tag, True

    def write(self, text: str) -> int:
        for line in text.splitlines(keepends=True):
            self._stream.write(self._tag * self._fresh + line)
            self._fresh = line.endswith("\n")
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
