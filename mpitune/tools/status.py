"""How far a study is: `python -m mpitune status RESULTS`, from its journal and what rank 0 says while it runs.

It works on any machine that sees the results folder, such as a login node. With --json it prints an object for scripts.

Exit status 0 only when the study is complete, 3 when it is complete with failed trials, 75 when there
is more to do (the same command as before does it), 2 when there is no study. A halving search of `mpitune.sklearn` has
a study for each iteration: it is told of those that have begun, as only the search knows how many there will be.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mpitune.engine.progress import RUNNING, Seen, duration, note_of
from mpitune.errors import Exit, printable
from mpitune.settings import program, setting
from mpitune.storage.history import read_study, studies_in
from mpitune.storage.journal import is_running
from mpitune.tools.study_status import STOPPED, Status, status_of

SHOWN = 20  # running trials
SILENT = 15.0  # seconds without a word of rank 0, which are said


@dataclass(frozen=True)
class StatusOptions:
    """The command line."""

    folder: Path = setting(help="results folder of the study")
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
            f"running    {one.key} at {one.place} for {duration(one.seconds)}" + (f": {one.step}" if one.step else "")
            for one in status.seen.overview.running[:SHOWN]
        ]
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


def look(folder: Path) -> Status:
    """The study now. Raises UsageError where there is none."""
    running = False
    with suppress(OSError):  # what is wrong is then said of the journal
        running = is_running(folder)  # first: a study that ends meanwhile is complete then, not stopped
    return status_of(folder, read_study(folder), running)


def main(arguments: Sequence[str] | None = None) -> Exit:
    """The command line. Returns the exit status, which says how far the study is."""
    description = "How far a study is, from its journal and what rank 0 says while it runs."
    return program(StatusOptions, _show, arguments, prog="python -m mpitune status", description=description)


def _show(options: StatusOptions) -> Exit:
    folders = studies_in(options.folder)
    every = [look(folder) for folder in folders]
    for status in every:
        print(status.as_json() if options.json else "\n".join(described(status)))
    if folders != [options.folder] and not options.json:
        print(f"iterations {len(every)} have begun; only the search knows whether more follow: run it again to be sure")
    return max(status.exit for status in every)
