"""What report.html shows of a grid search: the map, the folds and the test error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mnist_svm.summary import best_point, places_of, summarised
from mpitune.figures.panels import Fact, HeatMap, Note, Panel, Section
from mpitune.figures.statistics import interval_text
from mpitune.trial import Result

if TYPE_CHECKING:
    from mnist_svm.experiment import SvmGrid


def sections_of(grid: SvmGrid, results: Mapping[str, Result]) -> list[Section]:
    """The sections of a report; results may be missing."""
    errors = grid.errors(results)
    summary, point = summarised(grid, results, errors), best_point(errors)
    panels: list[Panel] = [_map(grid, results, errors, point)]
    if n := int(np.isnan(errors).sum()):
        panels.append(Note(f"{n} of {errors.size} fits have failed or are not there yet: their points have no colour."))
    return [Section("Grid", panels, _facts(summary))]


def _map(grid: SvmGrid, results: Mapping[str, Result], errors: np.ndarray, point: tuple[int, int] | None) -> HeatMap:
    every = range(grid.n_tuning)
    there = [[grid.at((g, c), results) for c in every] for g in every]
    seconds = np.array([[sum(result.seconds for result in folds) for folds in row] for row in there])
    return HeatMap(
        "Mean validation error",
        "of the folds, over the grid. Bright is better; the frame marks the chosen point. Below it, the errors of each "
        "fold for one gamma.",
        ("C", grid.penalties.tolist()),
        ("gamma", grid.gammas.tolist()),
        errors,
        point,
        seconds,
        [[places_of(folds) for folds in row] for row in there],
    )


def _facts(summary: Mapping[str, Any]) -> list[Fact]:
    facts = []
    if summary["test_error"] is not None:
        note = f"{summary['n_support']:,} support vectors" + interval_text(summary["test_interval"])
        facts.append(Fact("test error", f"{summary['test_error']:.2%}", note))
    return facts
