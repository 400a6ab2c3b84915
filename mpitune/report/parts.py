"""What each part of the page says: of any study, in words, tables and drawings."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from mpitune.engine.progress import duration
from mpitune.panels import Fact, Section
from mpitune.report import drawings
from mpitune.report.findings import StudyRead, cost_of, why
from mpitune.report.importance import FEWEST, importance_of
from mpitune.report.svg import words
from mpitune.report.timeline import COMPILE, REASONS, Timeline, timeline_of

ROWS = 50  # of a table without JavaScript
COLUMNS = 100  # parameters of it
MOST_FAILURES = 30  # that are shown with their text; the table has them all
MOST_TEXT = 4000  # characters of a failure's text, from its end


def facts_of(read: StudyRead, sections: Sequence[Section], dollars: float | None, time: Timeline | None) -> list[Fact]:
    """The first screen: the best parameters, the goal's value, the experiment's facts, the cost."""
    facts: list[Fact] = []
    best = read.best
    if best is not None and read.goal is not None:
        facts.append(Fact("best parameters", _words_of(best.params), _words_of(best.label)))
        interval = best.interval
        note = f"mean of {len(best.folds)} folds" if len(best.folds) > 1 else "one evaluation: no interval"
        if interval:
            low, high = (words(end, read.goal.percent) for end in interval)
            note += f"; 95 % interval {low} to {high} (Nadeau and Bengio)"
        n = sum(one.value is not None for one in read.candidates)
        note += f". It is the best of {n}, so it is too optimistic: only data that had no part in the choice tell."
        facts.append(Fact(f"{read.goal.name} in the search", words(best.value or 0.0, read.goal.percent), note))
    facts += [fact for section in sections for fact in section.facts]
    cost, history = cost_of(read.history), read.history
    nodes = [len({tuple(slot.split("/")[:2]) for slot in run.get("slots", ())}) for run in history.runs]
    wall = time.seconds if time else cost["wall"]
    slots = len(time.slots) if time else 0
    facts.append(
        Fact(
            "what it took",
            duration(wall) if wall else duration(cost["busy"]) + " of work",
            f"{cost['busy'] / 3600:.3g} device hours of trials"
            + (f", {slots} slot{'s' * (slots != 1)} busy {time.utilisation:.0%} of the time" if time else "")
            + f"; {len(history.runs)} run{'s' * (len(history.runs) != 1)}",
        )
    )
    hours = [(end - begin) / 3600 * n for (begin, end), n in zip(time.runs, nodes, strict=True)] if time else []
    facts.append(
        Fact("dollars", f"{sum(hours) * dollars:.2f}", f"{sum(hours):.3g} node hours at {dollars:g}")
        if dollars is not None and hours
        else Fact("dollars", "not known", "give mpitune report the price of a node (--price)")
    )
    total = history.runs[-1].get("n_trials") if history.runs else None
    n_failed = len(read.failures)
    facts.append(
        Fact(
            "trials",
            f"{len(history.results):,}" + (f" of {total:,}" if isinstance(total, int) else ""),
            f"{n_failed} failed, {sum(r.attempt > 1 and not r.failed for r in history.results.values())} "
            f"succeeded at the second attempt; {len(read.candidates):,} candidates",
        )
    )
    facts.append(Fact("state", read.state, "" if history.complete else "the same command continues it"))
    return facts


def _words_of(params: Mapping[str, Any]) -> str:
    space = "\N{NO-BREAK SPACE}"
    return ", ".join(f"{name} ={space}{_short(value)}" for name, value in params.items())


def _short(value: object) -> str:
    return words(value) if isinstance(value, float) else str(value)


def notes_of(read: StudyRead) -> list[str]:
    """What a reader of the answer must know."""
    notes = []
    if read.goal is None:
        notes.append("The journal does not say what is searched for, so no candidate is called the best: give --goal.")
    elif read.best is None:
        notes.append("No candidate has all its results so far, so there is no answer yet.")
    if not read.history.complete:
        notes.append("The study is not complete: what is here may change.")
    return notes


def importance_of_parameters(read: StudyRead) -> dict[str, Any]:
    """A bar for each parameter, and how it was found."""
    found = importance_of(read.candidates, read.parameters)
    if found is None:
        about = f"The importance of parameters needs {FEWEST} candidates or more, with different values."
        return {"importance": "", "importance_about": about}
    if found.explained is None:
        about = (
            "A bar shows by how much R² falls when its parameter is shuffled, computed from the ranks of the grid's "
            f"{found.n} points. It is 2 if the other parameters do not matter."
        )
    else:
        about = (
            "A bar shows by how much the R² of a random forest falls when its parameter is shuffled (scikit-learn's "
            f"permutation importance). The forest learns the ranks of {found.n} candidates and explains "
            f"{found.explained:.0%} of those that it has not seen"
        )
        about += ": too little to trust it." if found.explained < 0.3 else "."
    return {"importance": drawings.importance(found), "importance_about": about}


def history_of(read: StudyRead, time: Timeline | None) -> dict[str, Any]:
    """The best value so far."""
    points = read.best_so_far()
    if not points or read.goal is None:
        return {"history": "", "history_about": ""}
    every = [(one.ended if read.timed else float(n), one.value) for n, one in enumerate(read.candidates, 1)]
    if time is None or not read.timed:
        axis, place = "candidates", float
    else:
        unit, seconds = drawings.unit_of(time.seconds)
        axis = f"{unit} of running"
        begins = [float(run["began"]) for run in read.history.runs]

        def place(at: float) -> float:  # type: ignore[misc]
            run = max((n for n, begin in enumerate(begins) if begin <= at), default=0)
            return (time.runs[run][0] + at - begins[run]) / seconds

    values = [(place(at), value) for at, value in every if value is not None]
    best = [(place(at), value) for at, value in points]
    drawn = drawings.history(best, values, axis, read.goal.name, percent=read.goal.percent)
    about = f"{read.goal.name}: the best so far as a line, candidates as dots"
    about += f"; {1500:,} of {len(values):,} are drawn." if len(values) > 1500 else "."
    return {"history": drawn, "history_about": about}


def time_of(read: StudyRead, time: Timeline | None) -> dict[str, Any]:
    """The timeline of every slot, why slots were idle, and the work of each."""
    history, slots = read.history, _slots(read, time)
    if time is None:
        about = (
            "The journal does not say when trials ended (older versions did not write it), so there is no timeline."
            if history.results
            else "No trial has ended so far."
        )
        return {"timeline": "", "timeline_about": about, "compiles": False, "idle": [], "slots": slots}
    idle = [
        (name, f"{seconds / (time.slot_seconds or 1.0):.1%}", duration(seconds), REASONS[name])
        for name, seconds in time.idle.items()
        if seconds or name != COMPILE  # which not every study's workers say
    ]
    about = f"{len(time.slots)} slots over {duration(time.seconds or 1.0)}; trials ran in {time.utilisation:.1%} of "
    about += "their time."
    if len(time.runs) > 1:
        about += f" The {len(time.runs)} runs are laid end to end; dashed lines part them."
    if time.killed:
        about += " A run was killed or still goes on: its last result stands for its end."
    if len(time.slots) > drawings.SLOTS_DRAWN:
        about += f" Without JavaScript the first {drawings.SLOTS_DRAWN} slots are drawn."
    if len(history.results) > 4000:
        about += " Neighbouring trials are drawn as one bar where they are closer than a pixel."
    return {
        "timeline": drawings.timeline(time),
        "timeline_about": about,
        "compiles": time.idle[COMPILE] > 0,
        "idle": idle,
        "slots": slots,
    }


def _slots(read: StudyRead, time: Timeline | None) -> list[Sequence[str]]:
    """The work of each slot, the header first; nothing where there is none."""
    work: dict[str, float] = defaultdict(float)
    count: Counter[str] = Counter()
    for result in read.history.results.values():
        work[str(result.place)] += result.seconds
        count[str(result.place)] += 1
    timed = {slot.place: slot for slot in time.slots} if time else {}
    rows: list[Sequence[str]] = [("slot", "trials", "work", "busy", "compiling")]
    for place in sorted({*work, *timed})[:1000]:
        busy, compiling = "not known", ""
        if (slot := timed.get(place)) is not None:
            busy = f"{slot.busy / (slot.seconds or 1.0):.0%}"
            compiling = duration(slot.idle[COMPILE]) if slot.idle[COMPILE] else ""
        rows.append((place, f"{count[place]:,}", duration(work[place]), busy, compiling))
    return rows if len(rows) > 1 else []


def failures_of(read: StudyRead, time: Timeline | None) -> dict[str, Any]:
    """Failed trials with their last lines, and workers that died."""
    failed = read.failures
    shown = [
        {
            "key": result.key,
            "place": str(result.place),
            "attempt": result.attempt,
            "last": why(result)[:300],
            "params": ", ".join(f"{name} = {_short(value)}" for name, value in trial.params.items()),
            "text": (result.error or "")[-MOST_TEXT:],
        }
        for trial, result in failed[:MOST_FAILURES]
    ]
    kinds = Counter(why(result)[:120] for _, result in failed)
    about = f"{len(failed)} trials failed twice. " + "; ".join(f"{n} times: {text}" for text, n in kinds.most_common(5))
    if len(failed) > MOST_FAILURES:
        about += f". The first {MOST_FAILURES} are listed."
    deaths = [
        (slot.place, duration(at), cause[:300]) for slot in (time.slots if time else ()) for at, cause in slot.deaths
    ]
    return {
        "failures": shown,
        "failures_about": about,
        "deaths": deaths[:1000],
        "deaths_about": f"{len(deaths)} workers died; their trials were tried again",
    }


def table_of(read: StudyRead) -> dict[str, Any]:
    """The best candidates as rows of text, the header first, for readers without JavaScript."""
    goal = read.goal.name if read.goal else "value"
    names = read.parameters[:COLUMNS]
    rows = [[*names, goal, "folds", "seconds", "failed"]]
    sign = -1.0 if read.goal and read.goal.maximize else 1.0
    order = sorted(
        read.candidates, key=lambda one: math.inf if one.value is None or math.isnan(one.value) else sign * one.value
    )
    for one in order[:ROWS]:
        seconds = sum(result.seconds for _, result in one.parts)
        value = "none" if one.value is None else words(one.value, bool(read.goal and read.goal.percent))
        row = [_short(one.params.get(name, "")) for name in names]
        rows.append([*row, value, str(len(one.folds)), words(seconds), "yes" if one.failed else ""])
    n = len(read.candidates)
    about = ("All" if n <= ROWS else f"The best {ROWS} of {n:,}") + " candidates"
    return {"table": rows, "table_about": about + (", the best first." if read.goal else ".")}


def about_of(read: StudyRead) -> list[tuple[str, list[tuple[str, str]]]]:
    """Tables of names and values: settings, where the study comes from, versions, runs."""
    header = read.history.header
    settings: Mapping[str, Any] = header["settings"]
    runs = read.history.runs
    last = runs[-1] if runs else {}
    command = last.get("command") or header.get("command") or []
    origin = [
        ("command", " ".join(map(str, command)) or "not known"),
        ("commit", str(last.get("commit") or header.get("commit") or "not known")),
        ("first start", str(runs[0].get("time", "not known")) if runs else "not known"),
        ("data, SHA-256", str(settings.get("data_sha256", "none"))),
        ("format of the journal", str(header.get("format", ""))),
    ]
    versions = last.get("versions") or header.get("versions") or {}
    return [
        ("Settings", [(name, str(value)) for name, value in settings.items() if name != "data_sha256"]),
        ("Origin", origin),
        ("Versions", [(str(name), str(value)) for name, value in versions.items()]),
        ("Runs", [
            (str(run.get("time", n)), f"{len(run.get('slots', ()))} slots, {_took(run)}")
            for n, run in enumerate(runs[:100], 1)
        ]),
    ]  # fmt: skip


def _took(run: Mapping[str, Any]) -> str:
    return duration(float(run["seconds"])) if "seconds" in run else "killed, or running"


def when_of(read: StudyRead) -> str:
    """When the study was last heard of."""
    ended = max((result.ended for result in read.history.results.values()), default=0.0)
    runs = read.history.runs
    if ended:
        return f"last result on {datetime.fromtimestamp(ended).astimezone():%d %B %Y at %H:%M %Z}"
    return f"begun {runs[0].get('time', '')}" if runs else "no run so far"


def comparison_of(reads: Sequence[StudyRead]) -> list[list[str]]:
    """Several studies side by side, as rows of text, the header first."""
    rows = [["study", "state", "trials", "failed", "best", "value", "wall time", "device hours"]]
    for read in reads:
        best, cost, time = read.best, cost_of(read.history), timeline_of(read.history)
        wall = time.seconds if time else cost["wall"]
        rows.append([
            f"{read.name} in {read.folder}", read.state, f"{len(read.history.results):,}", str(len(read.failures)),
            _words_of(best.params) if best else "none",
            f"{read.goal.name} {words(best.value or 0.0, read.goal.percent)}" if best and read.goal else "",
            duration(wall) if wall else "not known", f"{cost['busy'] / 3600:.3g}",
        ])  # fmt: skip
    return rows
