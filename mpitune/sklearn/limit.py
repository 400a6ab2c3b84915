"""When a search of scikit-learn's estimators has enough."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mpitune.limit import Limit
from mpitune.sklearn.answers import Answer, decoded
from mpitune.sklearn.task import Task
from mpitune.storage.history import read_journal

StopWhen = Callable[[Mapping[str, Any]], bool]


@dataclass
class SearchLimit(Limit):
    """`stop_when` gets `params` and the mean scores of the candidates that have all their splits, also by earlier runs.

    tasks: of the search.
    """

    tasks: Sequence[Task] = ()
    _scores: dict[int, list[Any]] = field(default_factory=dict)  # of each candidate
    _works: bool = False

    def __post_init__(self) -> None:
        self._n_splits = 1 + max((task.split for task in self.tasks), default=-1)

    def begin(self, results: Path | None) -> None:
        """Before the study in this folder: take in what it knows."""
        known = read_journal(results) if self.stop_when is not None and results is not None else None
        for task in self.tasks if known is not None else ():
            if (result := known.results.get(task.key)) is not None and not result.failed:  # type: ignore[union-attr]
                self.add(task, decoded(result))

    def add(self, task: Task, what: Mapping[str, Any]) -> None:
        """A task is done, with scikit-learn's answer."""
        scores = self._scores.setdefault(task.candidate, [])
        scores.append(what["test_scores"])
        self._works |= what["fit_error"] is None  # before that, names of scores may not be known
        self.news |= len(scores) == self._n_splits and self._works

    def so_far(self) -> dict[str, Any]:
        params = {task.candidate: task.parameters for task in self.tasks if not task.split}
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
    return Answer(what, [], False)


def names_of(scores: Iterable[Any]) -> Sequence[str]:
    """The names of several scores; none where there is one. A function's fits that failed have one, the others say."""
    return next((tuple(of) for of in scores if isinstance(of, Mapping)), ())
