"""What is known of a search of scikit-learn's estimators when it has enough."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mpitune.sklearn.fits.answers import Answer, decoded
from mpitune.sklearn.fits.task import Task
from mpitune.trial import Result


class Scores:
    """`params` and the mean scores of the candidates that have all their splits, those of earlier runs too.

    tasks: of the search.
    news: whether some have come since `stop_when` was asked.
    """

    news = False

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = {task.key: task for task in tasks}
        self._n_splits = 1 + max(task.split for task in tasks)
        self._scores: dict[int, list[Any]] = {}  # of each candidate
        self._works = False

    def on_results(self, results: Iterable[Result]) -> None:
        """See `Port.on_results`."""
        for result in results:
            if not result.failed:
                self.add(self._tasks[result.key], decoded(result))

    def add(self, task: Task, what: Mapping[str, Any]) -> None:
        """A task is done, with scikit-learn's answer."""
        scores = self._scores.setdefault(task.candidate, [])
        scores.append(what["test_scores"])
        self._works |= what["fit_error"] is None  # before that, names of scores may not be known
        self.news |= len(scores) == self._n_splits and self._works

    def so_far(self) -> dict[str, Any]:
        """The results, as `stop_when` gets them."""
        params = {task.candidate: task.parameters for task in self._tasks.values() if not task.split}
        whole = {number: scores for number, scores in sorted(self._scores.items()) if len(scores) == self._n_splits}
        names = names_of(of for scores in whole.values() for of in scores)
        columns: dict[str, Any] = {"params": [params[number] for number in whole]}
        for name in names or ["score"]:
            values = [[of[name] if isinstance(of, Mapping) else of for of in scores] for scores in whole.values()]
            columns[f"mean_test_{name}"] = np.mean(values, axis=1)
        return columns


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
