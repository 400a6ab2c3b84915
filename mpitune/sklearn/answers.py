"""What a task came to, as scikit-learn says it and as a journal keeps it."""

from __future__ import annotations

import numbers
import pickle
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics._scorer import _MultimetricScorer

from mpitune.errors import UsageError
from mpitune.sklearn.task import Task
from mpitune.sklearn.warned import Seen, converged, issue
from mpitune.trial import Evaluation, Outcome, Result

_ENDLESS = f"{ConvergenceWarning.__module__}.{ConvergenceWarning.__qualname__}:"


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
    plain = {name: value for name, value in values.items() if name not in nan}
    return Evaluation(key, plain, arrays, doubt=_doubt(what["fit_error"], seen))


def _doubt(fit_error: str | None, seen: Seen) -> str | None:
    """Why the fit or its scores failed, if that may be their node's fault; a fit without an end is none."""
    if fit_error is not None:
        return None if fit_error.strip().splitlines()[-1].startswith(_ENDLESS) else fit_error
    return next((text for _, text in seen if text.startswith("Scoring failed")), None)


def decoded(result: Evaluation | Result) -> dict[str, Any]:
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


class Raised(UsageError):
    """An exception of a fit or a scorer that ends the search, as scikit-learn's function raises it: `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return Raised, (self.error,)


def raised(key: str, error: Exception) -> Evaluation:
    """The exception as the answer of a trial. Another node may do better, where there is one."""
    text = "".join(traceback.format_exception(error))
    try:
        raised_there = cloudpickle.dumps((error, text))
        pickle.loads(raised_there)
    except Exception:  # whatever its own pickling raises
        raised_there = cloudpickle.dumps((RuntimeError(text), text))
    return Evaluation(key, arrays={"raised": np.frombuffer(raised_there, np.uint8)}, doubt=text)


def exception_of(evaluation: Evaluation) -> Exception | None:
    """The exception that a worker has just sent as the answer of a trial, caused by the traceback of its process.

    Not for results of a journal: it unpickles.
    """
    if "raised" not in evaluation.arrays:
        return None
    raised_there = np.asarray(evaluation.arrays["raised"]).tobytes()
    error, text = pickle.loads(raised_there)
    error.__cause__ = RuntimeError(text)
    original: Exception = error
    return original


def answers_of(tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> dict[str, Answer]:
    """The answers of a study, by key; a trial that failed (killed, too slow) has `error_score`, or raises it."""
    by_key = {task.key: task for task in tasks}
    answers = {}
    for trial, result in outcomes:
        if result.failed:
            answers[trial.key] = Answer(_failed(by_key[trial.key], result), [], False)
            continue
        what = decoded(result)
        seen = [(category, text) for category, text in result.arrays.get("warnings", np.empty((0, 2))).tolist()]
        answers[trial.key] = Answer(what, seen, what["fit_error"] is None and result.values["converged"] == 1)
    return answers


def converged_of(tasks: Sequence[Task], answers: Mapping[str, Answer]) -> np.ndarray:
    """Whether each fit came to its end, bool (n_candidates, n_splits): without failure or `ConvergenceWarning`."""
    ended = np.zeros((1 + max(task.candidate for task in tasks), 1 + max(task.split for task in tasks)), np.bool_)
    for task in tasks:
        ended[task.candidate, task.split] = answers[task.key].converged
    return ended


def results_of(tasks: Sequence[Task], answers: Mapping[str, Answer]) -> list[dict[str, Any]]:
    """What scikit-learn's function would say, in the order of the tasks. Warnings are issued here, each once."""
    issue(warning for task in tasks for warning in answers[task.key].seen)
    return [answers[task.key].what for task in tasks]


def _failed(task: Task, result: Result) -> dict[str, Any]:
    error_score, scorer = task.kwargs["error_score"], task.kwargs["scorer"]
    cause = result.error or ""
    if error_score == "raise":
        raise RuntimeError(cause)
    scores = dict.fromkeys(scorer._scorers, error_score) if isinstance(scorer, _MultimetricScorer) else error_score
    what = {
        "fit_error": cause,
        "test_scores": scores,
        "n_test_samples": len(np.atleast_1d(task.kwargs["test"])),
        "fit_time": result.seconds,
        "score_time": 0.0,
    }
    return {**what, "train_scores": scores} if task.kwargs["return_train_score"] else what
