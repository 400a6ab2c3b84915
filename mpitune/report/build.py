"""From a journal and its experiment to what the page shows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpitune.errors import StorageError
from mpitune.experiment import Data, Experiment
from mpitune.panels import Section
from mpitune.report.candidates import Goal, ReportedStudy, read_candidates
from mpitune.report.page import NAME, Report, write_report
from mpitune.storage.history import History, read_study
from mpitune.storage.journal import is_running

log = logging.getLogger(__name__)


def write_at_the_end(folder: Path, experiment: Experiment, data: Data) -> None:
    """Write report.html into the results folder of a study that has just ended.

    Raises:
        StorageError: That fails. The study is done, and its journal says so.
    """
    try:
        write_report(folder / NAME, [report_of(folder, read_study(folder), experiment, data)])
    except Exception as error:  # whatever an experiment's own sections raise
        log.debug(NAME, exc_info=True)
        why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise StorageError(
            f"all trials are done, but {NAME} was not written ({why}): the same command tries again, "
            f"and python -m mpitune report {folder}"
        ) from error


def report_of(
    folder: Path,
    history: History,
    experiment: Experiment | None,
    data: Data | None,
    *,
    goal: str | None = None,
    price: float | None = None,
) -> Report:
    """What the page shows of one study.

    Args:
        folder: of its results.
        history: its journal.
        experiment: whose study it is; None where that is not known, which leaves out what only it can say.
        data: what its `data()` returned, if that is at hand.
        goal: such as "minimize loss"; needed if the experiment and the journal do not say it.
        price: dollars for a node and an hour.
    """
    settings = history.header["settings"]
    objectives = settings.get("objectives")  # of a study of `search()`; another may call anything so
    said = [goal, experiment.goal if experiment else "", history.header.get("goal")]
    searched = _first_goal([*said, *(objectives if isinstance(objectives, list) else ())])
    candidates = read_candidates(history, searched, experiment.no_parameters if experiment else ())
    sections: Sequence[Section] = ()
    if experiment is not None:
        sections = experiment.report_sections(history, data)
    running = is_running(folder)
    study = ReportedStudy(folder, settings["experiment"], history, searched, candidates, running)
    return Report(study, sections, price)


def _first_goal(said: Sequence[Any]) -> Goal | None:
    """The first of these that is a goal."""
    for words in said:
        if isinstance(words, str):
            with suppress(ValueError):
                return Goal.of(words)
    return None
