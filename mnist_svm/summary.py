"""What a grid search has chosen, how sure that is, and what it cost: table and summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mpitune.figures import statistics
from mpitune.figures.statistics import interval_text
from mpitune.figures.winner import least
from mpitune.storage.table import last_line
from mpitune.trial import Result

if TYPE_CHECKING:
    from mnist_svm.experiment import SvmGrid


Point = tuple[int, int]  # index of gamma, index of C
REFIT = "refit"  # key of the trial that fits the chosen point


def best_point(errors: np.ndarray) -> Point | None:
    """(gamma index, C index) of the least mean error over (folds, n_gamma, n_C); None when each has a failed fold.

    Of equal points the one with the smaller C wins, then the one with the smaller gamma.
    """
    folds, n_gamma, _ = errors.shape
    number = least(errors.T.reshape(-1, folds))
    return None if number is None else (number % n_gamma, number // n_gamma)


def places_of(folds: Sequence[Result]) -> str:
    """Where these ran, each place once."""
    return " ".join(dict.fromkeys(str(result.place) for result in folds))


def table_rows(grid: SvmGrid, results: Mapping[str, Result], errors: np.ndarray) -> list[dict[str, Any]]:
    """One row per point, gamma by gamma."""
    rows = []
    for g, c in np.ndindex(errors.shape[1:]):
        folds = grid.at((g, c), results)
        row: dict[str, Any] = {"C": float(grid.penalties[c]), "gamma": float(grid.gammas[g])}
        row.update({f"error_{fold}": float(error) for fold, error in enumerate(errors[:, g, c])})
        row["mean"], row["standard_deviation"] = float(errors[:, g, c].mean()), float(errors[:, g, c].std())
        row["unconverged_folds"] = sum(result.values.get("converged") == 0 for result in folds)
        row["seconds"] = f"{sum(result.seconds for result in folds):.6g}"
        row["place"] = places_of(folds)
        row["error"] = "; ".join(dict.fromkeys(last_line(result.error) for result in folds if result.failed))
        rows.append(row)
    return rows


def summarised(grid: SvmGrid, results: Mapping[str, Result], errors: np.ndarray) -> dict[str, Any]:
    """The chosen point and its errors as JSON values; None for what is not known. Intervals are of 95 %.

    errors: float64 (folds, n_gamma, n_C), NaN where failed.
    """
    summary: dict[str, Any] = dict.fromkeys((
        "C", "gamma", "cross_validation_error", "standard_deviation", "test_error", "test_interval", "n_support",
    ))  # fmt: skip
    point = best_point(errors)
    if point is not None:
        g, c = point
        summary["C"], summary["gamma"] = float(grid.penalties[c]), float(grid.gammas[g])
        summary["cross_validation_error"] = float(errors[:, g, c].mean())
        summary["standard_deviation"] = float(errors[:, g, c].std())
    refit = results.get(REFIT)
    if refit is not None and not refit.failed:
        summary["test_error"], summary["n_support"] = refit.value("test_error"), int(refit.value("n_support"))
        n_test = len(refit.arrays.get("predictions", ()))
        if n_test:
            n_wrong = round(summary["test_error"] * n_test)
            summary["test_interval"] = list(statistics.proportion(n_wrong, n_test))
    summary["failed_fits"] = int(np.isnan(errors).sum())
    summary["unconverged_fits"] = sum(result.values.get("converged") == 0 for result in results.values())
    return summary


def print_summary(summary: Mapping[str, Any], n_fits: int) -> None:
    """The summary on standard output, a line each."""
    if summary["C"] is None:
        print(f"no best point: each one has a failed fold ({summary['failed_fits']} of {n_fits} fits failed)")
        return
    test_error = "not known: the refit failed"
    if summary["test_error"] is not None:
        test_error = f"{summary['test_error']:.4%}{interval_text(summary['test_interval'])}"
    print(f"best penalty C:           {summary['C']:.6g}")
    print(f"best kernel parameter:    {summary['gamma']:.6g}")
    print(f"cross-validation error:   {summary['cross_validation_error']:.4%}")
    print(f"test error:               {test_error}")
    if summary["failed_fits"]:
        print(f"failed fits:              {summary['failed_fits']} of {n_fits} (see results.csv)")
    if summary["unconverged_fits"]:
        print(f"fits short of tolerance:  {summary['unconverged_fits']} of {n_fits} (see results.csv)")
