"""What a task came to: scored and told as by scikit-learn, with its warnings, and as a journal keeps it.

Each process sends the warnings of its fits with their results, and the search issues them. Fits that candidates share,
and fits of workers, print nothing by themselves. So the process that asked for a search prints a line of each result
("[CV 2/5; 1/3] END C=1; score=0.917 total time=   0.1s") when it arrives, and no line when a fit begins.
"""

from __future__ import annotations

import numbers
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from joblib.logger import short_format_time
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics._scorer import _BaseScorer, _MultimetricScorer, _PassthroughScorer
from sklearn.model_selection import _validation
from sklearn.utils.validation import _num_samples

from mpitune.errors import UsageError
from mpitune.processes.process import packed_error, unpacked_error
from mpitune.sklearn.fits.task import Task
from mpitune.trial import Evaluation, Outcome, Result

Seen = list[tuple[str, str]]  # warnings: category as module.name, text
T = TypeVar("T")

_ENDLESS = f"{ConvergenceWarning.__module__}.{ConvergenceWarning.__qualname__}:"


@dataclass(frozen=True)
class FittedModel:
    """A fitted model, or the error that `fit` raised, and the seconds that it took."""

    model: Any
    error: Exception | None
    seconds: float


def answer(task: Task, fitted: FittedModel, parts: Any, labels: Any) -> dict[str, Any]:
    """As scikit-learn's function that fits and scores; `parts` and `labels` are of training and validation samples."""
    kwargs = task.kwargs
    scorer, error_score = kwargs["scorer"], kwargs["error_score"]
    both = (("test", parts[1], labels[1]), ("train", parts[0], labels[0]))[: 1 + kwargs["return_train_score"]]
    what: dict[str, Any] = {"fit_time": fitted.seconds, "n_test_samples": _num_samples(parts[1])}
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


def _gave_up(model: Any) -> Exception | None:
    """A warning for an SVC without a limit of iterations that reached the solver's own."""
    if getattr(model, "fit_status_", 0) and model.max_iter == -1:
        return ConvergenceWarning(
            "the fit did not end within the solver's own limit of iterations: scale the samples, or set max_iter to "
            "have a score anyway"
        )
    return None


def standard(scorer: Any) -> bool:
    """Whether it asks the estimator for predictions only."""
    if isinstance(scorer, _MultimetricScorer):
        return all(map(standard, scorer._scorers.values()))
    own = type(scorer).__module__.startswith("sklearn.")  # not a class of the user's
    return own and isinstance(scorer, _BaseScorer | _PassthroughScorer)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a task came to."""

    what: dict[str, Any]  # as scikit-learn's function that fits and scores says it
    seen: Seen


def finite(answer: Answer) -> bool:
    """Whether its scores are numbers."""
    scores = answer.what["test_scores"], answer.what.get("train_scores", 0.0)
    return all(np.isfinite(list(of.values()) if isinstance(of, Mapping) else of).all() for of in scores)


def encoded(key: str, what: Mapping[str, Any], seen: Seen) -> Evaluation:
    """scikit-learn's answer as numbers: NaN, which a journal has no value for, is the name in the array "nan"."""
    values: dict[str, float] = {}
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
    """The inverse of `encoded`. Raises UsageError where that has not made it."""
    what: dict[str, Any] = {"fit_error": str(result.arrays["fit_error"]) if "fit_error" in result.arrays else None}
    nan = result.arrays["nan"].tolist() if "nan" in result.arrays else []
    for name, value in {**result.values, **dict.fromkeys(nan, float("nan"))}.items():
        whole, _, part = name.partition(":")
        if part:
            what.setdefault(whole, {})[part] = value
        else:
            what[name] = int(value) if name == "n_test_samples" else value
    for name in sorted({"test_scores", "n_test_samples", "fit_time", "score_time"} - what.keys()):
        result.value(name)  # which says that it is not there
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
    return Evaluation(key, arrays={"raised": np.frombuffer(packed_error(error, text), np.uint8)}, doubt=text)


def exception_of(evaluation: Evaluation) -> Exception | None:
    """The exception that a worker has just sent as the answer of a trial, caused by the traceback of its process.

    Not for results of a journal: it unpickles.
    """
    if "raised" not in evaluation.arrays:
        return None
    error: Exception = unpacked_error(np.asarray(evaluation.arrays["raised"]).tobytes())
    return error


def answers_of(tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> dict[str, Answer]:
    """The answers of a study, by key; a trial that failed (killed, too slow) has `error_score`, or raises it."""
    by_key = {task.key: task for task in tasks}
    answers = {}
    for trial, result in outcomes:
        if result.failed:
            answers[trial.key] = Answer(_failed(by_key[trial.key], result), [])
            continue
        seen = [(category, text) for category, text in result.arrays.get("warnings", np.empty((0, 2))).tolist()]
        answers[trial.key] = Answer(decoded(result), seen)
    return answers


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
    return _without_fit(task, scores, cause, len(np.atleast_1d(task.kwargs["test"])), result.seconds, 0.0)


def not_evaluated(tasks: Sequence[Task], others: Iterable[Answer]) -> dict[str, Answer]:
    """The answers of tasks that were not begun, by key: all their numbers are NaN, of as many scores as others have."""
    nan = float("nan")
    # A function's fits that failed have one score, the others say the names of several.
    several = (answer.what["test_scores"] for answer in others)
    names = next((tuple(scores) for scores in several if isinstance(scores, Mapping)), ())
    scores = dict.fromkeys(names, nan) if names else nan
    return {task.key: Answer(_without_fit(task, scores, None, 0, nan, nan), []) for task in tasks}


def _without_fit(task: Task, scores: Any, error: str | None, n: int, fit: float, score: float) -> dict[str, Any]:
    """As scikit-learn's function, of a task without a model: its scores, error, test samples and times."""
    what = {"fit_error": error, "test_scores": scores, "n_test_samples": n, "fit_time": fit, "score_time": score}
    return {**what, "train_scores": scores} if task.kwargs["return_train_score"] else what


def noting(things: Iterator[T]) -> Iterator[tuple[T, Seen]]:
    """Each thing with the warnings of making it that are to be shown."""
    while True:
        with warnings.catch_warnings(record=True) as seen:
            try:
                thing = next(things)
            except StopIteration:
                return
        yield thing, [(f"{w.category.__module__}.{w.category.__qualname__}", str(w.message)) for w in seen]


def issue(seen: Iterable[tuple[str, str]]) -> None:
    """Warn of each once, even if many fits had it."""
    for name, text in dict.fromkeys(seen):
        module, _, plain = name.rpartition(".")
        kind = getattr(sys.modules.get(module), plain, None)
        known = isinstance(kind, type) and issubclass(kind, Warning)
        warnings.warn(text, kind if known else UserWarning, stacklevel=2)


def cv_line(task: Task, what: Mapping[str, Any]) -> str:
    """The line of a task with scikit-learn's answer."""
    place = "; ".join(f"{n + 1}/{of}" for n, of in (task.kwargs["split_progress"], task.kwargs["candidate_progress"]))
    test, train = (
        of if isinstance(of, dict) else {"score": of} for of in (what["test_scores"], what.get("train_scores"))
    )
    parts = ", ".join(f"{name}={value}" for name, value in sorted(task.parameters.items()))
    both = ((name, value, train.get(name)) for name, value in sorted(test.items()))
    scored = ", ".join(f"{n}={v:.3f}" if t is None else f"{n}=(train={t:.3f}, test={v:.3f})" for n, v, t in both)
    return f"[CV {place}] END {parts}; {scored} total time={short_format_time(what['fit_time'] + what['score_time'])}"
