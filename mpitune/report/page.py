"""The page: what a journal says, drawn and filled into the template, as one file that needs nothing else."""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from mpitune.panels import Bars, HeatMap, Lines, Note, Panel, Pictures, Section, Table
from mpitune.report import chart_data, panels, parts
from mpitune.report.findings import StudyRead
from mpitune.report.timeline import timeline_of
from mpitune.storage.files import written_whole

HERE = Path(__file__).parent
NAME = "report.html"


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
        subtitle=f"{first.state}, {parts.when_of(first)}" if len(reports) == 1 else "several studies side by side",
        css=Markup((HERE / "report.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hashes=Markup(hashes),
        library=base64.b64encode(compressed).decode(),
        licence=licence,
        studies=shown,
        comparison=parts.comparison_of([report.read for report in reports]) if len(reports) > 1 else [],
    )


def _sha(text: bytes) -> str:
    return base64.b64encode(hashlib.sha256(text).digest()).decode()


def _study(report: Report) -> dict[str, Any]:
    """What the template asks of one study."""
    read, time = report.read, timeline_of(report.read.history)
    n_failed = sum(result.failed for result in read.history.results.values())
    grids = iter(range(sum(isinstance(panel, HeatMap) for section in report.sections for panel in section.panels)))
    sections = [
        {"title": section.title, "panels": [_panel(panel, grids) for panel in section.panels]}
        for section in report.sections
        if section.panels
    ]
    links = [("answer", "Answer"), *((f"x{n}", section["title"]) for n, section in enumerate(sections))]
    links += [("history", "Candidates"), ("time", "Timeline"), ("failures", f"Failures ({n_failed})")]
    links += [("trials", "Trials"), ("about", "Settings")]
    return {
        "name": read.name,
        "folder": str(read.folder),
        "links": links,
        "facts": [asdict(fact) for fact in parts.facts_of(read, report.sections, report.dollars, time)],
        "notes": parts.notes_of(read),
        "sections": sections,
        **parts.history_of(read, time),
        **parts.importance_of_parameters(read),
        **parts.time_of(read, time),
        **parts.failures_of(read, time),
        **parts.table_of(read),
        "about": parts.about_of(read),
        "data": chart_data.packed(chart_data.study_json(read, report.sections, time)),
    }


def _panel(panel: Panel, grids: Iterator[int]) -> dict[str, Any]:
    shown: dict[str, Any] = {"kind": type(panel).__name__, "it": panel, "drawing": "", "boxes": "", "number": 0}
    match panel:
        case HeatMap():
            shown.update(drawing=panels.heat_map(panel), boxes=panels.boxes(panel), number=next(grids))
        case Lines():
            shown["drawing"] = panels.lines(panel)
        case Bars():
            shown["drawing"] = panels.bars(panel)
        case Pictures():
            shown["drawing"] = panels.pictures(panel)
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
