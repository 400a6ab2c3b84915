"""Trackers that follow a study: each is a process, `mpitune.exchange.live`, that reads the journal while it grows.

A thread of rank 0 tells it once a second what runs, so a tracker that is slow, fails or hangs holds nothing up.
"""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from mpitune.errors import UsageError
from mpitune.processes.process import stops_wait
from mpitune.storage.table import last_line

EVERY_S = 1.0
SILENT_S = 10.0  # at the end, after which a tracker that makes no progress hangs
STEPS = b"steps "  # begins what a worker tells of a running trial

log = logging.getLogger(__name__)


def require(tracks: Sequence[str]) -> None:
    """Raise UsageError for a tracker whose package is not installed, or whose folder cannot be written."""
    for track in tracks:
        kind, _, place = track.partition(":")
        if getattr(find_spec(kind), "origin", None) is None:  # a folder of that name is no package
            raise UsageError(f'track={track}: {kind} is not installed: pip install "mpitune[export]"')
        if "://" not in place:
            try:
                Path(place).mkdir(parents=True, exist_ok=True)
                with TemporaryFile(dir=place or None):
                    pass
            except OSError as error:
                raise UsageError(
                    f"track={track}: it cannot be written ({error.strerror}): name another folder"
                ) from None


class Tracker:
    """A tracker of the study in a folder. Its failure is one line of the log."""

    def __init__(self, track: str, folder: Path):
        self._track, self._running, self._looked = track, dict[str, Any](), 0.0
        self._steps: deque[Any] = deque()
        self._over, self._errors = threading.Event(), TemporaryFile()  # noqa: SIM115
        self._said = False
        begin = f"import sys; sys.path[:] = {sys.path}; from mpitune.exchange.live import main; main(*{{}})"
        words = [sys.executable, "-c", begin.format((os.getpid(), str(folder), track))]
        with stops_wait():
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, bufsize=0
            )
        threading.Thread(target=self._tell, name="tracker", daemon=True).start()

    def update(self, running: Callable[[], Mapping[str, Any]]) -> None:
        """Take in which trials run, with their parameters by key, if that is due."""
        if (now := time.monotonic()) - self._looked >= EVERY_S:
            self._looked, self._running = now, dict(running())

    def hear(self, content: bytes) -> None:
        """Take in the steps of a running trial; all else that a worker tells is not for trackers."""
        if content.startswith(STEPS):
            self._steps.append(json.loads(content.removeprefix(STEPS)))

    def _tell(self) -> None:
        over = False
        try:
            while not over:
                over = self._over.wait(EVERY_S)
                steps = [self._steps.popleft() for _ in range(len(self._steps))]
                line = json.dumps([self._running, steps, over]).encode() + b"\n"
                while line:
                    line = line[self._process.stdin.write(line) :]  # type: ignore[union-attr]
        except OSError:
            self._process.wait()
            self._say_failed()

    def close(self) -> None:
        """The study is over: wait until it is written, as long as there is progress."""
        self._over.set()
        out: Any = self._process.stdout
        while ready := select.select([out], [], [], SILENT_S)[0]:
            if not os.read(out.fileno(), 1 << 16):
                break
        if not ready:
            self._say(f"has made no progress for {SILENT_S:g} s")
            self._process.kill()
        if self._process.wait():
            self._say_failed()

    def _say_failed(self) -> None:
        self._errors.seek(0)
        self._say(f"has failed: {last_line(self._errors.read().decode(errors='replace'))}")

    def _say(self, what: str) -> None:
        if not self._said:
            self._said = True
            how = "the study is whole without it, and python -m mpitune export writes it anew"
            log.warning("the tracker %s %s; %s", self._track, what, how)
