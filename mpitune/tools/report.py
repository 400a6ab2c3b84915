"""The report of a study, from its journal: `python -m mpitune report RESULTS`.

Works at any time, also while the study runs. Of a search of `mpitune.sklearn` each iteration and each outer fold has a
report of its own. Exit status 0, or 2 where there is no study.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mpitune.errors import Exit, UsageError
from mpitune.exchange.programs import experiment_of
from mpitune.figures.panels import Note, Section
from mpitune.report.candidates import ReportedStudy
from mpitune.report.page import report_of, write_report
from mpitune.settings import program, setting
from mpitune.storage.files import PAGE
from mpitune.storage.history import read_study, studies_in


@dataclass(frozen=True)
class ReportOptions:
    """The command line."""

    folder: Path = setting(help="results folder of the study")


def _of_journal(folder: Path) -> ReportedStudy:
    history = read_study(folder)
    try:
        return report_of(folder, history, experiment_of(history), None)
    except Exception as error:  # of the program's own part: the journal may be anybody's
        report = report_of(folder, history, None, None)
        note = f"What only the program itself can say is left out ({type(error).__name__}: {error})."
        return replace(report, sections=[*report.sections, Section("What is not here", [Note(note)])])


def main(arguments: Sequence[str] | None = None) -> Exit:
    """The command line. Returns the exit status."""
    description = "The report of a study, from its journal."
    return program(ReportOptions, _write, arguments, prog="python -m mpitune report", description=description)


def _write(options: ReportOptions) -> Exit:
    for folder in studies_in(options.folder):
        path, report = folder / PAGE, _of_journal(folder)
        try:
            write_report(path, report)
        except OSError as error:
            raise UsageError(
                f"{path} cannot be written ({error.strerror}): copy the study, with its journal"
            ) from error
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, open it in a browser")
    return Exit.DONE
