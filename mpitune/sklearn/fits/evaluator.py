"""What evaluates the tasks of a search: in a worker batches of them, in the script's own process all of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sklearn.model_selection import _validation

from mpitune.sklearn.fits.answers import Answer, cv_line, encoded, noting, raised
from mpitune.sklearn.fits.graph_walk import walked
from mpitune.sklearn.fits.grids import InCommon, model_to_fit, solved
from mpitune.sklearn.fits.grouping import Group, Grouping
from mpitune.sklearn.fits.task import Task
from mpitune.trial import Batch, Evaluation

log = logging.getLogger(__name__)

Config = Callable[[], AbstractContextManager[Any]]


class Evaluator:
    """Evaluates batches of folds.

    Args:
        grouping: the tasks.
        config: of the process that asked.
        single: whether the next fit of a grid is a single one.
    """

    def __init__(self, grouping: Grouping, config: Config = nullcontext, single: Callable[[], bool] = bool):
        self._single = single
        self._grouping, self._tasks, self._config = grouping, {task.key: task for task in grouping.tasks}, config
        self._kept = InCommon()

    def answers(
        self,
        tasks: Sequence[Task],
        verbose: int,
        enough: Callable[[], bool],
        done: Callable[[Task, Mapping[str, Any]], None],
    ) -> dict[str, Answer]:
        """The answers by key, of these tasks in this process, without a study. An error is raised.

        It is asked after each fit whether that is `enough`, so that no other begins. Tasks that are done together have
        answers all or none, so it changes no result who does the others. What is done is told before that.
        """
        known: dict[str, Answer] = {}
        for group in self._groups(tasks):
            left = {key: self._tasks[key] for key in group.keys}
            answers: dict[str, Answer] = {}
            for (task, what), seen in noting(self._evaluated(group, left)):
                del left[task.key]
                answers[task.key] = Answer(what, seen)
                if left and enough():
                    return known
            if verbose > 1:
                for key, answer in answers.items():
                    print(cv_line(self._tasks[key], answer.what))
            known.update(answers)
            for key, answer in answers.items():
                done(self._tasks[key], answer.what)
            if enough():
                break
        return known

    def __call__(self, batch: Batch) -> Iterator[Evaluation]:
        with self._config():
            for group in self._groups([self._tasks[trial.key] for trial in batch]):
                tasks = {key: self._tasks[key] for key in group.keys}
                try:
                    for (task, what), seen in noting(self._evaluated(group, tasks)):
                        yield encoded(tasks.pop(task.key).key, what, seen)
                except Exception as error:  # error_score="raise", or a scorer: the process that asked raises it
                    for key in tasks:
                        yield raised(key, error)

    def _groups(self, tasks: Sequence[Task]) -> Iterator[Group]:
        """Those of the tasks. Of a grid tasks are done alone until its solver is compiled, and loaded."""
        for group in self._grouping.groups_of(tasks):
            keys = list(group.keys)
            while keys and self._grouping.solves(task := self._tasks[keys[0]]):
                if not (self._grouping.is_early(task) or self._single()):
                    break
                yield Group((keys.pop(0),), "alone")
            if keys:
                yield Group(tuple(keys), group.way)

    def _evaluated(self, group: Group, tasks: Mapping[str, Task]) -> Iterator[tuple[Task, dict[str, Any]]]:
        """Together as far as they can be, the others one by one."""
        yield from self._together(group, tasks)
        for task in list(tasks.values()):  # what is left of them
            yield task, _validation._fit_and_score(model_to_fit(task), *task.args, **task.kwargs)

    def _together(self, group: Group, tasks: Mapping[str, Task]) -> Iterator[tuple[Task, dict[str, Any]]]:
        if group.way == "grid":
            listed = list(tasks.values())
            try:
                yield from solved(listed, self._kept)
            except (ValueError, TypeError, MemoryError) as error:  # unusable samples: each fit says so in its own way
                if listed[0].kwargs["error_score"] == "raise":
                    raise
                log.info("not solved as a grid: %s", error)
        elif group.way == "shared":
            members = {task.candidate: task for task in tasks.values()}
            yield from walked(members, self._grouping.graph_of(members))
