"""How far a study is: `python -m mpitune status RESULTS`, from its journal and what rank 0 says while it runs.

It works on any machine that sees the results folder, such as a login node. With --watch it looks again and again until
the study has ended; with --json it prints an object for scripts, with both a line for each look.

Exit status 0 only when the study is complete, 3 when it is complete with failed trials, 75 when there
is more to do (the same command as before does it), 2 when there is no study. A halving search of `mpitune.sklearn` has
a study for each iteration: it is told of those that have begun, as only the search knows how many there will be.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpitune.engine.progress import RUNNING, Seen, duration, note_of
from mpitune.errors import Exit, UsageError, printable
from mpitune.settings import program, setting
from mpitune.storage.files import job_folders
from mpitune.storage.history import NAME, read_study, studies_in
from mpitune.storage.journal import is_running
from mpitune.tools.study_status import STOPPED, Status, status_of

LOOK_SECONDS = 1.0  # between two looks of --watch, at least
LINE_SECONDS = 10.0  # between two lines of it where nobody sits at a terminal
READING = 0.1  # the most of its time that it reads the journal
SILENT = 15.0  # seconds without a word of rank 0, which are said


@dataclass(frozen=True)
class StatusOptions:
    """The command line."""

    folder: Path = setting(help="results folder of the study")
    watch: bool = setting(False, "look every second until the study has ended")
    json: bool = setting(False, "print it for scripts, as JSON")


def described(status: Status) -> list[str]:
    """State, counts, what runs now, work of each slot, and the failures, as lines."""
    by = f" by {status.stopped}" if status.stopped else ""
    state = f"stopped{by}, run the same command to continue" if status.state == STOPPED else status.state
    missing = f", {max(0, status.total - status.finished)} missing of {status.total}" if status.total else ""
    what, of = ("trials", "") if status.of_trials is None else ("stages", f" stages of {status.of_trials} trials")
    lines = [
        f"study      {status.study} in {status.folder}: {state}",
        f"trials     {status.finished}{of} finished, {len(status.failures)} of them failed{missing}",
        f"runs       {status.runs}" + (f", in which {status.deaths} workers died" if status.deaths else ""),
    ]
    if status.order:
        lines.append(f"order      {status.order}")
    if status.mixed:
        lines.append(f"mixed      {status.mixed}")
    if status.seen is not None:
        lines.append(f"now        {now(status.seen)}")
    lines += [
        f"job        {job.name}: {'running' if job.running else 'ended'}, {job.trials} {what}, {job.a_minute:.3g} a "
        "minute" + (f"; {now(job.seen)}" if job.seen is not None else "")
        for job in status.jobs
    ]
    if status.twice:
        lines.append(f"wasted     {status.twice} {what} that another job had evaluated, too")
    lines += [
        f"place      {work.place}: {work.trials} {what}, {duration(work.seconds)} of work, "
        f"{duration(work.cpu_seconds)} of processor time, at most {work.peak_bytes / (1 << 20):.0f} MiB"
        for work in status.work
    ]
    lines += [f"failed     {key} at {place}: {cause}" for key, place, cause in status.failures]
    return [*map(printable, lines)]


def now(seen: Seen) -> str:
    """What rank 0 said last, in a line; that it has been silent, where it has."""
    silent = time.time() - seen.time
    said = note_of(seen.overview) if seen.doing == RUNNING else seen.doing
    return said + (f" ({duration(silent)} ago: its file system may hang)" if silent > SILENT else "")


def look(folder: Path) -> Iterator[Status]:
    """The study again and again, once a second at most, until it has ended.

    Its journal is read again when it has grown; of a large one seldom, so that reading takes little of the time.

    Raises:
        UsageError: there is no study.
    """
    history, size, next_read = None, -1, 0.0
    while True:
        if history is None or (_size(folder) != size and time.monotonic() >= next_read):
            begin, size, history = time.monotonic(), _size(folder), read_study(folder)
            read = time.monotonic()
            next_read = read + (read - begin) / READING
        status = status_of(folder, history, is_running(folder))
        if status.state == STOPPED and _size(folder) != size:
            status = status_of(folder, read_study(folder), is_running(folder))
        yield status
        if status.state != RUNNING:
            return
        time.sleep(LOOK_SECONDS)


def _size(folder: Path) -> int:
    """Bytes of all journals of a study."""
    paths = [each / NAME for each in [folder, *job_folders(folder)]]
    return sum(path.stat().st_size for path in paths if os.access(path, os.F_OK))


def main(arguments: Sequence[str] | None = None) -> Exit:
    """The command line. Returns the exit status, which says how far the study is."""
    description = "How far a study is, from its journal and what rank 0 says while it runs."
    return program(StatusOptions, _show, arguments, prog="python -m mpitune status", description=description)


def _show(options: StatusOptions) -> Exit:
    folders = studies_in(options.folder)
    if options.watch:
        return _watch(folders[-1], options.json)
    every = [status_of(folder, read_study(folder), is_running(folder)) for folder in folders]
    for status in every:
        print(status.as_json() if options.json else "\n".join(described(status)))
    if folders != [options.folder] and not options.json:
        print(f"iterations {len(every)} have begun; only the search knows whether more follow: run it again to be sure")
    return max(status.exit for status in every)


def _watch(folder: Path, as_json: bool) -> Exit:
    status: Status | None = None
    with suppress(KeyboardInterrupt):
        if as_json:
            for status in look(folder):
                print(status.as_json(), flush=True)
        elif sys.stdout.isatty():
            status = _drawn(look(folder))
        else:
            said = -LINE_SECONDS
            for status in look(folder):
                if status.seen is not None and time.monotonic() - said >= LINE_SECONDS:
                    said = time.monotonic()
                    seen = status.seen.overview
                    print(
                        f"{time.strftime('%H:%M:%S')} {seen.done} of {seen.total} trials, {now(status.seen)}",
                        flush=True,
                    )
    if status is None:
        raise UsageError(f"interrupted before {folder} was read: run it again")
    if not as_json:
        print("\n".join(described(status)))
    return status.exit


def _drawn(looks: Iterator[Status]) -> Status | None:
    """Draw each look over the one before; returns the last one. KeyboardInterrupt ends it too."""
    from rich.live import Live

    status = None
    with Live(auto_refresh=False, transient=True) as live, suppress(KeyboardInterrupt):
        for status in looks:
            live.update(picture(status, live.console.size.height), refresh=True)
    return status


def picture(status: Status, height: int) -> Any:
    """The study for a terminal with so many lines: a bar, what runs, the failures."""
    from rich.console import Group
    from rich.markup import escape
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    seen = status.seen.overview if status.seen is not None else None
    done, total = (seen.done, seen.total) if seen else (status.of_trials or status.finished, 0)
    total = total or status.total or done
    head = Table.grid(padding=(0, 1))
    head.add_row(f"{printable(status.study)}: {done} of {total} trials", ProgressBar(total or 1, done, width=30))
    parts: list[Any] = [head, Text(printable(now(status.seen) if status.seen else status.state), style="bold")]
    room = max(3, height - 6 - min(3, len(status.failures)))
    if seen and seen.running:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("trial", "place", "since", "how far"):
            table.add_column(name, no_wrap=True)
        for trial in seen.running[:room]:
            row = (trial.key, trial.place, duration(trial.seconds), trial.step)
            table.add_row(*(escape(printable(text)) for text in row))
        parts.append(table)
        if seen.n_running > len(seen.running[:room]):
            parts.append(Text(f"and {seen.n_running - len(seen.running[:room])} others", style="dim"))
    failed = [printable(f"failed: {key} at {place}: {cause}") for key, place, cause in status.failures[-3:]]
    parts += [Text(line, style="red", no_wrap=True, overflow="ellipsis") for line in failed]
    return Group(*parts)
