"""The study of a search: a trial is one candidate on one fold."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import cloudpickle
import joblib
import numpy as np
import sklearn
from joblib.hashing import NumpyHasher
from sklearn.base import clone
from sklearn.model_selection import _validation
from sklearn.pipeline import Pipeline

from mpitune.devices.devices import free_memory
from mpitune.experiment import Data, Experiment, Objective, WorkerContext
from mpitune.memory.shared_arrays import NOTHING, SharedArrays, Spec
from mpitune.memory.value_cache import Keeper, buffers_for, in_memory
from mpitune.settings import without_address
from mpitune.sklearn.answers import Answer, Raised, decoded, encoded, exception_of, raised
from mpitune.sklearn.fit_graph import configured
from mpitune.sklearn.graph_walk import may_write, walked
from mpitune.sklearn.grids import solved
from mpitune.sklearn.groups import Group, Sharing, costs_of, graph_of, groups_of, parts_of, shared_cost_of
from mpitune.sklearn.shared_steps import SharedSteps
from mpitune.sklearn.task import Task
from mpitune.sklearn.verbose import cv_line
from mpitune.sklearn.warned import converged, noting, recording
from mpitune.trial import Batch, Evaluation, Search, Trial

log = logging.getLogger(__name__)

_APART = ("candidate_progress", "split_progress", "parameters", "train", "test", "caller", "callback_ctx", "scorer")


def _described(estimator: Any) -> str:
    """What distinguishes estimators in a results folder: the text, and a digest of what the text may not show."""
    text = without_address(repr(estimator) if isinstance(estimator, type) else estimator.__repr__(N_CHAR_MAX=100_000))
    return f"{text} ({_digest(estimator)})"


# A class in a digest has its module's name. Journals know the module of our SVC by the name that it had first.
_MODULES = {b"cmpitune.svm.svc\n": b"ckernel_svm.svc\n"}


class _Hasher(NumpyHasher):
    """As `joblib.hash`, with the names of modules that journals know."""

    def hash(self, obj: Any, return_digest: bool = True) -> str | None:
        self.dump(obj)
        content = self.stream.getvalue()
        for now, first in _MODULES.items():
            content = content.replace(now, first)
        self._hash.update(content)
        return self._hash.hexdigest() if return_digest else None


def _digest(thing: Any) -> str:
    try:
        return str(_Hasher(hash_name="sha1").hash(thing))
    except (pickle.PicklingError, TypeError, AttributeError):  # it holds a lambda, for instance
        return str(joblib.hash(cloudpickle.dumps(thing), hash_name="sha1"))


@dataclass(frozen=True)
class Folds(Experiment):
    """Candidates on folds.

    Attributes:
        search, tasks: on rank 0 alone; workers have them from the shared data.
    """

    search: Any = field(default=None, metadata={"changes_results": False})
    tasks: Sequence[Task] = field(default=(), metadata={"changes_results": False})
    estimator: str = ""
    scoring: str = ""

    def __post_init__(self) -> None:
        if self.search is not None:
            described = _described(self.search.estimator)
            within = " share='tolerance'" if self.search.share == "tolerance" else ""
            object.__setattr__(self, "estimator", described + within)
            object.__setattr__(self, "sharing", self.search.sharing)
            object.__setattr__(self, "scoring", without_address(repr(self.search.scoring)))

    sharing: ClassVar[Sharing]  # set with the search

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        pass

    def data(self) -> Data:
        """The tasks, pickled; the arrays in them apart, so that workers see those of X and y without a copy."""
        buffers: list[pickle.PickleBuffer] = []
        content = cloudpickle.dumps(
            (list(self.tasks), self.sharing, sklearn.get_config()), 5, buffer_callback=buffers.append
        )
        steps = isinstance(self.tasks[0].estimator, Pipeline)
        arrays = {"tasks": np.frombuffer(content, np.uint8), "steps": np.array([steps])}
        for number, buffer in enumerate(buffers):
            arrays[f"buffer{number:06}"] = np.asarray(buffer.raw(), np.uint8)
        return arrays

    def digest(self, data: Data) -> str:
        """A digest of samples, labels, other parameters of `fit`, and splits: pickles of equal things may differ."""
        first = self.tasks[0]
        rest = {name: value for name, value in first.kwargs.items() if name not in _APART}
        rest["verbose"] = self.search.verbose  # as in journals that were written when tasks had it
        splits = [(task.kwargs["train"], task.kwargs["test"]) for task in self.tasks if not task.candidate]
        return _digest((first.args, rest, splits))

    def searches(self) -> Iterator[Search]:
        trials = {task.key: task.trial() for task in self.tasks}
        yield _one_round([tuple(trials[key] for key in group.keys) for group in groups_of(self.tasks, self.sharing)])

    def n_trials(self) -> int | None:
        return len(self.tasks) or None

    def examine(self, trial: Trial, evaluation: Evaluation, kept: Evaluation | None) -> None:
        """Print what scikit-learn prints of a fit. Raises `Raised` for an exception that ends the search."""
        if (error := exception_of(evaluation)) is not None:
            raise Raised(error)
        if self.search.verbose > 1 and evaluation.error is None:
            print(cv_line(self._by_key[trial.key], decoded(evaluation), self.search.verbose))

    def split_batch(self, batch: Batch) -> Sequence[Batch]:
        """A fold's candidates apart from another's, since the folds of a batch share samples only.

        On one fold, those that share the fit of the last step stay together. Where there is no other such fit, they are
        divided as far as their results do not depend on it. Where only transformers are shared, each may go alone.
        """
        splits = dict.fromkeys(trial.params["split"] for trial in batch)
        if len(splits) > 1:
            return [tuple(trial for trial in batch if trial.params["split"] == split) for split in splits]
        how, members = self._together(batch)
        if how not in ("shared", "steps"):
            return [batch]
        trials = {trial.key: trial for trial in batch}
        parts = parts_of(members, how, self.sharing, within=self._within(members))
        return [tuple(trials[key] for key in part) for part in parts]

    def _together(self, batch: Batch) -> tuple[str, dict[int, Task]]:
        """How the tasks of a batch are done, see `Group`, "" where that differs; and the tasks by candidate."""
        members = [self._by_key[trial.key] for trial in batch]
        (group, *others) = groups_of(members, self.sharing)
        return "" if others else group.how, {task.candidate: task for task in members}

    @cached_property
    def _by_key(self) -> dict[str, Task]:
        return {task.key: task for task in self.tasks}

    @cached_property
    def _costs(self) -> tuple[dict[int, float], frozenset[int]]:
        return costs_of(self.tasks, self.sharing)

    def _within(self, members: Mapping[int, Task]) -> bool:
        return self._costs[1].issuperset(members)

    def cost(self, trial: Trial) -> float:
        """Seconds, as expected; what candidates have in common in the last step counts with the first of them."""
        return self._costs[0][self._by_key[trial.key].candidate]

    def shared_cost(self, batch: Batch, workers: int) -> float:
        how, members = self._together(batch)
        if how not in ("shared", "steps"):
            return super().shared_cost(batch, workers)
        return shared_cost_of(members, how, self.sharing, within=self._within(members))

    def surprise(self) -> float:
        """None where fits are shared: they are of one kind, so guesses are wrong by one factor, which is no matter."""
        hows = {group.how for group in groups_of(self.tasks, self.sharing)}
        return 1.0 if hows & {"shared", "steps"} else super().surprise()

    def objective(self, worker: WorkerContext) -> Objective:
        data = worker.data
        buffers = [data[name] for name in sorted(data) if name.startswith("buffer")]
        tasks, sharing, config = pickle.loads(data["tasks"].data, buffers=buffers)
        return Evaluator(tasks, sharing, config, worker.buffers)

    def shared_buffers(self, device: str, data: Data, n_workers: int) -> Mapping[str, Spec]:
        """Memory for samples between the steps of a Pipeline."""
        return buffers_for(_room()) if data["steps"][0] else {}


def _room() -> int:
    """Bytes of a node that samples between the steps of a Pipeline may take."""
    return free_memory() // 8


def _one_round(batches: list[Batch]) -> Search:
    yield batches


def answers_here(tasks: Sequence[Task], sharing: Sharing, verbose: int = 0) -> dict[str, Answer]:
    """The answers by key, of tasks that are done in this process, without a study. An error is raised.

    With verbose above 1, a line is printed of each.
    """
    return Evaluator(tasks, sharing, {}).answers(verbose)


class Evaluator:
    """Evaluates batches of folds.

    Args:
        config: scikit-learn's in the process that asked.
        buffers: of the worker, see `Folds.shared_buffers`.
    """

    def __init__(
        self, tasks: Sequence[Task], sharing: Sharing, config: Mapping[str, Any], buffers: SharedArrays = NOTHING
    ):
        self._tasks = {task.key: task for task in tasks}
        self._sharing, self._config, self._buffers = sharing, config, buffers

    @cached_property
    def _keeper(self) -> Keeper:
        return in_memory(self._buffers, _room())

    @cached_property
    def _steps(self) -> SharedSteps:
        return SharedSteps(self._keeper)

    @cached_property
    def _batch_sizes(self) -> dict[str, int]:
        """By task, how many are done together where no batch is divided."""
        groups = groups_of(list(self._tasks.values()), self._sharing)
        return {key: len(group.keys) for group in groups for key in group.keys}

    def _keeper_for(self, group: Group) -> Keeper | None:
        """The keeper where others may have another part of a batch: they need the same samples between steps."""
        if not isinstance(self._tasks[group.keys[0]].estimator, Pipeline):
            return None
        return self._keeper if len(group.keys) < self._batch_sizes[group.keys[0]] else None

    def answers(self, verbose: int = 0) -> dict[str, Answer]:
        """The answers of all tasks. Fits that are done together have their warnings noted together."""
        found: dict[str, Answer] = {}
        for group in groups_of(list(self._tasks.values()), self._sharing):
            tasks = {key: self._tasks[key] for key in group.keys}
            with recording() as told:
                for task, what in self._answers(group, tasks):
                    del tasks[task.key]
                    seen = told()
                    found[task.key] = Answer(what, seen, what["fit_error"] is None and converged(seen))
                    if verbose > 1:
                        print(cv_line(task, what, verbose))
        return found

    def __call__(self, batch: Batch) -> Iterator[Evaluation]:
        with sklearn.config_context(**self._config):
            for group in groups_of([self._tasks[trial.key] for trial in batch], self._sharing):
                tasks = {key: self._tasks[key] for key in group.keys}
                answers = self._answers(group, tasks)
                try:
                    while True:
                        answer, seen = noting(lambda answers=answers: next(answers, None))  # type: ignore[misc]
                        if answer is None:
                            break
                        yield encoded(tasks.pop(answer[0].key).key, answer[1], seen)
                except Exception as error:  # error_score="raise", or a scorer: the process that asked raises it
                    for key in tasks:
                        yield raised(key, error)

    def _one_by_one(self, tasks: Mapping[str, Task]) -> Iterator[tuple[Task, dict[str, Any]]]:
        for task in list(tasks.values()):
            estimator = clone(task.estimator)
            # A step that writes to the training samples would find others in their place when these are scored.
            written = task.kwargs["return_train_score"] and may_write(configured(estimator, task.parameters))
            with nullcontext() if written else self._steps.of(estimator, task.split):
                what = _validation._fit_and_score(estimator, *task.args, **task.kwargs)
            yield task, what

    def _answers(self, group: Group, tasks: Mapping[str, Task]) -> Iterator[tuple[Task, dict[str, Any]]]:
        """Together as far as they can be, the others one by one."""
        if group.how == "grid":
            listed = list(tasks.values())
            try:
                yield from solved(listed)
            except (ValueError, TypeError, MemoryError) as error:  # unusable samples: each fit says so in its own way
                if listed[0].kwargs["error_score"] == "raise":
                    raise
                log.info("not solved as a grid: %s", error)
        elif group.how == "shared":
            members = {task.candidate: task for task in tasks.values()}
            yield from walked(members, graph_of(members, self._sharing), self._keeper_for(group))
        yield from self._one_by_one(tasks)  # what is left of them
