"""What report.js draws from: columns of trials and candidates, and charts, as JSON, gzipped and in base64."""

from __future__ import annotations

import base64
import gzip
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from mpitune.figures.panels import Bars, HeatMap, Lines, Panel
from mpitune.report.candidates import ReportedStudy
from mpitune.storage.table import last_line
from mpitune.trial import failure_of

MOST_ERRORS = 200  # characters of a failure's last line in the table


def packed(text: str) -> str:
    """A text, gzipped and in base64, which needs no escaping and a third of the room."""
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def chart_of(panel: Panel) -> dict[str, Any] | None:
    """What report.js draws of a panel; None where it is no chart."""
    chart: dict[str, Any]
    match panel:
        case HeatMap():
            axes = {axis: {"name": name, "at": _numbers(at)} for axis, (name, at) in (("x", panel.x), ("y", panel.y))}
            folds = [[_numbers(row) for row in fold] for fold in panel.folds]
            seconds, places = [_numbers(row) for row in panel.seconds], [_texts(row) for row in panel.places]
            chart = {"kind": "map", **axes, "folds": folds, "seconds": seconds, "places": places, "best": panel.best}
        case Lines():
            curves = [
                {"name": name, "x": _numbers(x), "y": _numbers(y), "faint": name in panel.faint}
                for name, (x, y) in panel.curves.items()
            ]
            dots = [_numbers(values) for values in panel.dots]
            chart = {"kind": "lines", "x": panel.x, "y": panel.y, "curves": curves, "dots": dots, "steps": panel.steps}
        case Bars():
            ends = [[math.nan if end is None else end for end in bar] for bar in panel.bars.values()]
            columns = {name: _numbers(bar[n] for bar in ends) for n, name in enumerate(("values", "lows", "highs"))}
            marked = [name in panel.marked for name in panel.bars] if panel.marked else None
            chart = {"kind": "bars", "names": list(panel.bars), **columns, "marked": marked}
        case _:
            return None
    return {**chart, "title": panel.title, "percent": panel.percent}


def study_json(study: ReportedStudy, charts: Sequence[Mapping[str, Any]]) -> str:
    """The study as JSON. A column is a list of numbers, or {"of": [texts], "at": [indices]}; null is no value."""
    trials, header, goal = study.history.outcomes, study.history.header, study.goal
    points = [outcome.params for outcome in trials]
    params = list(dict.fromkeys(name for point in points for name in point))
    values = list(dict.fromkeys(name for _, result in trials for name in result.values))
    number = {trial.key: n for n, candidate in enumerate(study.candidates) for trial, _ in candidate.parts}
    states = [study.candidates[number[trial.key]].state if trial.key in number else None for trial, _ in trials]
    own_columns: dict[str, Any] = {
        **(_known("state", states) if header.get("kind") == "search" else {}),
        **_known("fold", [trial.segment.fold for trial, _ in trials]),
        "seconds": _numbers(result.seconds for _, result in trials),
        **_known("peak MiB", [r.peak_bytes and round(r.peak_bytes / (1 << 20)) for _, r in trials]),
        "place": _texts(str(result.place) for _, result in trials),
        "attempt": _numbers(float(result.attempt) for _, result in trials),
        "failure": _texts(last_line(failure_of(result))[:MOST_ERRORS] for _, result in trials),
    }
    columns: dict[str, Any] = {"trial": _texts(trial.key for trial, _ in trials)}
    cells = [("parameter", name, _options(study, (point.get(name) for point in points))) for name in params]
    cells += [("value", name, _column([result.values.get(name) for _, result in trials])) for name in values]
    for kind, name, column in cells:
        columns[f"{name} ({kind})" if name in columns or name in own_columns else name] = column
    columns |= own_columns
    whole: dict[str, Any] = {
        "goal": goal and {"name": goal.name, "maximize": goal.maximize, "percent": goal.percent},
        "trials": columns,
        "params": study.parameters,
        "space": header["settings"].get("space"),
        "candidates": {
            name: _options(study, (candidate.params.get(name) for candidate in study.candidates))
            for name in study.parameters
        },
        "values": _numbers(math.nan if candidate.value is None else candidate.value for candidate in study.candidates),
        "candidate": _numbers(float(number.get(trial.key, -1)) for trial, _ in trials),
        "charts": charts,
    }
    return msgspec.json.encode(whole).decode()


def _options(study: ReportedStudy, values: Iterable[Any]) -> dict[str, Any] | msgspec.Raw:
    """A column of a parameter, whose texts have digits only where two would be the same without."""
    return _column([study.texts.get(value, value) if isinstance(value, str) else value for value in values])


def _known(name: str, values: Sequence[Any]) -> dict[str, Any]:
    """A column, if any of its values is known."""
    return {name: _column(values)} if any(value is not None for value in values) else {}


def _numbers(values: Iterable[float]) -> msgspec.Raw:
    """Numbers of six digits; infinity is 1e999, which JavaScript reads as such, NaN is null."""
    return msgspec.Raw(f"[{','.join(map(_number, values))}]".encode())


def _number(value: float) -> str:
    if math.isnan(value):
        return "null"
    if math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    return f"{value:.6g}" if not float(value).is_integer() or abs(value) >= 1e15 else str(int(value))


def _texts(values: Iterable[str]) -> dict[str, Any]:
    order: dict[str, int] = {}
    at = [order.setdefault(value, len(order)) for value in values]
    return {"of": list(order), "at": at}


def _column(values: Sequence[Any]) -> Any:
    """Numbers, or where one of them is none, all as texts."""
    if all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values):
        return _numbers(math.nan if value is None else float(value) for value in values)
    return _texts("" if value is None else str(value) for value in values)
