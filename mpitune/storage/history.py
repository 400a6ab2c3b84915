"""Reading a journal: its trials and results, its starts and ends, and which of its lines are damaged."""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import Any

from mpitune.errors import UsageError, named, printable, shortened
from mpitune.storage.arrays import lost_arrays
from mpitune.storage.files import JOURNAL, job_folders
from mpitune.storage.lines import blocks, header_of, read_header
from mpitune.storage.records import UNREADABLE, EndLine, RunLine, all_checked, checked, read_line, require_checksum
from mpitune.trial import Outcome, Result, Trial

log = logging.getLogger(__name__)

MOST_DAMAGED = 100_000  # lines, after which a journal is none
_KEY = re.compile(rb'"key":"((?:[^"\\]|\\.){1,1000})"')


@dataclass
class History:
    """The content of a journal: its header, the trials with their results by key, its starts and ends."""

    header: dict[str, Any]
    trials: dict[str, Trial] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)  # with the "seconds" of its end, unless it was killed
    ends: list[dict[str, Any]] = field(default_factory=list)  # fewer than runs where a run was killed
    lost: set[str] = field(default_factory=set)  # keys of the results whose arrays are gone
    open: bool = False  # the last run has no end so far
    size: int = 0  # bytes up to the end of the last whole line
    complete: bool = False  # an end line says so, and all that it has counted is here
    jobs: Mapping[str, History] = field(default_factory=dict)  # what each job found, where some have joined
    begun: bool = False  # it has more than its header
    damaged: list[str] = field(default_factory=list)  # lines that cannot be used, with the reasons

    @property
    def outcomes(self) -> list[Outcome]:
        """Its trials with results, in the order of these."""
        return [Outcome(self.trials[key], result) for key, result in self.results.items()]

    @property
    def n_alone(self) -> int:
        """How many jobs have worked on the study alone, one after the other."""
        return len(self.jobs[""].runs if self.jobs else self.runs)

    @property
    def goal(self) -> str:
        """What the last run has searched for, such as "minimize loss"; "" where nobody says it."""
        return str((self.runs[-1].get("goal") if self.runs else "") or self.header.get("goal") or "")

    @property
    def goals(self) -> dict[str, bool]:
        """The values that are searched for, True for those maximized; {} where nobody says it."""
        objectives = self.header["settings"].get("objectives") if self.header.get("kind") == "search" else None
        texts = objectives if isinstance(objectives, list) else [self.goal]
        parts = [text.partition(" ") for text in texts if isinstance(text, str)]
        return {name: way == "maximize" for way, _, name in parts if name and way in ("minimize", "maximize")}

    @property
    def half_moved(self) -> bool:
        """Whether what lies beside the journal may be of the study before, see `mpitune.storage.aside`."""
        return not self.begun and bool(self.header.get("before") or self.header.get("aside"))

    @property
    def stopped(self) -> str:
        """By what the last run, or one of jobs, was stopped before all was done, such as "its time"; "" by nothing."""
        ends = [each.ends[-1] for each in self.jobs.values() or [self] if each.ends and not each.open]
        reasons = [printable(end.get("stopped", "")) for end in ends if not self.complete]
        return next(filter(None, reasons), "")

    @property
    def mixed(self) -> str:
        """What has changed since results were made that were kept nevertheless, as words; "" where nothing has."""
        each = [
            takewhile(lambda run: run.get("changed"), reversed(history.runs))
            for history in self.jobs.values() or [self]
        ]
        names = sorted({name for since in each for run in since for name in run["changed"]})
        return f"results are of before a change of {named(names)}" if names else ""

    def forget_lost(self, folder: Path) -> None:
        """Forget results whose arrays are gone, so that their trials are evaluated again. A line says so."""
        if self.lost:
            log.warning(
                "%d trials are evaluated again, as their arrays are no longer in %s: %s",
                len(self.lost), folder, named(sorted(self.lost)),
            )  # fmt: skip
        for key in self.lost:
            del self.results[key]


def read_journal(folder: Path) -> History | None:
    """Read the journal in `folder`, and those of jobs that have joined its study; None where there is none.

    A damaged line is left out, so its trial is evaluated again; so is the whole journal of a job that cannot be read. A
    line of the log names it. Raises UsageError where the journal in `folder` itself has no sound header.
    """
    history = _read(folder)
    if history is None:
        return None
    if ends := [each.ends[-1] for each in history.jobs.values() or [history] if each.complete]:
        here = counted(history.n_alone, history.results.keys() - history.lost)
        history.complete = any("results" not in end or here.items() <= end.items() for end in ends)
        history.open = history.open and not history.complete  # jobs that were killed
    return history


def counted(n_alone: int, keys: Iterable[str]) -> dict[str, Any]:
    """What the end line of a complete study says of its results, by which readers know whether they have them all.

    Of jobs that have joined each has said it for all of them, in its own journal. So it counts no more once a job has
    begun to work alone, which may try failures again: `n_alone` are the starts of such jobs.
    """
    ordered = sorted(keys)
    text = "\n".join([str(n_alone), *ordered])
    return {"results": len(ordered), "digest": sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]}


def _read(folder: Path) -> History | None:
    history = _read_lines(folder)
    if history is None:
        return None
    if history.damaged:
        more = f" ({len(history.damaged) - 1} more are)" if len(history.damaged) > 1 else ""
        words = f"{folder / JOURNAL}, {history.damaged[0]}{more}"
        leave_out(folder / JOURNAL, words, "it is left out; the same command evaluates again what was lost")
    with_arrays = [key for key, result in history.results.items() if result.arrays]
    history.lost.update(lost_arrays(folder, with_arrays) if with_arrays else ())
    jobs = {}
    for job in [] if history.half_moved else job_folders(folder):
        try:
            if (of_job := _read(job)) is not None:
                require_same_study(job, of_job.header["settings"], history.header["settings"], fix="", first=folder)
                jobs[job.name] = of_job
        except UsageError as error:
            leave_out(job / JOURNAL, error)
    return _joined({"": history, **jobs}) if jobs else history


_left_out: set[Path] = set()


def leave_out(path: Path, why: Exception | str, done: str = "its results are not used") -> None:
    """Say in a line that a file is left out, or a part of it, once for each. The advice of an error does not fit."""
    if path in _left_out:
        return
    _left_out.add(path)
    words = why if isinstance(why, str) else f"{path} cannot be read ({getattr(why, 'strerror', None) or why})"
    if isinstance(why, UsageError):
        words = str(why) if isinstance(why.__cause__, OSError) else str(why).rpartition(": ")[0]
    log.warning("%s: %s", words, done)


def counts(result: Result, known: Result | None) -> bool:
    """Whether a result takes the place of what is known of its trial: of nothing, or of a failure if it is none."""
    return known is None or (known.failed and not result.failed)


def _joined(jobs: Mapping[str, History]) -> History:
    """One history of what several jobs have found; of two results of a trial the first counts that is no failure."""
    first, *others = every = list(jobs.values())
    trials, results, lost = dict(first.trials), dict(first.results), set(first.lost)
    for history in others:
        for key, result in history.results.items():
            if counts(result, None if key in lost else results.get(key)):
                trials[key], results[key] = history.trials[key], result
                (lost.add if key in history.lost else lost.discard)(key)
    return replace(
        first,
        trials=trials,
        results=results,
        lost=lost,
        runs=sorted((run for history in every for run in history.runs), key=lambda run: run.get("began", 0.0)),
        ends=[end for history in every for end in history.ends],
        open=any(history.open for history in every),
        complete=False,
        jobs=jobs,
    )


def _read_lines(folder: Path) -> History | None:
    """What the sound lines of the journal in `folder` say; None where there is none.

    Raises:
        UsageError: where the file cannot be read, or its first line is no header that can be trusted.
    """
    read = blocks(folder)
    first = next(read, [])
    if not first:
        return None
    history = History(header_of(folder / JOURNAL, first[0]), size=len(first[0]) + 1)
    start = 2
    with no_collection():
        for lines in read:
            _read_some(lines, start, history, folder)
            start += len(lines)
            if len(history.damaged) > MOST_DAMAGED:
                raise UsageError(
                    f"{folder / JOURNAL} has over {MOST_DAMAGED:,} damaged lines: use another results folder"
                )
    history.begun = history.size > len(first[0]) + 1
    return history


def _read_some(lines: list[bytes], start: int, history: History, folder: Path) -> None:
    """Read neighbouring lines, the first of which has the number `start`. A million are read: no call without need."""
    history.size += sum(map(len, lines)) + len(lines)
    sound = all_checked(lines)
    for number, line in enumerate(lines, start):
        try:
            if not sound:
                require_checksum(line)
            record = read_line(line)
            if isinstance(record, dict):
                _read_note(record, history)
                continue
            history.trials[record.key], history.results[record.key] = record.trial, record.result(folder)
            history.complete = False
        except UNREADABLE as error:
            key = match[1].decode(errors="replace") if (match := _KEY.search(line)) else ""
            history.results.pop(key, None)  # an older failure must not become the result again
            history.trials.pop(key, None)
            trial = f" (trial {key})" if key else ""
            history.damaged.append(f"line {number}{trial} is damaged: {error or type(error).__name__}")


def studies_in(folder: Path) -> list[Path]:
    """The folder if it is a study, then those in it of iterations and outer folds of searches of `mpitune.sklearn`.

    One that was killed before its header was whole has not begun. Raises UsageError where a header is damaged.
    """
    own = [folder] if os.path.lexists(folder / JOURNAL) else []
    parts = ("data-*",) if own else ("iteration*", "data-*", "iteration*/data-*")
    places = [path.parent for part in parts for path in folder.glob(f"{part}/{JOURNAL}")]
    within = [place for place in places if read_header(place) is not None]
    return own + sorted(within, key=lambda place: (len(str(place)), place)) or [folder]


def read_study(folder: Path) -> History:
    """As `read_journal`, without what a complete study left out. Raises UsageError where there is none, too."""
    history = read_journal(folder)
    if history is None:
        raise UsageError(f"{folder} holds no study: give the results folder of one")
    ends = [each.ends[-1] for each in history.jobs.values() or [history] if each.ends] if history.complete else []
    last = max((end["last"] for end in ends if "last" in end), default=sys.maxsize)
    left = set.intersection(*({*end.get("beside", ())} for end in ends)) if ends else ()
    for key in [key for key, trial in history.trials.items() if key in left or (trial.segment.number or 0) > last]:
        del history.trials[key], history.results[key]
    return history


def require_same_study(
    folder: Path, stored: Mapping[str, Any], current: Mapping[str, Any], *, fix: str, first: Path | None = None
) -> None:
    """Raise UsageError, which names the first setting that differs, unless two studies have the same settings.

    `stored` are of the study in `folder`; `current` are of that in `first`, or of the command. `fix` says what to do.
    """
    if names := differing_settings(current, stored):
        name = names[0]
        there, wanted = (shortened(str(settings.get(name)), 1000) or "(no name)" for settings in (stored, current))
        expected = f"not {wanted}" if first is None else f"{first} one with {wanted}"
        of = "of other data: " if name == "data_sha256" else "with "
        raise UsageError(f"{folder} holds a study {of}{name} = {there}, {expected}: {fix}")


@contextmanager
def no_collection() -> Iterator[None]:
    """Without the garbage collector, which would walk all records again and again while they grow."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _read_note(record: dict[str, Any], history: History) -> None:
    """Take in a line that is no trial: a start or an end."""
    history.complete = False
    if "run" in record:
        history.runs.append(checked(record["run"], RunLine))
        history.open = True
    elif "end" in record:
        end = checked(record["end"], EndLine)
        if not history.open and history.ends:  # the run was told to stop, and now it has
            history.ends.pop()
        history.ends.append(end)
        if history.runs and "seconds" in end:
            history.runs[-1]["seconds"] = float(end["seconds"])
        history.open = False
        history.complete = end["complete"]
    else:
        raise ValueError("it has no key, run or end")


def differing_settings(current: Mapping[str, Any], stored: Mapping[str, Any]) -> list[str]:
    """The settings in which two studies differ, as JSON: 1, 1.0 and true differ."""
    one, other = ({name: json.dumps(value) for name, value in some.items()} for some in (current, stored))
    return [name for name in {**current, **stored} if one.get(name, "null") != other.get(name, "null")]
