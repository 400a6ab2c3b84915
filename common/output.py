"""Words to people who may have left (`python -m mnist_svm 24 | head`), and from processes of several hosts."""

from __future__ import annotations

import os
import sys
from typing import Any


class _Outliving:
    """A stream that goes on, into nothing, once its reader has closed it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return int(self._stream.write(text))
        except BrokenPipeError:
            self._to_nowhere()
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._to_nowhere()

    def _to_nowhere(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())  # what the stream still keeps goes there too
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def outlive_readers() -> None:
    """Let no reader of stdout or stderr who leaves end this program. For the start of one."""
    sys.stdout, sys.stderr = _Outliving(sys.stdout), _Outliving(sys.stderr)


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
