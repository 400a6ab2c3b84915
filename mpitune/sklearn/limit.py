"""When a search has enough: it has had its time, or a function of its results says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.metrics._scorer import _MultimetricScorer

from mpitune.sklearn.answers import Answer
from mpitune.sklearn.task import Task

StopWhen = Callable[[Mapping[str, Any]], bool]


@dataclass
class Limit:
    """Of one search, as it goes on.

    Args:
        tasks: of the search.
        timeout: seconds since `began`, by the monotonic clock.
        stop_when: a function of `params` and the mean scores of the candidates that have all their splits.
    """

    tasks: Sequence[Task]
    timeout: float | None
    stop_when: StopWhen | None
    began: float = field(default_factory=time.monotonic)
    reached: str = ""  # what it was
    _scores: dict[int, list[Any]] = field(default_factory=dict)  # of each candidate
    _n_splits: int = 0
    _news: bool = False

    def __post_init__(self) -> None:
        self._n_splits = 1 + max((task.split for task in self.tasks), default=-1)
        self._params = {task.candidate: task.parameters for task in self.tasks if not task.split}

    def add(self, task: Task, what: Mapping[str, Any]) -> None:
        """A task is done, with scikit-learn's answer."""
        scores = self._scores.setdefault(task.candidate, [])
        scores.append(what["test_scores"])
        self._news |= len(scores) == self._n_splits

    def is_reached(self) -> bool:
        """Asked often."""
        if not self.reached and self.timeout is not None and time.monotonic() - self.began > self.timeout:
            self.reached = "its time"
        if not self.reached and self.stop_when is not None and self._news:
            self._news = False
            if self.stop_when(self._so_far()):
                self.reached = "stop_when"
        return bool(self.reached)

    def _so_far(self) -> dict[str, Any]:
        whole = {candidate: scores for candidate, scores in self._scores.items() if len(scores) == self._n_splits}
        numbers = sorted(whole)
        first = whole[numbers[0]][0]
        found: dict[str, Any] = {"params": [self._params[number] for number in numbers]}
        for name in first if isinstance(first, Mapping) else ["score"]:
            values = [[s[name] if isinstance(s, Mapping) else s for s in whole[number]] for number in numbers]
            found[f"mean_test_{name}"] = np.mean(values, axis=1)
        return found


def not_evaluated(task: Task) -> Answer:
    """The answer of a task that was not begun: all its numbers are NaN."""
    scorer, nan = task.kwargs["scorer"], float("nan")
    scores = dict.fromkeys(scorer._scorers, nan) if isinstance(scorer, _MultimetricScorer) else nan
    what = {"fit_error": None, "test_scores": scores, "n_test_samples": 0, "fit_time": nan, "score_time": nan}
    if task.kwargs["return_train_score"]:
        what["train_scores"] = scores
    return Answer(what, [], False)
