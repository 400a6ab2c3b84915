"""Trackers of a study: each is a process (`follow.py`) that reads the journal while it grows.

So one that is slow, fails or hangs holds nothing up.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from threading import Thread
from time import monotonic as _now

from mpitune.errors import UsageError, is_kept
from mpitune.processes.process import stops_wait, without_main
from mpitune.processes.stops import Stopped
from mpitune.track import follow

MOST_S = 60.0  # at the end, for which all trackers together are waited for

log = logging.getLogger(__name__)


def require(tracks: Sequence[str]) -> None:
    """Raise UsageError for a tracker whose package is not installed, or whose folder cannot be written."""
    for track in tracks:
        kind, _, place = track.partition(":")
        if getattr(find_spec(kind), "origin", None) is None:  # a folder of that name is no package
            raise UsageError(f'track={track}: {kind} is not installed: pip install "mpitune[track]"')
        place = place or (os.environ.get("WANDB_DIR", "") if kind == "wandb" else "") or "."
        if "://" not in place:
            try:
                Path(place).mkdir(parents=True, exist_ok=True)
                TemporaryFile(dir=place).close()
            except OSError as error:
                raise UsageError(
                    f"track={track}: it cannot be written ({error.strerror}): name another folder"
                ) from None


class Tracker:
    """A tracker of the study in a folder. Its failure is one line of the log."""

    def __init__(self, track: str, folder: Path):
        self._track = track
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        with stops_wait(), without_main():
            self._process = context.Process(target=follow.main, args=(os.getpid(), folder, track, other), daemon=True)
            self._process.start()
        other.close()
        self._listener = Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        with suppress(EOFError, OSError):  # its process has ended
            self._say(f"has failed: {self._pipe.recv()}")

    def end(self) -> None:
        """The study is over."""
        with suppress(OSError):  # its process has ended
            self._pipe.send(None)

    def wait(self, until: float) -> None:
        """Wait until all is written, but not longer than `until`."""
        self._process.join(1.0)
        if self._process.is_alive():
            log.info("the study is whole; the tracker %s still writes, and Ctrl-C leaves the rest", self._track)
            self._process.join(max(0.0, until - _now()))

    def close(self) -> None:
        """Leave what is not written, with a line that says how to have it."""
        if self._process.is_alive():
            self._say("is left at the end")
            self._process.kill()
        elif self._process.exitcode not in (0, follow.HAS_SAID):
            self._say(f"has ended with exit status {self._process.exitcode}")
        self._listener.join(1.0)

    def _say(self, what: str) -> None:
        how = "the same command writes the rest" if is_kept() else "with a results folder one could write the rest"
        log.warning("the tracker %s %s; the study is whole without it; %s", self._track, what, how)


def close(trackers: Sequence[Tracker]) -> None:
    """The study is over: wait until it is written, but not long, and no longer once the user stops it."""
    until = _now() + MOST_S
    for tracker in trackers:
        tracker.end()
    with suppress(Stopped, KeyboardInterrupt):
        for tracker in trackers:
            tracker.wait(until)
    for tracker in trackers:
        tracker.close()
