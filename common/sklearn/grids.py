"""Estimators that fit a whole grid at once, and which tasks are done together.

The protocol is one method of an estimator:

    fit_grid(candidates, X, y, splits, sample_weight=None, parts=None)

It yields, in any order, one object for each candidate (parameters as for `set_params`) and split (indices of training
and validation samples), with the attributes

    candidate, split    their numbers
    model               a fitted estimator, or None
    error               None, or the exception that `fit` would have raised
    seconds             the candidate's part of the time taken

`parts` has, for each split, the objects with its training and validation samples that the scorers will ask the model
about; a model may answer for these very objects from what the grid has computed. For `sklearn.svm.SVC` and
`kernel_svm.SVC`, alone or as the last step of a Pipeline, `kernel_svm.fit_grid` does it for any kernel that has a name.
"""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import joblib
import numpy as np
import scipy.sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics._scorer import _BaseScorer, _MultimetricScorer, _PassthroughScorer
from sklearn.model_selection import _validation
from sklearn.pipeline import Pipeline
from sklearn.svm import SVC  # now, as `common.accelerate` gives the name another meaning
from sklearn.utils import _safe_indexing
from sklearn.utils.metaestimators import _safe_split

import kernel_svm
from common.cluster.devices import free_memory, workers_here


@dataclass(frozen=True)
class Group:
    """Tasks, by key, that one worker does together.

    Attributes:
        grid: by the protocol.
    """

    keys: tuple[str, ...]
    grid: bool


def groups_of(tasks: Sequence[Any], accelerate: bool) -> list[Group]:
    """The tasks (see `folds.Task`) in groups: those of a grid, those with equal transformers, single ones."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for task in tasks:
        grid = accelerate and why_not(task) is None
        steps, last = _parted(task)
        shared: tuple[Any, ...] = (task.key,)
        if grid:
            # Without transformers all folds have the samples in common; candidates of one gamma share a kernel.
            other = {name: value for name, value in last.items() if name != "C"}
            shared = (_hash(other),) if steps is None else (_hash(steps), task.split)
        elif steps is not None:
            shared = (_hash(steps), task.split)
        groups.setdefault((grid, *shared), []).append(task.key)
    return [Group(tuple(keys), grid) for (grid, *_), keys in groups.items()]


def why_not(task: Any) -> str | None:
    """Why a task is not done as part of a grid; None where it is."""
    steps, last = _parted(task)
    estimator = task.estimator if steps is None else task.estimator.steps[-1][1]
    if _method(estimator) is None:
        return f"{type(estimator).__name__} has no fit_grid"
    if last is _REPLACED:
        return "a step of the Pipeline is itself searched"
    if isinstance(estimator, SVC):
        kernel = last.get("kernel", estimator.kernel)
        if callable(kernel):
            return "the kernel is a Python function"
        if kernel == "precomputed" and steps is not None:
            return "a precomputed kernel comes out of a Pipeline"
    given = [name for name, value in task.kwargs["fit_params"].items() if value is not None]
    if set(given) - {_weight_name(task.estimator)}:
        return f"fit is given {', '.join(given)}"
    if steps is not None and not _standard(task.kwargs["scorer"]):
        return "the scorer is a function of its own, which may look into the Pipeline"
    return None


def _weight_name(estimator: Any) -> str:
    return f"{estimator.steps[-1][0]}__sample_weight" if isinstance(estimator, Pipeline) else "sample_weight"


_REPLACED: dict[str, Any] = {}


def _parted(task: Any) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """(parameters of the transformers, None without transformers; parameters of the last step), of a candidate."""
    parameters = task.kwargs["parameters"] or {}
    if not isinstance(task.estimator, Pipeline):
        return None, parameters
    prefix = task.estimator.steps[-1][0] + "__"
    whole = {name for name, _ in task.estimator.steps} | {"steps"}
    if whole & set(parameters):
        return {name: value for name, value in parameters.items() if not name.startswith(prefix)}, _REPLACED
    last = {name.removeprefix(prefix): value for name, value in parameters.items() if name.startswith(prefix)}
    return {name: value for name, value in parameters.items() if not name.startswith(prefix)}, last


def _hash(parameters: Mapping[str, Any]) -> Any:
    try:
        return joblib.hash(parameters)
    except (pickle.PicklingError, TypeError, AttributeError):
        return tuple((name, id(value)) for name, value in sorted(parameters.items()))


def _method(estimator: Any) -> Callable[..., Iterator[Any]] | None:
    if hasattr(estimator, "fit_grid"):
        method: Callable[..., Iterator[Any]] = estimator.fit_grid
        return method
    if type(estimator) in (SVC, kernel_svm.SVC):
        return partial(kernel_svm.fit_grid, estimator, memory=free_memory() // 2 // workers_here())
    return None


def _standard(scorer: Any) -> bool:
    """Whether it asks the estimator for predictions only."""
    if isinstance(scorer, _MultimetricScorer):
        return all(map(_standard, scorer._scorers.values()))
    return isinstance(scorer, _BaseScorer | _PassthroughScorer)


def solved(tasks: Sequence[Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """(task, scikit-learn's answer) of the tasks of one group with `grid`; what could not be solved is left out."""
    first = tasks[0]
    (X, y), steps = first.args[:2], _parted(first)[0]
    splits = {task.split: (task.kwargs["train"], task.kwargs["test"]) for task in tasks}
    candidates = {task.candidate: _parted(task)[1] for task in tasks}
    wanted = {(task.candidate, task.split): task for task in tasks}
    estimator, begin = first.estimator, time.perf_counter()
    parts, labels = [], []
    example = clone(estimator).set_params(**clone_values(first.kwargs["parameters"] or {}))
    for train, test in splits.values():
        X_train, y_train = _safe_split(example, X, y, train)
        X_test, y_test = _safe_split(example, X, y, test, train)
        parts.append((X_train, X_test))
        labels.append((y_train, y_test))
    weight = first.kwargs["fit_params"].get(_weight_name(first.estimator))
    if steps is not None:  # one split: its samples as the last step sees them
        before = clone(estimator).set_params(**clone_values(steps))[:-1]
        ((X_train, X_test),), ((y_train, _),) = parts, labels
        X_train = before.fit_transform(X_train, y_train)
        for _, step in before.steps:
            X_test = X_test if step in (None, "passthrough") else step.transform(X_test)
        parts = [(X_train, X_test)]
        estimator = estimator.steps[-1][1]
        if weight is not None:
            weight = np.concatenate([_safe_indexing(weight, part) for part in next(iter(splits.values()))])
        X, y, splits = _joined(parts[0], labels[0], next(iter(splits)))
    shared_seconds = (time.perf_counter() - begin) / len(tasks)
    method, numbers = _method(estimator), list(candidates)
    assert method is not None
    names = list(splits)
    for fitted in method(list(candidates.values()), X, y, list(splits.values()), sample_weight=weight, parts=parts):
        task = wanted.get((numbers[fitted.candidate], names[fitted.split]))
        if task is not None:
            seconds = fitted.seconds + shared_seconds
            yield task, _answer(task, fitted, parts[fitted.split], labels[fitted.split], seconds)


def _gave_up(model: Any) -> Exception | None:
    """What is wrong with an SVC that has no limit of iterations and reached the solver's own."""
    if getattr(model, "fit_status_", 0) and model.max_iter == -1:
        return ConvergenceWarning(
            "the fit did not end within the solver's own limit of iterations: scale the samples, or set max_iter to "
            "have a score nevertheless"
        )
    return None


def clone_values(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of estimators among the parameters, and the others as they are."""
    return {name: clone(value, safe=False) for name, value in parameters.items()}


def _joined(parts: Any, labels: Any, split: int) -> tuple[Any, Any, dict[int, Any]]:
    """Training and validation samples below each other, with their split."""
    X_train, X_test = parts
    sparse = scipy.sparse.issparse(X_train)
    X = (
        scipy.sparse.vstack(parts, format="csr")
        if sparse
        else np.concatenate([np.asarray(X_train), np.asarray(X_test)])
    )
    n_train, n_test = X_train.shape[0], X_test.shape[0]
    y = np.concatenate([np.asarray(labels[0]), np.asarray(labels[1])])
    return X, y, {split: (np.arange(n_train), np.arange(n_train, n_train + n_test))}


def _answer(task: Any, fitted: Any, parts: Any, labels: Any, seconds: float) -> dict[str, Any]:
    """As scikit-learn's function that fits and scores."""
    kwargs = task.kwargs
    scorer, error_score = kwargs["scorer"], kwargs["error_score"]
    both = (("test", parts[1], labels[1]), ("train", parts[0], labels[0]))[: 1 + kwargs["return_train_score"]]
    what: dict[str, Any] = {"fit_time": seconds, "n_test_samples": len(labels[1])}
    begin = time.perf_counter()
    error = fitted.error or _gave_up(fitted.model)
    if error is not None:
        if error_score == "raise":
            raise error
        several = isinstance(scorer, _MultimetricScorer)
        for name, _, _ in both:
            what[f"{name}_scores"] = dict.fromkeys(scorer._scorers, error_score) if several else error_score
        what["fit_error"] = "".join(traceback.format_exception(error))
        return {**what, "score_time": 0.0}
    for name, samples, truth in both:
        params = _validation._check_method_params(task.args[0], params=kwargs["score_params"], indices=kwargs[name])
        what[f"{name}_scores"] = _validation._score(fitted.model, samples, truth, scorer, params, error_score)
        what.setdefault("score_time", time.perf_counter() - begin)
    return {**what, "fit_error": None}
