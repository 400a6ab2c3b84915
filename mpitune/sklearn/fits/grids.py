"""Grids that are fitted at once: of `sklearn.svm.SVC` and `mpitune.svm.SVC`, alone or as the last step of a Pipeline.

`mpitune.svm.fit_grid` does it for any kernel that has a name. It is given the samples of each split as the objects that
the scorers will pass to the model. For these very objects a model answers from what the grid has computed.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.base import clone
from sklearn.metrics._scorer import _PassthroughScorer
from sklearn.pipeline import Pipeline
from sklearn.svm import SVC  # now, as `mpitune --sklearn` gives the name another meaning
from sklearn.utils.metaestimators import _safe_split

from mpitune import svm
from mpitune.devices.choose import free_memory, workers_here
from mpitune.sklearn.fits.answers import FittedModel, answer, standard
from mpitune.sklearn.fits.fit_graph import cloned
from mpitune.sklearn.fits.task import Task
from mpitune.sklearn.sharing.family import Family, Settings, SplitPart

log = logging.getLogger(__name__)


class InCommon:
    """What the grids of one search have in common in a process."""

    def __init__(self) -> None:
        self.of_solver: dict[str, Any] = {}  # as `mpitune.svm.fit_grid` keeps it
        self._splits: dict[tuple[int, bool], tuple[Any, Any]] = {}

    @cached_property
    def memory(self) -> int:
        """This process's part of the bytes that were free when the first grid began."""
        return free_memory() // 2 // workers_here()

    def split(self, task: Task) -> tuple[Any, Any]:
        """Samples of a task's split, and their labels: each those of its training and of its validation part."""
        key = task.split, task.parameters.get("kernel", task.estimator.kernel) == "precomputed"
        if key not in self._splits:
            (X, y), train, test = task.args[:2], task.kwargs["train"], task.kwargs["test"]
            example = clone(task.estimator).set_params(**cloned(task.parameters))
            X_train, y_train = _safe_split(example, X, y, train)
            X_test, y_test = _safe_split(example, X, y, test, train)
            self._splits[key] = (X_train, X_test), (y_train, y_test)
        return self._splits[key]


def method_of(estimator: Any, kept: InCommon | None = None) -> Callable[..., Iterator[Any]] | None:
    """What fits a grid of this estimator, see `mpitune.svm.fit_grid`; None for one that is no SVC."""
    own = sys.modules.get("mpitune.svm.svc")  # an estimator of that class has imported it; numba takes half a second
    if type(estimator) is SVC or (own is not None and type(estimator) is own.SVC):
        return partial(_fit_grid_here, InCommon() if kept is None else kept, estimator)
    return None


def _fit_grid_here(kept: InCommon, *arguments: Any, **options: Any) -> Iterator[Any]:
    return svm.fit_grid(*arguments, **{**options, "memory": kept.memory, "kept": kept.of_solver})


def why_no_grid(task: Task) -> str | None:
    """Why a task is not done as part of a grid; None where it is."""
    steps, last = parted(task)
    estimator = last_step(task.estimator)
    if method_of(estimator) is None:
        return f"{type(estimator).__name__} is not solved as a grid"
    if last is None:
        return "a step of the Pipeline is itself searched"
    if isinstance(estimator, SVC):
        kernel = last.get("kernel", estimator.kernel)
        if callable(kernel):
            return "the kernel is a Python function"
        if kernel == "precomputed" and steps is not None:
            return "a precomputed kernel comes out of a Pipeline"
        if scipy.sparse.issparse(task.args[0]):
            return "the samples are sparse"
    if task.given_to_fit:
        return f"fit is given {', '.join(task.given_to_fit)}"
    if steps is not None and not standard(task.kwargs["scorer"]):
        return "the scorer is a function of its own, which may look into the Pipeline"
    return None


def last_step(estimator: Any) -> Any:
    """The estimator that a Pipeline ends with, or the estimator itself."""
    return estimator.steps[-1][1] if isinstance(estimator, Pipeline) else estimator


def refitted_as_solved(estimator: Any) -> Any:
    """Let an unfitted estimator whose candidates are solved as a grid be fitted by the same solver; it is changed.

    An SVC of scikit-learn is still one afterwards; it does not wait for the solver to be compiled.
    """
    last = last_step(estimator)
    if type(last) is SVC and svm.is_compiled():
        last.__class__ = svm.Refit
    return estimator


class Scored(SVC):
    """scikit-learn's, whose checks of labels take a quarter of a small fit: integers and texts need none."""

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Mean accuracy."""
        if sample_weight is None and isinstance(y, np.ndarray) and y.ndim == 1 and len(y) and y.dtype.kind in "biuU":
            return int(np.count_nonzero(self.predict(X) == y)) / len(y)
        return float(super().score(X, y, sample_weight))


Scored.__name__ = SVC.__name__  # in messages


def model_to_fit(task: Task) -> Any:
    """A copy of a task's estimator for a fit of its own: as `Scored` where only its own score is asked for."""
    model = clone(task.estimator)
    if type(model) is SVC and type(task.kwargs["scorer"]) is _PassthroughScorer:
        model.__class__ = Scored
    return model


def parted(task: Task) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The parameters of a candidate: those of the transformers, and those of the last step.

    The first is None where there are no transformers, the second where a step of the Pipeline is itself searched.
    """
    if not isinstance(task.estimator, Pipeline):
        return None, task.parameters
    names = [name for name, _ in task.estimator.steps]
    prefix = f"{names[-1]}__"
    steps = {name: value for name, value in task.parameters.items() if not name.startswith(prefix)}
    last = {name[len(prefix) :]: value for name, value in task.parameters.items() if name.startswith(prefix)}
    return steps, None if steps.keys() & {"steps", *names} else last


def solved(tasks: Sequence[Task], kept: InCommon) -> Iterator[tuple[Task, dict[str, Any]]]:
    """(task, scikit-learn's answer) of the tasks of one "grid"; what is not solved is left out."""
    first, begin = tasks[0], time.perf_counter()
    by_split = {task.split: task for task in tasks}
    candidates = {task.candidate: task.parameters for task in tasks}
    task_of = {(task.candidate, task.split): task for task in tasks}
    parts, labels = zip(*map(kept.split, by_split.values()), strict=True)
    splits = [(task.kwargs["train"], task.kwargs["test"]) for task in by_split.values()]
    weight = first.kwargs["fit_params"].get("sample_weight")
    shared_seconds = (time.perf_counter() - begin) / len(tasks)
    method, numbers, names = method_of(first.estimator, kept), list(candidates), list(by_split)
    assert method is not None
    for fitted in method(list(candidates.values()), *first.args[:2], splits, sample_weight=weight, parts=parts):
        task = task_of.get((numbers[fitted.candidate], names[fitted.split]))
        if task is not None:
            result = FittedModel(fitted.model, fitted.error, fitted.seconds + shared_seconds)
            yield task, answer(task, result, parts[fitted.split], labels[fitted.split])


class WholeGrid(Family):
    """An SVC at the end of a Pipeline: its solver takes whatever candidates differ in."""

    shared = frozenset()
    single = True

    def shares(self, name: str) -> bool:
        return True

    def parts(self, model: Any, settings: Settings) -> list[list[int]]:
        return [list(range(len(settings)))]

    def fit(self, model: Any, settings: Settings, part: SplitPart) -> list[Any]:
        method = method_of(model)
        assert method is not None
        X, y, weight, splits = _joined(part)
        models: list[Any] = [None] * len(settings)
        samples = [(part.X if part.X_train is None else part.X_train, part.X_test)]
        for fitted in method(
            [cloned(setting) for setting in settings], X, y, splits, sample_weight=weight, parts=samples
        ):
            models[fitted.candidate] = fitted.model if fitted.error is None else None
        return models


WHOLE_GRID = WholeGrid()


def family_of_grid(estimator: Any) -> Family | None:
    """The family of an SVC whose kernel has a name; None for any other estimator."""
    kernel = getattr(estimator, "kernel", None) if isinstance(estimator, SVC) else None
    return None if method_of(estimator) is None or callable(kernel) or kernel == "precomputed" else WHOLE_GRID


def _joined(part: SplitPart) -> tuple[Any, Any, Any, list[tuple[np.ndarray, np.ndarray]]]:
    """Training and validation samples below each other, their labels and weights, and the split."""
    n_train, n_test = part.X.shape[0], part.X_test.shape[0]
    if scipy.sparse.issparse(part.X):
        X = scipy.sparse.vstack((part.X, part.X_test), format="csr")
    else:
        X = np.concatenate([np.asarray(part.X), np.asarray(part.X_test)])
    y = np.concatenate([np.asarray(part.y), np.asarray(part.y_test)])
    weight = None if part.weight is None else np.concatenate([np.asarray(part.weight), np.ones(n_test)])
    return X, y, weight, [(np.arange(n_train), np.arange(n_train, n_train + n_test))]
