"""The report of a study, or of several side by side, from their journals: `python -m mpitune report RESULTS...`.

Works at any time, also while the study runs. Exit status 0, or 2 where there is no study.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpitune.errors import Exit, UsageError, named
from mpitune.exchange.programs import experiment_of
from mpitune.figures.panels import Note, Section
from mpitune.report.candidates import Goal
from mpitune.report.page import Report, report_of, write_report
from mpitune.settings import program, setting
from mpitune.storage.files import PAGE
from mpitune.storage.history import History, read_study, studies_in
from mpitune.storage.provenance import digest


@dataclass(frozen=True)
class ReportOptions:
    """The command line."""

    folders: tuple[Path, ...] = setting(help="results folders of studies")
    to: Path | None = setting(
        None, "file to write (default: report.html in the results folder; here for several studies)", metavar="FILE"
    )
    goal: str | None = setting(
        None, "the goal, such as 'minimize loss', if the journal does not have it", metavar="GOAL"
    )

    def __post_init__(self) -> None:
        if self.goal is not None:
            Goal.of(self.goal)


def _of_journal(folder: Path, options: ReportOptions) -> Report:
    history = read_study(folder)
    if options.goal is not None:
        names = dict.fromkeys(name for result in history.results.values() for name in result.values)
        if names and (wanted := Goal.of(options.goal).name) not in names:
            raise UsageError(
                f"--goal {options.goal!r}: no trial in {folder} has a value {wanted}, they have {named(names)}"
            )
    try:
        experiment = experiment_of(history)
        if experiment is None:
            return report_of(folder, history, None, None, goal=options.goal)
        return _of_program(folder, history, experiment, options)
    except Exception as error:  # of the program's own part: the journal may be anybody's
        report = report_of(folder, history, None, None, goal=options.goal)
        note = f"What only the program itself can say is left out ({type(error).__name__}: {error})."
        return _noted(report, note)


def _of_program(folder: Path, history: History, experiment: Any, options: ReportOptions) -> Report:
    try:
        data = experiment.reporting().data_here()
    except UsageError as error:
        report = report_of(folder, history, experiment, None, goal=options.goal)
        return _noted(report, f"The study's data cannot be read: {error}")
    if data is None or digest(data) == history.header["settings"].get("data_sha256"):
        return report_of(folder, history, experiment, data, goal=options.goal)
    report = report_of(folder, history, experiment, None, goal=options.goal)
    return _noted(report, "The data that lie here are not those of the study, so they are not shown.")


def _noted(report: Report, note: str) -> Report:
    return dataclasses.replace(report, sections=[*report.sections, Section("What is not here", [Note(note)])])


def main(arguments: Sequence[str] | None = None) -> Exit:
    """The command line. Returns the exit status."""
    description = "The report of a study, or of several side by side, from their journals."
    return program(ReportOptions, _write, arguments, prog="python -m mpitune report", description=description)


def _write(options: ReportOptions) -> Exit:
    reports = [_of_journal(study, options) for folder in options.folders for study in studies_in(folder)]
    path = options.to or (options.folders[0] / PAGE if len(options.folders) == 1 else Path(PAGE))
    try:
        write_report(path, reports)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}): give another file with --to") from error
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, open it in a browser")
    return Exit.DONE
