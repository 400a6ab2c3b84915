"""The lines that scikit-learn prints of each fit with `verbose` above 1: "[CV 2/5] END C=1; ... total time=   0.1s".

Fits that candidates share, and fits of workers, print nothing by themselves. So the process that asked for a search
prints the line of each result when it arrives, and no line when a fit begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joblib.logger import short_format_time

from mpitune.sklearn.task import Task

WIDTH = 80


def cv_line(task: Task, what: Mapping[str, Any], verbose: int) -> str:
    """The line of a task, in scikit-learn's format.

    Args:
        task: a candidate on a fold.
        what: scikit-learn's answer, see `scores.answer`.
        verbose: of the search, above 1. Above 2 there are scores and the number of the fold, above 9 that of the
            candidate.
    """
    fold = ""
    if verbose > 2:
        split, n_splits = task.kwargs["split_progress"]
        fold = f" {split + 1}/{n_splits}"
    if verbose > 9:
        candidate, n_candidates = task.kwargs["candidate_progress"]
        fold += f"; {candidate + 1}/{n_candidates}"
    text = ", ".join(f"{name}={value}" for name, value in sorted(task.parameters.items()))
    text += ";" * bool(text)
    if verbose > 2:
        text += _scores(what["test_scores"], what.get("train_scores"))
    text += f" total time={short_format_time(what['fit_time'] + what['score_time'])}"
    head = f"[CV{fold}] END "
    return head + "." * (WIDTH - len(head) - len(text)) + text


def _scores(test: Any, train: Any) -> str:
    if isinstance(test, dict):
        return "".join(f" {name}: ({_both(test[name], train and train[name])})" for name in sorted(test))
    return ", score=" + (f"{test:.3f}" if train is None else f"({_both(test, train)})")


def _both(test: float, train: float | None) -> str:
    return f"test={test:.3f}" if train is None else f"train={train:.3f}, test={test:.3f}"
