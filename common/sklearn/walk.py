"""Fits along the graph of a plan, depth first, each once; what fails there is left to be fitted alone."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from sklearn.base import BaseEstimator, clone
from sklearn.model_selection import _validation
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.validation import has_fit_parameter

from common.sklearn.plan import StepFit
from common.sklearn.scores import FittedModel, answer, weight_name
from common.sklearn.sharing.family import SplitPart

log = logging.getLogger(__name__)

_KNOWN = ("sklearn", "kernel_svm", "lightgbm", "xgboost")  # packages whose parameters say what their steps write to


def walked(tasks: Mapping[int, Any], fits: tuple[StepFit, ...]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Fit and score candidates of one split that share fits.

    Args:
        tasks: by candidate, see `Task`; all of one split.
        fits: the graph of their fits.

    Yields:
        (task, scikit-learn's answer) of each that could be done so; the others are to be fitted alone. A fit's time is
        divided by the number of candidates that use it.
    """
    first = next(iter(tasks.values()))
    X, y = first.args[:2]
    train, test = first.kwargs["train"], first.kwargs["test"]
    X_train, y_train = _safe_split(first.estimator, X, y, train)
    X_test, y_test = _safe_split(first.estimator, X, y, test, train)
    given = {name: value for name, value in first.kwargs["fit_params"].items() if value is not None}
    weights = _validation._check_method_params(X, params=given, indices=train)
    scored = X_train if first.kwargs["return_train_score"] else None
    part = SplitPart(X_train, y_train, weights.get(weight_name(first.estimator)), X_test, y_test, scored)
    yield from _walk(fits, part, tasks, (y_train, y_test), 0.0, 0.0)


def _walk(
    fits: tuple[StepFit, ...],
    part: SplitPart,
    tasks: Mapping[int, Any],
    labels: Any,
    fit_time: float,
    score_time: float,
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """fit_time, score_time: of the steps before, divided by use."""
    for fit in fits:
        begin = time.perf_counter()
        try:
            made = _fitted(fit, part)
        except Exception as error:  # each candidate says so in its own way
            log.info("%s is not fitted for several candidates: %s: %s", fit.name, type(error).__name__, error)
            continue
        used = sum(len(setting.candidates) for setting, one in zip(fit.settings, made, strict=True) if one is not None)
        spent = fit_time + (time.perf_counter() - begin) / max(used, 1)
        for setting, one in zip(fit.settings, made, strict=True):
            if one is None:
                continue
            if not setting.fits:
                for number in setting.candidates:
                    found = FittedModel(one, None, spent)
                    what = answer(tasks[number], found, (part.X_train, part.X_test), labels)
                    what["score_time"] += score_time
                    yield tasks[number], what
                continue
            begin, many = time.perf_counter(), len(setting.candidates)
            try:
                X, middle = one[1](), time.perf_counter()
                below = _below(part, one[0], X)
            except Exception as error:
                log.info("%s: %s: %s", fit.name, type(error).__name__, error)
                continue
            del X
            transformed = score_time + (time.perf_counter() - middle) / many
            yield from _walk(setting.fits, below, tasks, labels, spent + (middle - begin) / many, transformed)
            del below  # before the samples of the next setting are made


def _fitted(fit: StepFit, part: SplitPart) -> list[Any]:
    """Of each setting a fitted model, at the last step, or a `Transformed`; None if it failed."""
    last = not fit.settings[0].fits
    if fit.model is None:
        return [
            None if last else (None, lambda: part.X)
        ]  # a Pipeline that ends in "passthrough" is left to scikit-learn
    if fit.family is not None:
        if last and part.weight is not None and not has_fit_parameter(fit.model, "sample_weight"):
            raise TypeError("its fit takes no sample weights")
        fitted = fit.family.fit if last else fit.family.fit_transform
        return list(fitted(fit.model, [setting.values for setting in fit.settings], _own(part, fit.model)))
    return [_alone(fit.model, _own(part, fit.model), last)]


def _alone(model: Any, part: SplitPart, last: bool) -> Any:
    model = clone(model)
    if last:
        return model.fit(part.X, **part.weights) if part.y is None else model.fit(part.X, part.y, **part.weights)
    if hasattr(model, "fit_transform"):
        samples = [model.fit_transform(part.X, part.y)]
        return model, samples.pop  # which hands them on and keeps nothing
    return model, partial(model.fit(part.X, part.y).transform, part.X)


def _below(part: SplitPart, model: Any, X: Any) -> SplitPart:
    """The samples as the next step sees them."""
    if model is None:
        return part
    asked = _own(part, model)
    X_test = model.transform(asked.X_test)
    X_train = None if asked.X_train is None else model.transform(asked.X_train)
    return SplitPart(X, part.y, part.weight, X_test, part.y_test, X_train)


def _own(part: SplitPart, model: Any) -> SplitPart:
    """The part, in copies where the step may write to its samples, which others need too."""
    if not _writes(model):
        return part
    X, X_test, X_train = (copy.deepcopy(samples) for samples in (part.X, part.X_test, part.X_train))
    return SplitPart(X, part.y, part.weight, X_test, part.y_test, X_train)


def _writes(model: Any) -> bool:
    """Whether a step may change the samples it is given: as a parameter says, or as we cannot know."""
    parameters = model.get_params(deep=True)
    things = [model, *(value for value in parameters.values() if isinstance(value, BaseEstimator))]
    return (
        any(name.rpartition("__")[2].startswith("copy") and value is False for name, value in parameters.items())
        or any(callable(value) and not isinstance(value, BaseEstimator) for value in parameters.values())
        or any(
            type(thing).__module__.split(".")[0] not in ("sklearn", "kernel_svm", "lightgbm", "xgboost")
            for thing in things
        )
    )
