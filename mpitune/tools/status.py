"""How far a study is: `python -m mpitune status RESULTS`, from its journal and what rank 0 says while it runs.

It works on any machine that sees the results folder, such as a login node. With --json it prints an object for scripts.

Exit status 0 only when the study is complete, 3 when it is complete with failed trials, 75 when there
is more to do (the same command as before does it), 2 when there is no study. A search of `mpitune.sklearn` may
have a study for each iteration and each outer fold: those that have begun are told, as only the script knows how many
there will be, and the exit status is that of the one that lacks most.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mpitune.engine.progress import AT_TRIALS, Seen, duration, note_of, read_status_file
from mpitune.errors import Exit, printable, utf8
from mpitune.settings import program, setting, window_of
from mpitune.storage.files import JOBS
from mpitune.storage.history import History, read_study, studies_in
from mpitune.storage.journal import is_running
from mpitune.storage.table import last_line
from mpitune.trial import failure_of, failures

STUDY_COMPLETE, STUDY_STOPPED = "complete", "stopped"
FAILURES_SHOWN = 20  # running trials
QUIET_S = 15.0  # seconds without a word of rank 0, which are said


@dataclass(frozen=True)
class JoinedJob:
    """A job that has joined the study: how many trials it has finished, and what it said last, while it runs."""

    name: str
    running: bool
    trials: int
    seen: Seen | None


@dataclass(frozen=True)
class Status:
    """A study at one look.

    Attributes:
        folder, study: results folder, and name of the study.
        state: "complete", "running" or "stopped".
        finished, total: trials that are known, and that there will be; None where that is not known.
        failures: key, place and error of trials that failed.
        runs: starts of the command.
        seen: what rank 0 said last, while the study runs; of jobs that have joined each says it.
        stopped: by what the last run was stopped before all was done, such as "its time"; "" by nothing.
        of_trials: where `finished` counts stages of trials, to how many trials they belong.
        jobs: that have joined it.
        order: in which a search tells its strategy results, such as "window 32".
        mixed: which results are of code that has changed since.
        seconds: that its runs took, of those that have ended.
    """

    folder: Path
    study: str
    state: str
    finished: int
    total: int | None
    failures: Sequence[Mapping[str, str]]
    runs: int
    seen: Seen | None = None
    of_trials: int | None = None
    stopped: str = ""
    jobs: Sequence[JoinedJob] = ()
    order: str = ""
    mixed: str = ""
    seconds: float = 0.0

    @property
    def exit(self) -> Exit:
        """The exit status that says so."""
        if self.state != STUDY_COMPLETE:
            return Exit.STOPPED
        return Exit.FAILED_TRIALS if self.failures else Exit.DONE

    def as_json(self) -> str:
        """One line."""
        return msgspec.json.encode(self, enc_hook=lambda path: utf8(str(path))).decode()


def jobs_of(folder: Path, histories: Mapping[str, History]) -> list[JoinedJob]:
    """The jobs that have joined the study in this folder, by what each has found."""
    jobs = []
    for own in [folder / JOBS / name for name in histories if name]:
        running = is_running(own)
        seen = read_status_file(own) if running else None
        jobs.append(JoinedJob(own.name, running, len(histories[own.name].results), seen))
    return jobs


def status_of(folder: Path, history: History, running: bool) -> Status:
    """The study of this journal; `running` where a job holds the folder now."""
    asked, jobs = history.runs[-1].get("n_trials") if history.runs else None, jobs_of(folder, history.jobs)
    total = len(history.results) if history.complete and asked else asked
    segments = [trial.segment for trial in history.trials.values()]
    return Status(
        folder=folder,
        study=str(history.header["settings"]["experiment"]),
        stopped=history.stopped,
        state=STUDY_COMPLETE if history.complete else AT_TRIALS if running else STUDY_STOPPED,
        finished=len(history.results) - len(history.lost),
        total=total if isinstance(total, int) and total >= len(history.results) else None,  # it may be of the last call
        failures=[
            {"key": r.key, "place": str(r.place), "error": last_line(failure_of(r))}
            for _, r in failures(history.outcomes)
        ],
        runs=len(history.runs),
        seen=read_status_file(folder) if running and not any(job.running for job in jobs) else None,
        jobs=jobs,
        order=window_of(history.header),
        mixed=history.mixed,
        seconds=sum(end.get("seconds", 0.0) for end in history.ends),
        of_trials=len({segment.number for segment in segments}) if any(s.stage is not None for s in segments) else None,
    )


@dataclass(frozen=True)
class StatusOptions:
    """The command line."""

    folder: Path = setting(help="results folder of the study")
    json: bool = setting(False, "print it for scripts, as JSON")


def described(status: Status) -> list[str]:
    """State, counts, what runs now, and the failures, as lines."""
    by = f" by {status.stopped}" if status.stopped else ""
    state = f"stopped{by}, run the same command to continue" if status.state == STUDY_STOPPED else status.state
    missing = f", {max(0, status.total - status.finished)} missing of {status.total}" if status.total else ""
    what, of = ("trials", "") if status.of_trials is None else ("stages", f" stages of {status.of_trials} trials")
    lines = [
        f"study      {status.study} in {status.folder}: {state}",
        f"trials     {status.finished}{of} finished, {len(status.failures)} of them failed{missing}",
        f"runs       {status.runs}",
    ]
    lines += [f"{name:10} {said}" for name, said in (("order", status.order), ("mixed", status.mixed)) if said]
    if status.seen is not None:
        lines.append(f"now        {now(status.seen)}")
        lines += [
            f"running    {one.key} at {one.place} for {duration(one.seconds)}" + (f": {one.step}" if one.step else "")
            for one in status.seen.overview.running[:FAILURES_SHOWN]
        ]
    lines += [
        f"job        {job.name}: {'running' if job.running else 'ended'}, {job.trials} {what}"
        + (f"; {now(job.seen)}" if job.seen is not None else "")
        for job in status.jobs
    ]
    lines += ["failed     {key} at {place}: {error}".format_map(failure) for failure in status.failures]
    return [*map(printable, lines)]


def now(seen: Seen) -> str:
    """What rank 0 said last, in a line; that it has been silent, where it has."""
    silent = time.time() - seen.time
    note = note_of(seen.overview) if seen.doing == AT_TRIALS else seen.doing
    return note + (f" ({duration(silent)} ago: its file system may hang)" if silent > QUIET_S else "")


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
        print(f"studies    {len(every)} have begun; only the search knows whether more follow: run it again to be sure")
    return max(status.exit for status in every)
