"""A study at one look, from its journal and what rank 0 says while it runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mpitune.engine.progress import MOST_SHOWN, RUNNING, Seen, read_status_file
from mpitune.errors import Exit
from mpitune.settings import window_of
from mpitune.storage.files import JOBS
from mpitune.storage.history import History
from mpitune.storage.journal import is_running
from mpitune.storage.table import last_line
from mpitune.trial import Result

COMPLETE, STOPPED = "complete", "stopped"


@dataclass
class Work:
    """What a slot has done: its place, trials, seconds of them, of its processors, and its peak of memory in bytes."""

    place: str
    trials: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0

    def add(self, result: Result) -> None:
        self.trials += 1
        self.seconds += result.seconds
        self.cpu_seconds += result.used.cpu_seconds or 0.0
        self.peak_bytes = max(self.peak_bytes, int(result.used.peak_bytes or 0))


@dataclass(frozen=True)
class Job:
    """A job that has joined the study.

    Attributes:
        trials: that it has finished; a minute: how many of them, since it began.
        seen: what it said last, while it runs.
    """

    name: str
    running: bool
    trials: int
    a_minute: float
    seen: Seen | None


@dataclass(frozen=True)
class Status:
    """A study at one look.

    Attributes:
        folder, study: results folder, and name of the study.
        state: "complete", "running" or "stopped".
        finished, total: trials that are known, and that there will be; None where that is not known.
        failures: (key, place, cause) of trials that failed.
        runs, deaths: starts of the command, and workers that died.
        work: of each slot that has done something, in order of place.
        seen: what rank 0 said last, while the study runs.
        stopped: by what the last run was stopped before all was done, such as "its time"; "" by nothing.
        of_trials: where `finished` counts stages of trials, to how many trials they belong.
        jobs: that have joined it.
        twice: results of jobs that another job had found, too.
        order: in which a search tells its strategy results, such as "window 32".
        mixed: which results are of code that has changed since.
        seconds: that its runs took, of those that have ended.
    """

    folder: Path
    study: str
    state: str
    finished: int
    total: int | None
    failures: Sequence[tuple[str, str, str]]
    runs: int
    deaths: int
    work: Sequence[Work] = field(default_factory=list)
    seen: Seen | None = None
    of_trials: int | None = None
    stopped: str = ""
    jobs: Sequence[Job] = ()
    twice: int = 0
    order: str = ""
    mixed: str = ""
    seconds: float = 0.0

    @property
    def exit(self) -> Exit:
        """The exit status that says so."""
        if self.state != COMPLETE:
            return Exit.STOPPED
        return Exit.FAILED_TRIALS if self.failures else Exit.DONE

    def as_json(self) -> str:
        """One line."""
        now = None
        if self.seen is not None:
            now = _plain(self.seen)
        failures = [{"key": key, "place": place, "error": cause} for key, place, cause in self.failures]
        jobs = [{**vars(job), "seen": job.seen and _plain(job.seen)} for job in self.jobs]
        plain = {**vars(self), "folder": str(self.folder), "failures": failures, "work": [*map(asdict, self.work)]}
        return json.dumps({**plain, "seen": now, "jobs": jobs})


def _plain(seen: Seen) -> dict[str, Any]:
    return {"time": seen.time, "doing": seen.doing, **asdict(seen.overview)}


def jobs_of(folder: Path, histories: Mapping[str, History]) -> list[Job]:
    """The jobs that have joined the study in this folder, by what each has found."""
    jobs = []
    for own in [folder / JOBS / name for name in histories if name]:
        history, running = histories[own.name], is_running(own)
        began = history.runs[0].get("began", 0.0) if history.runs else 0.0
        last = max((result.ended for result in history.results.values()), default=began)
        rate = 60 * len(history.results) / max(last - began, 1e-3) if history.results else 0.0
        seen = read_status_file(own) if running else None
        jobs.append(Job(own.name, running, len(history.results), round(rate, 3), seen))
    return jobs


def _together(jobs: Sequence[Job]) -> Seen | None:
    """What jobs say of one study: trials are counted by who knows most, slots together."""
    every = [job.seen for job in jobs if job.seen is not None]
    if not every:
        return None
    knows = max(every, key=lambda seen: seen.overview.done)
    overviews = [seen.overview for seen in every]
    running = sorted((one for each in overviews for one in each.running), key=lambda one: -one.seconds)
    waiting: Counter[str] = sum((Counter(each.waiting) for each in overviews), Counter())
    return replace(
        knows,
        overview=replace(
            knows.overview,
            failed=sum(each.failed for each in overviews),
            slots=sum(each.slots for each in overviews),
            n_running=sum(each.n_running for each in overviews),
            running=running[:MOST_SHOWN],
            waiting=waiting,
        ),
    )


def status_of(folder: Path, history: History, running: bool) -> Status:
    """The study of this journal; `running` where a job holds the folder now."""
    total, jobs = history.runs[-1].get("n_trials") if history.runs else None, jobs_of(folder, history.jobs)
    work: dict[tuple[str, int, int, str], Work] = {}
    for result in history.results.values():
        place = (result.place.host, result.place.rank, result.place.slot, result.place.device)
        work.setdefault(place, Work(str(result.place))).add(result)
    staged = "objectives" in history.header["settings"] and any("/" in key for key in history.results)
    return Status(
        folder=folder,
        study=str(history.header["settings"]["experiment"]),
        stopped=history.stopped,
        state=COMPLETE if history.complete else RUNNING if running else STOPPED,
        finished=len(history.results) - len(history.lost),
        total=total if isinstance(total, int) else None,  # some experiments cannot know it
        failures=[(r.key, str(r.place), last_line(r.error)) for r in history.results.values() if r.failed],
        runs=len(history.runs),
        deaths=len(history.deaths),
        work=[work[place] for place in sorted(work)],
        seen=(_together(jobs) or read_status_file(folder)) if running else None,
        jobs=jobs,
        twice=sum(len(job.results) for job in history.jobs.values()) - len(history.results) if history.jobs else 0,
        order=window_of(history.header["settings"]),
        mixed=history.mixed,
        seconds=sum(end.get("seconds", 0.0) for end in history.ends),
        of_trials=len({key.partition("/")[0] for key in history.results}) if staged else None,
    )
