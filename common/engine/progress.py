"""Progress and log of rank 0: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import time

LINE_SECONDS = 10.0
FRAME_SECONDS = 0.2

log = logging.getLogger(__name__)


def start_logging(rank: int, host: str, verbosity: int) -> None:
    """Log to stderr with rank and host. verbosity: -1 quiet (errors), 0 normal, 1 verbose."""

    class Stderr(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            print(self.format(record), file=sys.stderr)  # looked up each time: a progress bar replaces it

    handler = Stderr()
    handler.setFormatter(logging.Formatter(f"%(asctime)s rank {rank} {host} %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("common")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel({-1: logging.ERROR, 0: logging.INFO}.get(verbosity, logging.DEBUG))


class Progress:
    """Finished trials of those known so far, failures, time gone and time left.

    total: how many trials there will be, if known. No thread: `update` draws when a frame is due.
    """

    def __init__(self, total: int | None, done: int, quiet: bool):
        self._total, self._first, self._quiet = total, done, quiet
        self._started = self._drawn = time.monotonic()
        self._bar = None
        if sys.stderr.isatty() and not quiet:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            columns = (BarColumn(None), MofNCompleteColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn())
            self._bar = Bar(*columns, console=Console(stderr=True), auto_refresh=False)
            self._task = self._bar.add_task("trials", total=total, completed=done, note="")
            self._bar.start()

    def update(self, done: int, asked: int, failed: int, last: bool = False) -> None:
        """done of asked trials are known, failed of them have failed."""
        now = time.monotonic()
        if self._quiet or not (last or now - self._drawn >= (FRAME_SECONDS if self._bar else LINE_SECONDS)):
            return
        self._drawn = now
        total = max(self._total or 0, asked)
        note = ", ".join(filter(None, [f"{failed} failed" if failed else "", self._left(done, total, now)]))
        if self._bar:
            self._bar.update(self._task, completed=done, total=total, note=note, refresh=True)
        else:
            log.info("%d of %d trials%s", done, total, f", {note}" if note else "")

    def _left(self, done: int, total: int, now: float) -> str:
        """Time left, if the rest goes as what this run has done."""
        if done <= self._first or done >= total:
            return ""
        seconds = (now - self._started) / (done - self._first) * (total - done)
        return f"{duration(seconds)} left"

    def close(self) -> None:
        if self._bar:
            self._bar.stop()


def duration(seconds: float) -> str:
    """Seconds in the form people read: 4.2 s, 3 min 20 s, 5 h 07 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:02.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:02.0f} min"
