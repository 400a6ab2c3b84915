"""When a search of scikit-learn's estimators has enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.metrics._scorer import _MultimetricScorer

from mpitune.engine.limit import Limit
from mpitune.sklearn.answers import Answer
from mpitune.sklearn.task import Task

StopWhen = Callable[[Mapping[str, Any]], bool]


@dataclass
class SearchLimit(Limit):
    """`stop_when` gets `params` and the mean scores of the candidates that have all their splits.

    tasks: of the search.
    """

    tasks: Sequence[Task] = ()
    _scores: dict[int, list[Any]] = field(default_factory=dict)  # of each candidate

    def __post_init__(self) -> None:
        self._n_splits = 1 + max((task.split for task in self.tasks), default=-1)

    def add(self, task: Task, what: Mapping[str, Any]) -> None:
        """A task is done, with scikit-learn's answer."""
        scores = self._scores.setdefault(task.candidate, [])
        scores.append(what["test_scores"])
        self.news |= len(scores) == self._n_splits

    def so_far(self) -> dict[str, Any]:
        params = {task.candidate: task.parameters for task in self.tasks if not task.split}
        whole = {number: scores for number, scores in sorted(self._scores.items()) if len(scores) == self._n_splits}
        (first, *_), *_ = whole.values()
        columns: dict[str, Any] = {"params": [params[number] for number in whole]}
        for name in first if isinstance(first, Mapping) else ["score"]:
            values = [[of[name] if isinstance(of, Mapping) else of for of in scores] for scores in whole.values()]
            columns[f"mean_test_{name}"] = np.mean(values, axis=1)
        return columns


def not_evaluated(task: Task) -> Answer:
    """The answer of a task that was not begun: all its numbers are NaN."""
    scorer, nan = task.kwargs["scorer"], float("nan")
    scores = dict.fromkeys(scorer._scorers, nan) if isinstance(scorer, _MultimetricScorer) else nan
    what = {"fit_error": None, "test_scores": scores, "n_test_samples": 0, "fit_time": nan, "score_time": nan}
    if task.kwargs["return_train_score"]:
        what["train_scores"] = scores
    return Answer(what, [], False)
