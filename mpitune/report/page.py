"""The page: what a journal and its experiment say, filled into the template, as one file that needs nothing else."""

from __future__ import annotations

import base64
import gzip
import hashlib
import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from mpitune.errors import StorageError
from mpitune.experiment import Data, Experiment
from mpitune.figures.panels import Drawing, Panel
from mpitune.port import Reporting
from mpitune.report import chart_data, parts
from mpitune.report.candidates import Goal, ReportedStudy, read_candidates
from mpitune.storage.files import PAGE, written_whole
from mpitune.storage.history import History
from mpitune.storage.journal import is_running

log = logging.getLogger(__name__)

HERE = Path(__file__).parent


def write_at_the_end(folder: Path, history: History, experiment: Experiment, data: Data) -> None:
    """Write report.html of a study that has just ended. Raises StorageError where that fails; the study is done."""
    try:
        write_report(folder / PAGE, report_of(folder, history, experiment, data))
    except Exception as error:  # whatever an experiment's own sections raise
        log.debug(PAGE, exc_info=True)
        why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise StorageError(
            f"all trials are done, but {PAGE} was not written ({why}): the same command tries again, "
            f"and python -m mpitune report {folder}"
        ) from error


def report_of(folder: Path, history: History, experiment: Experiment | None, data: Data | None) -> ReportedStudy:
    """What the page shows of a study. Without its experiment, or the data of that, it leaves out what only they say."""
    reporting = experiment.reporting() if experiment else Reporting()
    goal = next((Goal(name, up) for name, up in history.goals.items()), None)
    if goal is not None:
        values = [result.values[goal.name] for result in history.results.values() if goal.name in result.values]
        goal = replace(goal, fraction=all(0 <= value <= 1 for value in values if math.isfinite(value)))
    candidates = read_candidates(history, goal, reporting.no_parameters, reporting.counts(history))
    folds = history.runs[-1].get("folds", {}) if history.runs else {}
    how = {"name": goal.name if goal else ""}
    how |= {name: folds[name] for name in ("repeats", "ratio", "kind", "name", "halving", "careful") if name in folds}
    chosen, sections = reporting.best(history), reporting.sections(history, data)
    return ReportedStudy(folder, history, goal, candidates, is_running(folder), how, chosen, sections)


def write_report(path: Path, study: ReportedStudy) -> None:
    """Write the page of a study, whole or not at all."""
    text = page(study)
    with written_whole(path, "w") as file:
        file.write(text)


def page(study: ReportedStudy) -> str:
    """The page as HTML; the same journal makes the same page."""
    compressed = (HERE / "echarts" / "echarts.min.js.gz").read_bytes()
    script = (HERE / "report.js").read_text(encoding="utf-8")
    digests = (hashlib.sha256(text).digest() for text in (gzip.decompress(compressed), script.encode()))
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    licence = "\n\n".join(
        (HERE / "echarts" / name).read_text(encoding="utf-8") for name in ("NOTICE", "LICENSE", "LICENSE-d3")
    )
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("template.html").render(
        title=parts.title_of(study),
        subtitle=f"{study.state}, {parts.when_of(study)}",
        css=Markup((HERE / "report.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hashes=Markup(hashes),
        library=base64.b64encode(compressed).decode(),
        licence=licence,
        study=_study(study),
    )


def _study(study: ReportedStudy) -> dict[str, Any]:
    """What the template asks of one study."""
    charts: list[dict[str, Any]] = []
    sections = [
        {"title": section.title, "panels": [_panel(panel, charts) for panel in section.panels]}
        for section in study.sections
        if section.panels
    ]
    candidates = [*parts.winner_of(study), *parts.history_of(study), *parts.learning_of(study)]
    return {
        "n_failures": len(study.failures),
        "facts": parts.facts_of(study),
        "notes": parts.notes_of(study),
        "front": parts.front_table(study),
        "sections": sections,
        "candidates": [_panel(panel, charts) for panel in [*candidates, parts.importance(study)]],
        "failures": parts.failures_of(study),
        "about": parts.about_of(study),
        "data": chart_data.packed(chart_data.study_json(study, charts)),
    }


def _panel(panel: Panel, charts: list[dict[str, Any]]) -> dict[str, Any]:
    """What the template asks of a panel; `chart` is its number among those that report.js draws."""
    shown: dict[str, Any] = {"kind": type(panel).__name__, "it": panel, "chart": len(charts)}
    if chart := chart_data.chart_of(panel):
        charts.append(chart)
    if isinstance(panel, Drawing):
        shown["source"] = "data:image/svg+xml;base64," + base64.b64encode(panel.svg).decode()
    return shown
