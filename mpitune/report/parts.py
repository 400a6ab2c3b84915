"""What each part of the page says: of any study, in words, tables and panels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from mpitune.errors import duration
from mpitune.figures.panels import Bars, Fact, Lines, Note, Panel
from mpitune.report.candidates import ReportedStudy
from mpitune.report.importance import FEWEST, importance_of
from mpitune.settings import window_of
from mpitune.storage.table import last_line
from mpitune.trial import COMPLETE, INFEASIBLE, PRUNED, Outcome, failure_of

MOST_CANDIDATES = 40  # with their intervals
MOST_CURVES = 200  # of trials
MOST_DOTS = 1500  # of the history of the best
MOST_OF_FRONT = 10  # trials
MOST_FAILURES = 30  # kinds that are shown with a text; the table has all failures
MOST_TEXT = 4000  # characters of a failure's text, from its end


def facts_of(study: ReportedStudy) -> list[Fact]:
    """The first screen: the best parameters, the goal's value, the experiment's facts, what it took."""
    history, busy = study.history, study.utilisation
    total = history.runs[-1].get("n_trials") if history.runs else None
    second = sum(result.attempt > 1 and not result.failed for result in history.results.values())
    window = window_of(history.header)
    slots = "" if busy is None else f", which kept the slots busy for {busy:.0%} of the time"
    return [
        *_answer(study),
        *(fact for section in study.sections for fact in section.facts),
        Fact(
            "what it took",
            duration(study.wall_seconds) if study.wall_seconds else duration(study.busy_seconds) + " of work",
            f"{study.busy_seconds / 3600:.3g} device hours of trials{slots}; runs: {len(history.runs)}",
        ),
        Fact(
            "trials",
            f"{len(history.results):,}" + (f" of {total:,}" if isinstance(total, int) else ""),
            f"{len(study.failures)} failed, {second} succeeded at the second attempt; "
            f"{len(study.candidates):,} candidates" + (f"; {window}" if window else ""),
        ),
    ]


def _answer(study: ReportedStudy) -> list[Fact]:
    best, goal = study.best, study.goal
    if best is None or goal is None:
        return []
    note = f"mean of {len(best.folds)} folds" if len(best.folds) > 1 else "one evaluation: no interval"
    winner, taken = study.winner, study.refitted or best
    n = winner.n_candidates if winner else sum(candidate.state == COMPLETE for candidate in study.candidates)
    of = "It is the best of" if taken is best else f"The best, {words(best.value or 0.0, goal.percent)}, is of"
    note, worth, interval = f"{note}. {of} {n}", "", ""
    if winner and winner.corrected is not None:
        worth, *ends = (words(end, goal.percent) for end in (winner.corrected, *(winner.interval or ())))
        interval = f" ({100 * winner.level:g} %: {' to '.join(ends)})" if ends else ""
    if winner and winner.not_corrected:
        note += f"; {winner.not_corrected}{interval}."
    else:
        note += ", and the choice flatters it: only data that had no part in it tell."
        note += f" Corrected for the choice by its folds it is {worth}{interval}." if worth else ""
    what = "best score's" if study.refitted is None else "best" if taken is best else "refitted"
    return [
        Fact(f"{what} parameters", _words_of(study, taken.params) or "the default", _words_of(study, taken.label)),
        Fact(f"{study.how.get('name') or goal.name} in the search", words(taken.value or 0.0, goal.percent), note),
    ]


def words(number: float, percent: bool = False) -> str:
    """A number as people read it."""
    if not math.isfinite(number):
        return "∞" if number > 0 else "-∞" if number < 0 else "none"
    return f"{100 * number:.4g} %" if percent else f"{number:.4g}"


def _words_of(study: ReportedStudy, params: Mapping[str, Any]) -> str:
    space = "\N{NO-BREAK SPACE}"
    return ", ".join(f"{name} ={space}{_short(study, value)}" for name, value in params.items())


def _short(study: ReportedStudy, value: Any) -> str:
    return words(value) if isinstance(value, float) else study.texts.get(str(value), str(value))


def notes_of(study: ReportedStudy) -> list[str]:
    """What a reader of the answer must know."""
    notes = []
    if study.goal is None:
        notes.append("The journal does not say what is searched for, so no candidate is called the best.")
    elif len(goals := [*study.history.goals]) > 1:
        notes.append(f"No candidate is the best for {' and '.join(goals)} together. Charts are of {study.goal.name}.")
        if n := len(study.front):
            some = f" Here are {MOST_OF_FRONT}, from one end to the other." if n > MOST_OF_FRONT else ""
            notes.append(f"Pareto front of {n}: no other trial is better in one of them and as good in all.{some}")
    elif study.best is None and any(candidate.state == INFEASIBLE for candidate in study.candidates):
        notes.append("No complete candidate fulfils the constraints, so there is no answer yet.")
    elif study.best is None:
        notes.append("No candidate has all its results so far, so there is no answer yet.")
    if study.history.mixed:
        notes.append(f"{study.history.mixed}: a best of two measures is no answer. Begin anew in another folder.")
    if not study.history.complete:
        notes.append("The study is not complete: what is here may change, and the same command continues it.")
    return notes


def front_table(study: ReportedStudy) -> tuple[list[str], list[list[str]]]:
    """Names and rows of a table of the Pareto front; of many from one end to the other."""
    front, goals = study.front, study.history.goals
    last, most = len(front) - 1, MOST_OF_FRONT - 1
    shown = front if last <= most else [front[n * last // most] for n in range(MOST_OF_FRONT)]
    rows = [
        [one.parts[-1].trial.key, *(words(one.values[name]) for name in goals)]
        + [_short(study, one.params.get(name, "")) for name in study.parameters]
        for one in shown
    ]
    return ["trial", *goals, *study.parameters], rows


def winner_of(study: ReportedStudy) -> list[Panel]:
    """What the best is worth: the best candidates with their intervals, and the default."""
    winner = study.winner
    if winner is None or study.goal is None:
        return []
    means = winner.scores.mean(axis=1) * (-1 if study.goal.maximize else 1)
    order = [n for n in np.argsort(means, kind="stable").tolist() if np.isfinite(means[n])]
    shown = [n for place, n in enumerate(order) if place < MOST_CANDIDATES or n == winner.default_candidate]
    searched = list(dict.fromkeys(name for n in shown for name in winner.params[n]))
    names: dict[int, str] = {}
    bars = {}
    for n in shown:
        params = winner.params[n]  # values alone fit beside the axis
        name = ", ".join(_short(study, params.get(name, "-")) for name in searched) if params else "the default"
        names[n] = f"{name} ({n})" if name in bars else name
        mean = float(winner.scores[n].mean())
        bars[names[n]] = (mean, *(winner.about(mean, winner.scores[n]) or (None, None)))
    about = f"{'. '.join(str(winner).splitlines())}. Each has its values of {', '.join(searched)}"
    about += " and its interval of 95 %, in blue those that are as good as the best"
    about += f"; the best {len(shown)} of {len(order)} are drawn." if len(shown) < len(order) else "."
    good = [names[n] for n in winner.as_good if n in names]
    return [Bars("What the winner is worth", about, bars, study.goal.percent, marked=good)]


def importance(study: ReportedStudy) -> Panel:
    """A bar for each parameter, and how it was found."""
    shares = importance_of(study.valued, study.parameters)
    if not shares:
        return Note(f"The importance of parameters needs {FEWEST} candidates or more, with different values.")
    about = (
        f"How much of the differences between the ranks of {len(study.valued)} candidates a parameter explains by "
        "itself: all of them at 1, and none beyond chance at 0. What it does only together with others is not in it. "
        f"One that only some have is judged among these, where they are {FEWEST} or more."
    )
    return Bars("Importance of the parameters", about, {name: (share, None, None) for name, share in shares.items()})


def history_of(study: ReportedStudy) -> list[Panel]:
    """The best value so far, by the number of candidates that have ended."""
    best, goal = study.best_so_far(), study.goal
    if not best or goal is None:
        return []
    values = [(float(n), one.value) for n, one in enumerate(study.in_time, 1) if one.value is not None]
    dots = [(n, value) for n, value in values if math.isfinite(value)]
    drawn = dots[:: -(-len(dots) // MOST_DOTS)]
    about = f"{goal.name}: the best so far as a line, candidates as dots, in the order in which they ended"
    about += f"; {len(drawn):,} of {len(dots):,} are drawn." if len(drawn) < len(dots) else "."
    steps = [*best, (len(values), best[-1][1])]
    curves = {"best so far": ([n for n, _ in steps], [value for _, value in steps])}
    shown = [n for n, _ in drawn], [value for _, value in drawn]
    return [Lines("History of the best", about, "candidates", goal.name, curves, goal.percent, shown, steps=True)]


def learning_of(study: ReportedStudy) -> list[Panel]:
    """A curve for each trial of a search that tells its values step by step; grey where it was pruned."""
    curves: dict[str, tuple[list[int], list[float]]] = {}
    pruned: list[str] = []
    if (goal := study.goal) is None:
        return []
    for candidate in study.candidates:
        steps = (step for _, result in candidate.parts for step in result.ending.steps.items())
        values = {step: values[goal.name] for step, values in steps if goal.name in values}
        if values:
            name = f"trial {candidate.number}" + (" (pruned)" if candidate.state == PRUNED else "")
            curves[name] = (sorted(values), [values[step] for step in sorted(values)])
            pruned += [name] if candidate.state == PRUNED else []
    if not curves:
        return []
    names = list(curves)[:: -(-len(curves) // MOST_CURVES)]
    about = f"{goal.name} of each trial, in grey where the strategy stopped it"
    about += f"; {len(names):,} of {len(curves):,} are drawn." if len(names) < len(curves) else "."
    some = {name: curves[name] for name in names}
    return [Lines("Learning curves", about, "step", goal.name, some, goal.percent, faint=pruned)]


def failures_of(study: ReportedStudy) -> list[dict[str, Any]]:
    """The kinds of failures by their last lines, the most frequent first, each with the first trial that failed so."""
    kinds: dict[str, list[Outcome]] = {}
    for outcome in study.failures:
        kinds.setdefault(last_line(failure_of(outcome.result))[:300], []).append(outcome)
    return [
        {"last": last, "n": len(some), "key": some[0].trial.key, "place": str(some[0].result.place),
         "params": _words_of(study, some[0].params), "text": (failure_of(some[0].result) or "")[-MOST_TEXT:]}
        for last, some in sorted(kinds.items(), key=lambda kind: -len(kind[1]))[:MOST_FAILURES]
    ]  # fmt: skip


def about_of(study: ReportedStudy) -> list[tuple[str, list[tuple[str, str]]]]:
    """Tables of names and values: settings, where the study comes from, versions, runs."""
    header, runs = study.history.header, study.history.runs
    settings: Mapping[str, Any] = header["settings"]
    last = runs[-1] if runs else {}
    origin = [
        ("command", " ".join(map(str, last.get("command", ()))) or "not known"),
        ("data, SHA-256", str(settings.get("data_sha256", "none"))),
        ("format of the journal", str(header.get("format", ""))),
    ]
    shown = {name: str(value) for name, value in settings.items() if name != "data_sha256" and value is not None}
    took = [duration(float(run["seconds"])) if "seconds" in run else "killed, or running" for run in runs]
    starts = [
        (str(run.get("time", n)), f"{len(run.get('slots', ()))} slots, {took[n - 1]}") for n, run in enumerate(runs, 1)
    ]
    versions = [(str(name), str(value)) for name, value in last.get("versions", {}).items()]
    return [("Settings", [*shown.items()]), ("Origin", origin), ("Versions", versions), ("Runs", starts[:100])]


def title_of(study: ReportedStudy) -> str:
    """The study's folder, and the script or the program that made it, as far as its journal says."""
    runs = study.history.runs
    path = Path(str(next(iter(runs[-1].get("command", ())), "")) if runs else "")
    script = path.parent.name if path.name == "__main__.py" else path.name
    return f"{study.folder.resolve().name}" + (f" ({script})" if script and "ipykernel" not in script else "")


def when_of(study: ReportedStudy) -> str:
    """When the study was last heard of."""
    ended = max((result.ended for result in study.history.results.values()), default=0.0)
    runs = study.history.runs
    if ended:
        return f"last result on {datetime.fromtimestamp(ended).astimezone():%d %B %Y at %H:%M %Z}"
    return f"begun {runs[0].get('time', '')}" if runs else "no run so far"
