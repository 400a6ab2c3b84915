"""What a task came to, as scikit-learn says it and as a journal keeps it."""

from __future__ import annotations

import numbers
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.metrics._scorer import _MultimetricScorer

from common.sklearn.task import Task
from common.sklearn.warned import Seen, converged, issue
from common.trial import Evaluation, Outcome, Result


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
