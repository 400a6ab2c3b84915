"""Progress and log of rank 0: a bar on a terminal, a line now and then elsewhere, a small file for `mpitune status`."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from mpitune.engine.live import Overview
from mpitune.errors import printable, printable_lines
from mpitune.storage.files import read_at_most, replaced
from mpitune.storage.waiting import spoken

LINE_SECONDS = 9.0  # so that news come within ten seconds, although a look takes time too
FRAME_SECONDS = 0.5
FILE_SECONDS = 1.0
STATUS_FILE = "status.json"
RUNNING = "running"

log = logging.getLogger(__name__)


class _Stderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # a log that cannot be written ends no study
            # stderr is looked up each time: a progress bar replaces it
            print(printable_lines(self.format(record)), file=sys.stderr)
        spoken()


def start_logging(rank: int, host: str, verbosity: int) -> None:
    """Log to stderr with rank and host, from now on.

    Args:
        rank: of this process.
        host: of this process.
        verbosity: -1 quiet (errors), 0 normal, 1 verbose.
    """
    handler = _Stderr()
    handler.setFormatter(logging.Formatter(f"%(asctime)s rank {rank} {host} %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("mpitune")
    logger.handlers[:] = [*(other for other in logger.handlers if not isinstance(other, _Stderr)), handler]
    logger.propagate = False
    logger.setLevel({-1: logging.ERROR, 0: logging.INFO}.get(verbosity, logging.DEBUG))


@contextmanager
def logging_here(rank: int, host: str, verbosity: int) -> Iterator[None]:
    """As `start_logging`, in this context: a script's logging is as it was, and its own handlers hear all the time."""
    logger = logging.getLogger("mpitune")
    handlers, propagate, level = logger.handlers[:], logger.propagate, logger.level
    start_logging(rank, host, verbosity)
    try:
        yield
    finally:
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


class StatusFile:
    """What rank 0 tells of a running study, for readers on any machine that sees the results folder.

    It is replaced whole, but not made durable, and removed at the end. Where it cannot be written, there is none.
    """

    def __init__(self, folder: Path):
        self._path = folder / STATUS_FILE

    def write(self, doing: str, overview: Overview) -> None:
        """Replace the file.

        Args:
            doing: RUNNING, or what the study waits for.
            overview: how the study stands.
        """
        with suppress(OSError):
            content = {"time": round(time.time(), 3), "doing": doing, **overview.as_json()}
            replaced(self._path, json.dumps(content))

    def remove(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


class Seen(NamedTuple):
    """The last words of rank 0: its Unix time, its activity, and the state of the study."""

    time: float
    doing: str
    overview: Overview


def read_status_file(folder: Path) -> Seen | None:
    """None where rank 0 has said nothing, or somebody else has written the file."""
    try:
        content = json.loads(read_at_most(folder / STATUS_FILE, 1 << 20))
        return Seen(float(content["time"]), str(content["doing"]), Overview.from_json(content))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


class Progress:
    """Shows an overview when one is due. No thread: `update` looks at the clock.

    Args:
        file: where it is kept too.
    """

    def __init__(self, quiet: bool, file: StatusFile):
        self._quiet, self._file = quiet, file
        self._drawn, self._written = time.monotonic(), -FILE_SECONDS
        self._bar: Any = None
        if sys.stderr.isatty() and not quiet:
            self._bar = _bar()

    def update(self, overview: Callable[[], Overview], last: bool = False) -> None:
        """Show the study as it is, if that is due.

        Args:
            overview: gives how the study stands.
            last: show it in any case.
        """
        now = time.monotonic()
        draw = not self._quiet and (last or now - self._drawn >= (FRAME_SECONDS if self._bar else LINE_SECONDS))
        write = now - self._written >= FILE_SECONDS
        if not draw and not write:
            return
        seen = overview()
        if write:
            self._written = now
            self._file.write(RUNNING, seen)
        if draw:
            self._drawn = now
            self._draw(seen)

    def _draw(self, seen: Overview) -> None:
        note = note_of(seen)
        if self._bar is None:
            log.info("%d of %d trials%s", seen.done, seen.total, f", {note}" if note else "")
        else:
            spoken()
            self._bar.note = note
            self._bar.update(self._bar.task_ids[0], completed=seen.done, total=seen.total, refresh=True)

    def close(self) -> None:
        if self._bar:
            self._bar.stop()


def _bar() -> Any:
    """A bar on stderr with what its `note` says below, in as many lines as that takes."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    class BarWithNote(Bar):
        note = ""

        def get_renderables(self) -> Iterator[Any]:
            yield from super().get_renderables()
            yield Text(self.note)

    columns = (MofNCompleteColumn(), BarColumn(), TimeElapsedColumn())
    bar = BarWithNote(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
    bar.add_task("trials")
    bar.start()
    return bar


def note_of(seen: Overview) -> str:
    """What an overview says beside its counts of trials, in a line."""
    words = [f"{seen.failed} failed"] if seen.failed else []
    words += [f"{seen.n_running} running"] if seen.n_running else []
    words += [f"{n} {what}" for what, n in seen.waiting.items()]
    if seen.left is not None and seen.done < seen.total:
        words.append(f"{duration(seen.left)} left")
    note = ", ".join(words)
    if seen.running:
        longest = seen.running[0]
        far = f", {longest.step}" if longest.step else ""
        note += f"; longest: {longest.key} at {longest.place} for {duration(longest.seconds)}{far}"
    return printable(note)


def duration(seconds: float) -> str:
    """Seconds in the form people read: 4.2 s, 3 min 20 s, 5 h 07 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:02.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:02.0f} min"
