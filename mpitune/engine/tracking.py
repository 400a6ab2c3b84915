"""Trackers that follow a study: each is a process, `mpitune.exchange.live`, that reads the journal while it grows.

Rank 0 tells it once a second what runs, so a tracker that is slow, fails or hangs holds nothing up.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from mpitune.errors import UsageError
from mpitune.processes.process import stops_wait, without_main

EVERY_S = 1.0
SILENT_S = 10.0  # at the end, after which a tracker that makes no progress hangs
OPENING = 6  # times as long may it be imported, and make a database
MOST_TOLD = 100  # that it has not read: then it is told later
FAILED = 1  # exit status of one that has said why
STEPS = b"steps "  # begins what a worker tells of a running trial

log = logging.getLogger(__name__)


def require(tracks: Sequence[str]) -> None:
    """Raise UsageError for a tracker whose package is not installed, or whose folder cannot be written."""
    for track in tracks:
        kind, _, place = track.partition(":")
        if getattr(find_spec(kind), "origin", None) is None:  # a folder of that name is no package
            raise UsageError(f'track={track}: {kind} is not installed: pip install "mpitune[export]"')
        place = place or (os.environ.get("WANDB_DIR", "") if kind == "wandb" else "") or "."
        if "://" not in place:
            try:
                Path(place).mkdir(parents=True, exist_ok=True)
                TemporaryFile(dir=place).close()
            except OSError as error:
                raise UsageError(
                    f"track={track}: it cannot be written ({error.strerror}): name another folder"
                ) from None


def _follow(*arguments: Any) -> None:
    """In the tracker's own process, which alone imports what writes: exchange stands above the engine."""
    import_module("mpitune.exchange.live").main(*arguments)


class Tracker:
    """A tracker of the study in a folder. Its failure is one line of the log."""

    def __init__(self, track: str, folder: Path):
        self._track, self._due = track, 0.0
        self._steps = dict[str, dict[int, Any]]()  # of trials that run, so far untold
        context = multiprocessing.get_context("spawn")
        self._told, self._why = context.Queue(), context.SimpleQueue()  # no `put` in the first one waits
        self._told.cancel_join_thread()
        self._progress = context.Value("q", 0, lock=False)
        arguments = (os.getpid(), folder, track, self._told, self._why, self._progress)
        with stops_wait(), without_main():
            self._process = context.Process(target=_follow, args=arguments, daemon=True)
            self._process.start()

    def hear(self, content: bytes) -> None:
        """Take in the steps of a running trial; all else that a worker tells is not for trackers."""
        if content.startswith(STEPS):
            key, steps = json.loads(content.removeprefix(STEPS))
            self._steps.setdefault(key, {}).update((int(n), values) for n, values in steps.items())

    def update(self, running: Callable[[], Mapping[str, Any]]) -> None:
        """Tell which trials run, with their parameters by key, if that is due."""
        if time.monotonic() >= self._due and self._told.qsize() < MOST_TOLD:
            self._due = time.monotonic() + EVERY_S
            self._told.put({key: (params, self._steps.get(key, {})) for key, params in running().items()})
            self._steps = {}
            self._say_failed()

    def close(self) -> None:
        """The study is over: wait until it is written, as long as there is progress."""
        self._told.put(None)
        self._process.join(EVERY_S)
        if self._process.is_alive():
            log.info("the study is whole; the tracker %s still writes, and Ctrl-C leaves the rest", self._track)
        before, seconds = -1, 0.0
        while self._process.is_alive() and before != (before := self._progress.value):
            self._process.join(seconds := SILENT_S * (1 if before else OPENING))
        if self._process.is_alive():
            self._say(f"has made no progress for {seconds:g} s")
            self._process.kill()
        elif self._process.exitcode not in (0, FAILED):
            self._say(f"has ended with exit status {self._process.exitcode}")
        self._say_failed()

    def _say_failed(self) -> None:
        if not self._why.empty():
            self._say(f"has failed: {self._why.get()}")

    def _say(self, what: str) -> None:
        how = "the study is whole without it; python -m mpitune export RESULTS writes it, too"
        log.warning("the tracker %s %s; %s", self._track, what, how)
