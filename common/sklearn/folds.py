"""The study of a search: a trial is one candidate on one fold."""

from __future__ import annotations

import logging
import numbers
import pickle
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import cloudpickle
import joblib
import numpy as np
import sklearn
from sklearn.base import clone
from sklearn.metrics._scorer import _MultimetricScorer
from sklearn.model_selection import _validation

from common.experiment import Data, Experiment, Objective, WorkerContext
from common.settings import without_address
from common.sklearn.grids import (
    Group,
    Sharing,
    costs_of,
    graph_of,
    groups_of,
    parts_of,
    shared_cost_of,
    solved,
)
from common.sklearn.shared_steps import SharedSteps
from common.sklearn.walk import walked
from common.sklearn.warned import Seen, converged, issue, noting, recording
from common.trial import Batch, Evaluation, Outcome, Result, Search, Trial

log = logging.getLogger(__name__)

_APART = ("candidate_progress", "split_progress", "parameters", "train", "test", "caller", "callback_ctx", "scorer")


@dataclass
class Task:
    """A call of scikit-learn's function that fits one candidate on one fold and scores it.

    estimator: unfitted, the same in all tasks of a search; who fits it makes a copy.
    """

    estimator: Any
    args: tuple[Any, ...]  # X, y
    kwargs: dict[str, Any]

    @cached_property
    def candidate(self) -> int:
        return int(self.kwargs["candidate_progress"][0])

    @cached_property
    def split(self) -> int:
        return int(self.kwargs["split_progress"][0])

    @cached_property
    def key(self) -> str:
        return f"c{self.candidate:05}/f{self.split}"

    def trial(self) -> Trial:
        parameters = {name: _scalar(value) for name, value in (self.kwargs["parameters"] or {}).items()}
        return Trial(self.key, {"split": self.split, **{f"param_{name}": value for name, value in parameters.items()}})


def _scalar(value: Any) -> float | int | str:
    """A parameter as a journal can hold it."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real) and np.isfinite(float(value)):
        return float(value)
    return value if type(value) is str else without_address(repr(value))[:2000]


def _described(estimator: Any) -> str:
    """What distinguishes estimators in a results folder: the text, and a digest of what the text may not show."""
    text = without_address(repr(estimator) if isinstance(estimator, type) else estimator.__repr__(N_CHAR_MAX=100_000))
    try:
        digest = joblib.hash(estimator, hash_name="sha1")
    except (pickle.PicklingError, TypeError, AttributeError):  # it holds a lambda, for instance
        digest = joblib.hash(cloudpickle.dumps(estimator), hash_name="sha1")
    return f"{text} ({digest})"


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
        arrays = {"tasks": np.frombuffer(content, np.uint8)}
        for number, buffer in enumerate(buffers):
            arrays[f"buffer{number:06}"] = np.asarray(buffer.raw(), np.uint8)
        return arrays

    def digest(self, data: Data) -> str:
        """A digest of samples, labels, other parameters of `fit`, and splits: pickles of equal things may differ."""
        first = self.tasks[0]
        rest = {name: value for name, value in first.kwargs.items() if name not in _APART}
        splits = [(task.kwargs["train"], task.kwargs["test"]) for task in self.tasks if not task.candidate]
        return str(joblib.hash((first.args, rest, splits), hash_name="sha1"))

    def searches(self) -> Iterator[Search]:
        trials = {task.key: task.trial() for task in self.tasks}
        yield _one_round([tuple(trials[key] for key in group.keys) for group in groups_of(self.tasks, self.sharing)])

    def n_trials(self) -> int | None:
        return len(self.tasks) or None

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
        parts = parts_of(members, how, self.sharing, self._within(members))
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
        return shared_cost_of(members, how, self.sharing, self._within(members))

    def surprise(self) -> float:
        """None where fits are shared: they are of one kind, so guesses are wrong by one factor, which is no matter."""
        hows = {group.how for group in groups_of(self.tasks, self.sharing)}
        return 1.0 if hows & {"shared", "steps"} else super().surprise()

    def objective(self, worker: WorkerContext) -> Objective:
        data = worker.data
        buffers = [data[name] for name in sorted(data) if name.startswith("buffer")]
        tasks, sharing, config = pickle.loads(data["tasks"].data, buffers=buffers)
        return Evaluator(tasks, sharing, config)


def _one_round(batches: list[Batch]) -> Search:
    yield batches


@dataclass(frozen=True, slots=True)
class Answer:
    """What a task came to.

    Attributes:
        what: as scikit-learn's function that fits and scores says it.
        seen: warnings.
        converged: whether the fit came to its end, without failure or `ConvergenceWarning`.
    """

    what: dict[str, Any]
    seen: Seen
    converged: bool


def answers_here(tasks: Sequence[Task], sharing: Sharing) -> dict[str, Answer]:
    """The answers by key, of tasks that are done in this process, without a study. An error is raised."""
    return Evaluator(tasks, sharing, {}).answers()


class Evaluator:
    """Evaluates batches of folds.

    Args:
        config: scikit-learn's in the process that asked.
    """

    def __init__(self, tasks: Sequence[Task], sharing: Sharing, config: Mapping[str, Any]):
        self._tasks = {task.key: task for task in tasks}
        self._sharing, self._config = sharing, config
        self._steps = SharedSteps()

    def answers(self) -> dict[str, Answer]:
        """Of all tasks; warnings of fits that are done together are noted at one go."""
        found: dict[str, Answer] = {}
        for group in groups_of(list(self._tasks.values()), self._sharing):
            tasks = {key: self._tasks[key] for key in group.keys}
            with recording() as told:
                for task, what in self._answers(group, tasks):
                    del tasks[task.key]
                    seen = told()
                    found[task.key] = Answer(what, seen, what["fit_error"] is None and converged(seen))
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
                except Exception:  # error_score="raise": the process that asked for it raises it
                    for key in tasks:
                        yield Evaluation(key, error=traceback.format_exc())

    def _one_by_one(self, tasks: Mapping[str, Task]) -> Iterator[tuple[Task, dict[str, Any]]]:
        for task in list(tasks.values()):
            estimator = clone(task.estimator)
            with self._steps.of(estimator, task.split):
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
            yield from walked(members, graph_of(members, self._sharing))
        yield from self._one_by_one(tasks)  # what is left of them


def encoded(key: str, what: Mapping[str, Any], seen: Seen) -> Evaluation:
    """scikit-learn's answer as numbers: NaN, which a journal has no value for, is the name in the array "nan"."""
    values: dict[str, float] = {"converged": float(converged(seen))}
    arrays: dict[str, np.ndarray] = {"warnings": np.array(seen)} if seen else {}
    for name, value in what.items():
        if isinstance(value, dict):
            values.update({f"{name}:{part}": float(score) for part, score in value.items()})
        elif isinstance(value, numbers.Real):
            values[name] = float(value)
        elif value is not None:
            arrays[name] = np.array(str(value))
    if nan := [name for name, value in values.items() if np.isnan(value)]:
        arrays["nan"] = np.array(nan)
    return Evaluation(key, {name: value for name, value in values.items() if name not in nan}, arrays)


def decoded(result: Result) -> dict[str, Any]:
    """The inverse of `encoded`."""
    what: dict[str, Any] = {"fit_error": str(result.arrays["fit_error"]) if "fit_error" in result.arrays else None}
    nan = result.arrays["nan"].tolist() if "nan" in result.arrays else []
    for name, value in {**result.values, **dict.fromkeys(nan, float("nan"))}.items():
        if name == "converged":
            continue
        whole, _, part = name.partition(":")
        if part:
            what.setdefault(whole, {})[part] = value
        else:
            what[name] = int(value) if name == "n_test_samples" else value
    return what


def answers_of(tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> dict[str, Answer]:
    """The answers of a study, by key; a trial that failed (killed, too slow) has `error_score`, or raises it."""
    by_key = {task.key: task for task in tasks}
    found = {}
    for trial, result in outcomes:
        if result.failed:
            found[trial.key] = Answer(_failed(by_key[trial.key], result), [], False)
            continue
        what = decoded(result)
        seen = [(category, text) for category, text in result.arrays.get("warnings", np.empty((0, 2))).tolist()]
        found[trial.key] = Answer(what, seen, what["fit_error"] is None and result.values["converged"] == 1)
    return found


def converged_of(tasks: Sequence[Task], answers: Mapping[str, Answer]) -> np.ndarray:
    """Whether each fit came to its end, bool (n_candidates, n_splits): without failure or `ConvergenceWarning`."""
    found = np.zeros((1 + max(task.candidate for task in tasks), 1 + max(task.split for task in tasks)), np.bool_)
    for task in tasks:
        found[task.candidate, task.split] = answers[task.key].converged
    return found


def results_of(tasks: Sequence[Task], answers: Mapping[str, Answer]) -> list[dict[str, Any]]:
    """What scikit-learn's function would say, in the order of the tasks. Warnings are issued here, each once."""
    issue(one for task in tasks for one in answers[task.key].seen)
    return [answers[task.key].what for task in tasks]


def _failed(task: Task, result: Result) -> dict[str, Any]:
    error_score, scorer = task.kwargs["error_score"], task.kwargs["scorer"]
    cause = result.error or ""
    if error_score == "raise":
        name, _, text = cause.strip().splitlines()[-1].partition(": ")
        module, _, plain = name.rpartition(".")
        kind = getattr(sys.modules.get(module or "builtins"), plain, None)
        known = isinstance(kind, type) and issubclass(kind, Exception)
        raise (kind(text) if known else RuntimeError(cause)) from RuntimeError(cause)  # type: ignore[misc]
    scores = dict.fromkeys(scorer._scorers, error_score) if isinstance(scorer, _MultimetricScorer) else error_score
    what = {
        "fit_error": cause,
        "test_scores": scores,
        "n_test_samples": len(np.atleast_1d(task.kwargs["test"])),
        "fit_time": result.seconds,
        "score_time": 0.0,
    }
    return {**what, "train_scores": scores} if task.kwargs["return_train_score"] else what
