"""The study of a search: a trial is one candidate on one fold."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from types import FunctionType
from typing import Any

import cloudpickle
import joblib
import numpy as np
import sklearn
from joblib.hashing import NumpyHasher
from sklearn.base import clone
from sklearn.metrics._scorer import _MultimetricScorer
from sklearn.model_selection import _validation
from sklearn.pipeline import Pipeline

from mpitune import svm
from mpitune.devices.choose import free_memory
from mpitune.experiment import COST_UNCERTAINTY, Data, Experiment, Objective, Reporting, Scheduling, WorkerContext
from mpitune.memory.cache import Cache, buffers_for, in_memory
from mpitune.memory.shared_arrays import NOTHING, SharedArrays, Spec
from mpitune.processes.process import packed
from mpitune.settings import without_address
from mpitune.sklearn import callbacks
from mpitune.sklearn.answers import (
    Answer,
    Raised,
    call_hooks,
    converged,
    cv_line,
    decoded,
    encoded,
    exception_of,
    noting,
    raised,
)
from mpitune.sklearn.fit_graph import configured
from mpitune.sklearn.graph_walk import SharedSteps, may_write, walked
from mpitune.sklearn.grids import solved
from mpitune.sklearn.groups import Group, Sharing, costs_of, graph_of, groups_of, is_early, parts_of, shared_cost_of
from mpitune.sklearn.limit import SearchLimit
from mpitune.sklearn.task import Task
from mpitune.storage.lines import read_header
from mpitune.trial import Batch, Evaluation, Rounds, Trial

log = logging.getLogger(__name__)

Config = Callable[[], AbstractContextManager[Any]]


def _described(estimator: Any) -> str:
    """What distinguishes estimators in a results folder: the text, and a digest of what the text may not show."""
    try:
        text = estimator.__repr__(N_CHAR_MAX=100_000)
    except TypeError:  # it is a class, or has a `__repr__` of its own
        text = repr(estimator)
    return f"{without_address(text)} ({_digest(estimator)})"


class _Hasher(NumpyHasher):
    """As `joblib.hash`, without callbacks: each run has others.

    joblib sorts what Python can sort. Of other sets and keys the order is another one in each process.
    """

    def save(self, obj: Any) -> None:
        if type(obj) is dict and "_skl_callbacks" in obj:
            obj = {name: value for name, value in obj.items() if name != "_skl_callbacks"}
        if type(obj) is dict and len(set(map(type, obj))) > 1:
            obj = "dict", sorted((_digest(key), _digest(value)) for key, value in obj.items())
        elif type(obj) in (set, frozenset):
            obj = type(obj).__name__, sorted(map(_digest, obj))
        super().save(obj)


class _ValuesHasher(_Hasher):
    """Of functions and classes without a name in a module, such as lambdas, what they hold: `called` has their code."""

    def save(self, obj: Any) -> None:
        if isinstance(obj, FunctionType) and "<" in obj.__qualname__:
            obj = obj.__defaults__, obj.__kwdefaults__, [cell.cell_contents for cell in obj.__closure__ or ()]
        elif isinstance(obj, type) and "<" in obj.__qualname__:
            obj = obj.__name__
        super().save(obj)


def _digest(thing: Any) -> str:
    for hasher in (_Hasher, _ValuesHasher):
        try:
            return str(hasher(hash_name="sha1").hash(thing))
        except (pickle.PicklingError, TypeError, AttributeError, ValueError):  # it holds a lambda, for instance
            continue
    return str(joblib.hash(cloudpickle.dumps(thing), hash_name="sha1"))


@dataclass(frozen=True)
class Folds(Experiment):
    """Candidates on folds; `search` and `tasks` are on rank 0 alone, workers have them from the shared data."""

    search: Any = field(default=None, metadata={"changes_results": False})
    tasks: Sequence[Task] = field(default=(), metadata={"changes_results": False})
    limit: SearchLimit | None = field(default=None, metadata={"changes_results": False})
    estimator: str = ""
    scoring: str = ""
    cv: str = ""
    fit_params: str = ""
    error_score: str = ""
    return_train_score: bool = False

    @classmethod
    def of(cls, search: Any, tasks: Sequence[Task], limit: SearchLimit | None = None) -> Folds:
        """The study of the tasks of a search."""
        first = tasks[0].kwargs
        splits = _splits(tasks)
        given = {name: value for name, value in first["fit_params"].items() if value is not None}
        return cls(
            search,
            tasks,
            limit,
            estimator=_described(search.estimator) + _within(search),
            scoring=without_address(repr(search.scoring)),
            cv=f"{len(splits)} splits ({_digest(splits)})",
            fit_params=f"{', '.join(given) or 'none'} ({_digest((given, first['score_params']))})",
            error_score=str(first["error_score"]),
            return_train_score=first["return_train_score"],
        )

    @cached_property
    def sharing(self) -> Sharing:
        sharing: Sharing = self.search.sharing
        return sharing

    def __reduce__(self) -> tuple[Any, ...]:
        return Folds, ()

    def preload(self) -> tuple[str, ...]:
        """What evaluates the tasks, and the modules of the estimator's parts that are of known libraries."""
        modules = {"mpitune.sklearn.graph_walk"}  # which imports all that evaluates tasks
        for task in self.tasks[:1]:
            parts = [task.estimator, *task.estimator.get_params(deep=True).values()]
            modules.update(type(part).__module__ for part in parts)
        own = {name for name in modules if name.split(".")[0] in ("sklearn", "lightgbm", "xgboost", "mpitune")}
        if any(name.startswith("sklearn.svm.") for name in own) and svm.is_compiled():
            own.add("mpitune.svm.candidates")
        return tuple(sorted(own))

    def data(self) -> Data:
        """The tasks, pickled; the arrays in them apart, so that workers see those of X and y without a copy."""
        buffers: list[pickle.PickleBuffer] = []
        what = list(self.tasks), self.sharing, _config()
        content = packed(what, buffers.append)
        steps = isinstance(self.tasks[0].estimator, Pipeline)
        arrays = {"tasks": np.frombuffer(content, np.uint8), "steps": np.array([steps])}
        for number, buffer in enumerate(buffers):
            arrays[f"buffer{number:06}"] = np.asarray(buffer.raw(), np.uint8)
        return arrays

    def digest(self, data: Data) -> str:
        """A digest of samples and labels: pickles of equal things may differ."""
        return self._data_digest

    @cached_property
    def _data_digest(self) -> str:
        return _digest(self.tasks[0].args)

    def folder_in(self, results: Path) -> Path:
        """That folder, or one of its own in it where it holds a study of other data, as of another outer fold."""
        header = read_header(results)
        theirs = {} if header is None else header["settings"]
        other = "cv" in theirs and theirs.get("data_sha256") != self._data_digest  # else it is of no search
        return results / f"data-{self._data_digest[:12]}" if other else results

    def called(self) -> Mapping[str, Any]:
        values = [value for task in self.tasks if not task.split for value in task.parameters.values()]
        parameters = [value for value in values if hasattr(value, "__dict__")]  # plain ones are the trials' own
        return {"estimator": self.search.estimator, "scoring": self.search.scoring, "parameters": parameters}

    def searches(self) -> Iterator[Rounds]:
        trials = {task.key: task.trial() for task in self.tasks}
        yield _one_round([tuple(trials[key] for key in group.keys) for group in groups_of(self.tasks, self.sharing)])

    def scheduling(self) -> Scheduling:
        return Scheduling(
            n_trials=len(self.tasks) or None,
            cost=self.cost,
            cost_uncertainty=self._cost_uncertainty(),
            split_batch=self.split_batch,
            shared_cost=self.shared_cost,
            shared_buffers=self.shared_buffers,
            preload=self.preload(),
            enough=(lambda: False) if self.limit is None else self.limit.is_reached,
        )

    def reporting(self) -> Reporting:
        """Its goal is the score that the search refits for. There may be none: of several scores, or for a function."""
        goal = ""
        if self.tasks and not callable(self.search.refit):
            several = isinstance(self.tasks[0].kwargs["scorer"], _MultimetricScorer)
            name = "test_scores" if not several else f"test_scores:{self.search.refit}"
            goal = f"maximize {name}" if not several or isinstance(self.search.refit, str) else ""
        return Reporting(goal, stopped=lambda: "" if self.limit is None else self.limit.reached)

    def examine(self, trial: Trial, evaluation: Evaluation, kept: Evaluation | None) -> None:
        """Print what scikit-learn prints of a fit. Raises `Raised` for an exception that ends the search."""
        if (error := exception_of(evaluation)) is not None:
            raise Raised(error)
        if self.limit is not None and self.limit.stop_when is not None and evaluation.error is None:
            self.limit.add(self._by_key[trial.key], decoded(evaluation))
        if self.search.verbose > 1 and evaluation.error is None:
            print(cv_line(self._by_key[trial.key], decoded(evaluation), self.search.verbose))

    def hear(self, content: bytes) -> None:
        callbacks.deliver(content)

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
        parts = parts_of(members, how, self.sharing, within=self._costs[1].issuperset(members))
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

    def cost(self, trial: Trial) -> float:
        """In fits of a step."""
        return self._costs[0][self._by_key[trial.key].candidate]

    def shared_cost(self, batch: Batch, workers: int) -> float:
        how, members = self._together(batch)
        if how not in ("shared", "steps"):
            return max(map(self.cost, batch))
        return shared_cost_of(members, how, self.sharing)

    def _cost_uncertainty(self) -> float:
        """None where fits are shared: a batch that is divided too early computes its dearest fit again."""
        hows = {group.how for group in groups_of(self.tasks, self.sharing)} if self.tasks else set()
        return 1.0 if hows & {"shared", "steps"} else COST_UNCERTAINTY

    def objective(self, worker: WorkerContext) -> Objective:
        if any(task.kwargs.get("callback_ctx") for task in self.tasks):  # this process asked, and has the callbacks
            return Evaluator(self.tasks, self.sharing, _config(), worker.buffers)
        data = worker.data
        buffers = [data[name] for name in sorted(data) if name.startswith("buffer")]
        with callbacks.relayed():
            tasks, sharing, config = pickle.loads(data["tasks"].data, buffers=buffers)
        return Evaluator(tasks, sharing, config, worker.buffers, worker.tell)

    def shared_buffers(self, device: str, data: Data, n_workers: int) -> Mapping[str, Spec]:
        """Memory for samples between the steps of a Pipeline."""
        return buffers_for(_room()) if data["steps"][0] else {}


def _config() -> Config:
    """scikit-learn's configuration of now. A library that has put functions in place of scikit-learn's has its own."""
    return partial(sklearn.config_context, **sklearn.get_config())


def _within(search: Any) -> str:
    return " share='tolerance'" if search.share == "tolerance" else ""


def _splits(tasks: Sequence[Task]) -> list[tuple[Any, Any]]:
    return [(task.kwargs["train"], task.kwargs["test"]) for task in tasks if not task.candidate]


def _room() -> int:
    """Bytes of a node that samples between the steps of a Pipeline may take."""
    return free_memory() // 8


def _one_round(batches: list[Batch]) -> Rounds:
    yield batches


def answers_here(
    tasks: Sequence[Task],
    sharing: Sharing,
    verbose: int = 0,
    enough: Callable[[], bool] = lambda: False,
    done: Callable[[Task, Mapping[str, Any]], None] = lambda task, what: None,
) -> dict[str, Answer]:
    """The answers by key, of tasks of a search that are done in this process, without a study. An error is raised.

    It is asked after each fit whether that is `enough`, so that no other begins. Tasks that are done together have
    answers all or none, so it changes no result who does the others. What is done is told before that.
    """
    return Evaluator(tasks, sharing).answers(verbose, enough, done)


class Evaluator:
    """Evaluates batches of folds. config: of the process that asked. tell: see `callbacks.relayed`."""

    def __init__(
        self,
        tasks: Sequence[Task],
        sharing: Sharing,
        config: Config = nullcontext,
        buffers: SharedArrays = NOTHING,
        tell: Callable[[bytes], None] = lambda content: None,
    ):
        self._tasks, self._tell = {task.key: task for task in tasks}, tell
        self._sharing, self._config, self._buffers = sharing, config, buffers

    @cached_property
    def _cache(self) -> Cache:
        return in_memory(self._buffers, _room())

    @cached_property
    def _steps(self) -> SharedSteps:
        return SharedSteps(self._cache)

    @cached_property
    def _batch_sizes(self) -> dict[str, int]:
        """By task, how many are done together where no batch is divided."""
        groups = groups_of(list(self._tasks.values()), self._sharing)
        return {key: len(group.keys) for group in groups for key in group.keys}

    def _cache_for(self, group: Group) -> Cache | None:
        """The cache where others may have another part of a batch: they need the same samples between steps."""
        if not isinstance(self._tasks[group.keys[0]].estimator, Pipeline):
            return None
        return self._cache if len(group.keys) < self._batch_sizes[group.keys[0]] else None

    def answers(
        self, verbose: int, enough: Callable[[], bool], done: Callable[[Task, Mapping[str, Any]], None]
    ) -> dict[str, Answer]:
        """The answers of all tasks, or of those groups that are done when there are `enough`."""
        known: dict[str, Answer] = {}
        for group in self._groups(list(self._tasks.values())):
            tasks = {key: self._tasks[key] for key in group.keys}
            answers: dict[str, Answer] = {}
            for (task, what), seen in noting(self._answers(group, tasks)):
                del tasks[task.key]
                answers[task.key] = Answer(what, seen, what["fit_error"] is None and converged(seen))
                if tasks and enough():
                    return known
            if verbose > 1:
                for key, answer in answers.items():
                    print(cv_line(self._tasks[key], answer.what, verbose))
            known.update(answers)
            for key, answer in answers.items():
                done(self._tasks[key], answer.what)
            if enough():
                break
        return known

    def __call__(self, batch: Batch) -> Iterator[Evaluation]:
        with self._config(), callbacks.relayed(self._tell) as messages:
            for group in self._groups([self._tasks[trial.key] for trial in batch]):
                tasks = {key: self._tasks[key] for key in group.keys}
                try:
                    for (task, what), seen in noting(self._answers(group, tasks)):
                        yield replace(encoded(tasks.pop(task.key).key, what, seen), messages=messages())
                except Exception as error:  # error_score="raise", or a scorer: the process that asked raises it
                    for key in tasks:
                        yield replace(raised(key, error), messages=messages())

    def _groups(self, tasks: Sequence[Task]) -> Iterator[Group]:
        """Those of the tasks. Of a grid tasks are done alone until its solver is compiled."""
        for group in groups_of(tasks, self._sharing):
            keys = list(group.keys)
            while keys and is_early(self._tasks[keys[0]], self._sharing):
                yield Group((keys.pop(0),), "alone")
            if keys:
                yield Group(tuple(keys), group.how)

    def _one_by_one(self, tasks: Mapping[str, Task]) -> Iterator[tuple[Task, dict[str, Any]]]:
        for task in list(tasks.values()):
            estimator = clone(task.estimator)
            # A step that writes to the training samples would find others in their place when these are scored.
            written = task.kwargs["return_train_score"] and may_write(configured(estimator, task.parameters))
            alone = written or not self._sharing.share or task.heard
            with nullcontext() if alone else self._steps.of(estimator, task.split):
                what = _validation._fit_and_score(estimator, *task.args, **task.kwargs)
            yield task, what

    def _answers(self, group: Group, tasks: Mapping[str, Task]) -> Iterator[tuple[Task, dict[str, Any]]]:
        """Together as far as they can be, the others one by one."""
        for task, what in self._together(group, tasks):
            try:
                call_hooks(task)
            except Exception:  # which a single fit notes as its own error
                continue
            yield task, what
        yield from self._one_by_one(tasks)  # what is left of them

    def _together(self, group: Group, tasks: Mapping[str, Task]) -> Iterator[tuple[Task, dict[str, Any]]]:
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
            yield from walked(members, graph_of(members, self._sharing), self._cache_for(group))
