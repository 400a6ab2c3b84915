"""The page: what a journal says, drawn and filled into the template, as one file that needs nothing else."""

from __future__ import annotations

import base64
import gzip
import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from common.engine.progress import duration
from common.report import drawings, live
from common.report.content import Bars, Fact, HeatMap, Lines, Note, Panel, Pictures, Section, Table
from common.report.importance import FEWEST, importance_of
from common.report.study import StudyRead, cost_of, why
from common.report.svg import words
from common.report.timeline import REASONS, Timeline, timeline_of
from common.storage.files import written_whole

HERE = Path(__file__).parent
NAME = "report.html"
ROWS = 50  # of a table without JavaScript
MOST_FAILURES = 30  # that are shown with their text; the table has them all
MOST_TEXT = 4000  # characters of a failure's text, from its end


@dataclass(frozen=True)
class Report:
    """A study to show.

    Attributes:
        sections: what its experiment says of it.
        dollars: of a node for an hour, None if not known.
    """

    read: StudyRead
    sections: Sequence[Section] = ()
    dollars: float | None = None


def write_report(path: Path, reports: Sequence[Report]) -> None:
    """Write the page of one study or several, whole or not at all."""
    text = page(reports)
    with written_whole(path, "w") as file:
        file.write(text)


def page(reports: Sequence[Report]) -> str:
    """The page as HTML; the same journals make the same page."""
    compressed = (HERE / "echarts" / "echarts.min.js.gz").read_bytes()
    script = (HERE / "report.js").read_text(encoding="utf-8")
    hashes = " ".join(f"'sha256-{_sha(text)}'" for text in (gzip.decompress(compressed), script.encode()))
    licence = "\n\n".join(
        (HERE / "echarts" / name).read_text(encoding="utf-8") for name in ("NOTICE", "LICENSE", "LICENSE-d3")
    )
    shown = [_study(report) for report in reports]
    names = list(dict.fromkeys(report.read.name for report in reports))
    first = reports[0].read
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("template.html").render(
        title=f"{', '.join(names)}: {'search' if len(reports) == 1 else f'{len(reports)} searches'}",
        subtitle=f"{first.state}, {_when(first)}" if len(reports) == 1 else "several studies side by side",
        css=Markup((HERE / "report.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hashes=Markup(hashes),
        library=base64.b64encode(compressed).decode(),
        licence=licence,
        studies=shown,
        comparison=_comparison(reports) if len(reports) > 1 else [],
    )


def _sha(text: bytes) -> str:
    return base64.b64encode(hashlib.sha256(text).digest()).decode()


def _study(report: Report) -> dict[str, Any]:
    """What the template asks of one study."""
    read, time = report.read, timeline_of(report.read.history)
    found = importance_of(read.candidates, read.parameters)
    counts = Counter(result.failed for result in read.history.results.values())
    grids = iter(range(sum(isinstance(panel, HeatMap) for section in report.sections for panel in section.panels)))
    sections = [
        {"title": section.title, "panels": [_panel(panel, grids) for panel in section.panels]}
        for section in report.sections
        if section.panels
    ]
    parts = [("answer", "Answer"), *((f"x{n}", section["title"]) for n, section in enumerate(sections))]
    parts += [("history", "Candidates"), ("time", "Timeline"), ("failures", f"Failures ({counts[True]})")]
    parts += [("trials", "Trials"), ("about", "Settings")]
    return {
        "name": read.name,
        "folder": str(read.folder),
        "parts": parts,
        "facts": [asdict(fact) for fact in _facts(report, time)],
        "notes": _notes(read),
        "sections": sections,
        **_history(read, time),
        "importance": drawings.importance(found) if found else "",
        "importance_about": (
            f"By how much the R² of a random forest falls when a parameter is shuffled (scikit-learn's permutation "
            f"importance; the forest learns the ranks of {found.n} candidates and explains {found.explained:.0%} of "
            "those that it has not seen" + (": too little to trust it)." if found.explained < 0.3 else ").")
            if found
            else f"The importance of parameters is said from {FEWEST} candidates on whose values differ."
        ),
        **_time(read, time),
        **_failures(read, time),
        "table": _table(read),
        "table_about": _table_about(read),
        "about": _about(read),
        "data": live.packed(live.study_json(read, report.sections, time)),
    }


def _panel(panel: Panel, grids: Any) -> dict[str, Any]:
    shown: dict[str, Any] = {"kind": type(panel).__name__, "it": panel, "drawing": "", "boxes": "", "number": 0}
    match panel:
        case HeatMap():
            shown.update(drawing=drawings.heat_map(panel), boxes=drawings.boxes(panel), number=next(grids))
        case Lines():
            shown["drawing"] = drawings.lines(panel)
        case Bars():
            shown["drawing"] = drawings.bars(panel)
        case Pictures():
            shown["drawing"] = drawings.pictures(panel)
        case Table():
            numbers = [cell for row in panel.rows for cell in row[1:] if isinstance(cell, int | float)]
            most = max(map(float, numbers), default=1.0) or 1.0
            shown["cells"] = [
                [
                    (cell, f"{cell / most:.3f}" if panel.shade and isinstance(cell, int | float) else None)
                    for cell in row
                ]
                for row in panel.rows
            ]
        case Note():
            pass
    return shown


def _facts(report: Report, time: Timeline | None) -> list[Fact]:
    """The first screen: the best parameters, the goal's value, what the experiment says, what it cost."""
    read, facts = report.read, []
    best = read.best
    if best is not None and read.goal is not None:
        facts.append(Fact("best parameters", _words_of(best.params), _words_of(best.label)))
        interval = best.interval
        note = f"mean of {len(best.folds)} folds" if len(best.folds) > 1 else "one evaluation: no interval"
        if interval:
            low, high = (words(end, read.goal.percent) for end in interval)
            note += f"; 95 % interval {low} to {high} (Nadeau and Bengio)"
        n = sum(one.value is not None for one in read.candidates)
        note += f". The best of {n}, so it is too good: only data that chose nothing say how good."
        facts.append(Fact(f"{read.goal.name} in the search", words(best.value or 0.0, read.goal.percent), note))
    facts += [fact for section in report.sections for fact in section.facts]
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
        Fact("dollars", f"{sum(hours) * report.dollars:.2f}", f"{sum(hours):.3g} node hours at {report.dollars:g}")
        if report.dollars is not None and hours
        else Fact("dollars", "not known", "give the price of a node for an hour: --price")
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
    return ", ".join(f"{name}{space}={space}{_short(value)}" for name, value in params.items())


def _short(value: object) -> str:
    return words(value) if isinstance(value, float) else str(value)


def _notes(read: StudyRead) -> list[str]:
    notes = []
    if read.goal is None:
        notes.append("The journal does not say what is searched for, so no candidate is called the best: give --goal.")
    elif read.best is None:
        notes.append("No candidate has all its results so far, so there is no answer yet.")
    if not read.history.complete:
        notes.append("The study is not complete: what is here may change.")
    return notes


def _history(read: StudyRead, time: Timeline | None) -> dict[str, Any]:
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


def _time(read: StudyRead, time: Timeline | None) -> dict[str, Any]:
    history = read.history
    work: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for result in history.results.values():
        work[str(result.place)] += result.seconds  # type: ignore[assignment]
        count[str(result.place)] += 1
    table: list[Sequence[str]] = [("slot", "trials", "work", "busy")]
    share = (
        {slot.place: slot.busy / (slot.busy + sum(slot.idle.values()) or 1.0) for slot in time.slots} if time else {}
    )
    table += [
        (place, f"{count[place]:,}", duration(work[place]), f"{share[place]:.0%}" if place in share else "not known")
        for place in sorted({*work, *share})[:1000]
    ]
    if time is None:
        about = (
            "The journal does not say when trials ended (older versions did not write it), so there is no timeline."
            if history.results
            else "No trial has ended so far."
        )
        return {"timeline": "", "timeline_about": about, "idle": [], "slots": table if history.results else []}
    whole = time.seconds or 1.0
    idle = [
        (
            name,
            f"{seconds / (sum(time.idle.values()) + sum(s.busy for s in time.slots) or 1.0):.1%}",
            duration(seconds),
            REASONS[name],
        )
        for name, seconds in time.idle.items()
    ]
    about = f"{len(time.slots)} slots over {duration(whole)}; trials ran in {time.utilisation:.1%} of their time."
    if len(time.runs) > 1:
        about += f" The {len(time.runs)} runs are laid end to end; dashed lines part them."
    if time.killed:
        about += " A run was killed or still goes on: its last result stands for its end."
    if len(time.slots) > drawings.SLOTS_DRAWN:
        about += f" Without JavaScript the first {drawings.SLOTS_DRAWN} slots are drawn."
    if len(history.results) > 4000:
        about += " Neighbouring trials are drawn as one bar where they are closer than a pixel."
    return {"timeline": drawings.timeline(time), "timeline_about": about, "idle": idle, "slots": table}


def _failures(read: StudyRead, time: Timeline | None) -> dict[str, Any]:
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
        "deaths_about": f"{len(deaths)} workers died; what they were at was tried again",
    }


def _table(read: StudyRead) -> list[list[str]]:
    """The best candidates as rows of text, the header first."""
    goal = read.goal.name if read.goal else "value"
    rows = [[*read.parameters, goal, "folds", "seconds", "failed"]]
    sign = -1.0 if read.goal and read.goal.maximize else 1.0
    order = sorted(
        read.candidates, key=lambda one: math.inf if one.value is None or math.isnan(one.value) else sign * one.value
    )
    for one in order[:ROWS]:
        seconds = sum(result.seconds for _, result in one.parts)
        value = "none" if one.value is None else words(one.value, bool(read.goal and read.goal.percent))
        row = [_short(one.params.get(name, "")) for name in read.parameters]
        rows.append([*row, value, str(len(one.folds)), words(seconds), "yes" if one.failed else ""])
    return rows


def _table_about(read: StudyRead) -> str:
    n = len(read.candidates)
    which = "All" if n <= ROWS else f"The best {ROWS} of {n:,}"
    return f"{which} candidates, the best first." if read.goal else f"{which} candidates."


def _about(read: StudyRead) -> list[tuple[str, list[tuple[str, str]]]]:
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


def _when(read: StudyRead) -> str:
    ended = max((result.ended for result in read.history.results.values()), default=0.0)
    runs = read.history.runs
    if ended:
        return f"last result on {datetime.fromtimestamp(ended).astimezone():%d %B %Y at %H:%M %Z}"
    return f"begun {runs[0].get('time', '')}" if runs else "no run so far"


def _comparison(reports: Sequence[Report]) -> list[list[str]]:
    rows = [["study", "state", "trials", "failed", "best", "value", "wall time", "device hours"]]
    for report in reports:
        read, cost = report.read, cost_of(report.read.history)
        best, time = read.best, timeline_of(read.history)
        wall = time.seconds if time else cost["wall"]
        rows.append([
            f"{read.name} in {read.folder}", read.state, f"{len(read.history.results):,}", str(len(read.failures)),
            _words_of(best.params) if best else "none",
            f"{read.goal.name} {words(best.value or 0.0, read.goal.percent)}" if best and read.goal else "",
            duration(wall) if wall else "not known", f"{cost['busy'] / 3600:.3g}",
        ])  # fmt: skip
    return rows
