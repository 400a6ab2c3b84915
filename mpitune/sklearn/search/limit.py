"""What stands in the table for fits that a search did not begin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mpitune.sklearn.fits.answers import Answer
from mpitune.sklearn.fits.task import Task


def not_evaluated(task: Task, names: Sequence[str]) -> Answer:
    """The answer of a task that was not begun: all its numbers are NaN. names: of scores, where others have several."""
    nan = float("nan")
    scores = dict.fromkeys(names, nan) if names else nan
    what = {"fit_error": None, "test_scores": scores, "n_test_samples": 0, "fit_time": nan, "score_time": nan}
    if task.kwargs["return_train_score"]:
        what["train_scores"] = scores
    return Answer(what, [])


def names_of(scores: Iterable[Any]) -> Sequence[str]:
    """The names of several scores; none where there is one. A function's fits that failed have one, the others say."""
    return next((tuple(of) for of in scores if isinstance(of, Mapping)), ())
