"""Fits along the graph of a plan, depth first, each once; what fails there is left to be fitted alone."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import joblib
from sklearn.base import BaseEstimator, clone
from sklearn.metrics._scorer import _MultimetricScorer
from sklearn.model_selection import _validation
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.validation import has_fit_parameter

from mpitune.sklearn.fits.answers import FittedModel, answer
from mpitune.sklearn.fits.fit_graph import StepFit
from mpitune.sklearn.sharing.family import SplitPart

log = logging.getLogger(__name__)

_KNOWN = ("sklearn", "mpitune", "lightgbm", "xgboost")  # packages whose parameters say what their steps write to


def walked(tasks: Mapping[int, Any], fits: tuple[StepFit, ...]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Fit and score candidates of one split (tasks by number) that share fits, along the graph of these.

    Yields (task, scikit-learn's answer) of each that could be done so; the others are to be fitted alone. A fit's time
    is divided by the number of candidates that use it.
    """
    first = next(iter(tasks.values()))
    X, y = first.args[:2]
    train, test = first.kwargs["train"], first.kwargs["test"]
    X_train, y_train = _safe_split(first.estimator, X, y, train)
    X_test, y_test = _safe_split(first.estimator, X, y, test, train)
    fit_params = {name: value for name, value in first.kwargs["fit_params"].items() if value is not None}
    weights = _validation._check_method_params(X, params=fit_params, indices=train)
    scored = X_train if first.kwargs["return_train_score"] else None
    again = scored is not None or isinstance(first.kwargs["scorer"], _MultimetricScorer)
    part = SplitPart(X_train, y_train, weights.get(first.weight_name), X_test, y_test, scored, again)
    yield from _Walk(tasks, (y_train, y_test)).below(fits, part, 0.0, 0.0)


@dataclass(frozen=True)
class _Walk:
    """Candidates of one split (tasks by number), and its labels."""

    tasks: Mapping[int, Any]
    labels: Any

    def below(
        self, fits: tuple[StepFit, ...], part: SplitPart, fit_time: float, score_time: float
    ) -> Iterator[tuple[Any, dict[str, Any]]]:
        """fit_time, score_time: of the steps before, divided by use."""
        for fit in fits:
            made = _Made(fit, part)
            for place, setting in enumerate(fit.settings):
                if setting.fits:
                    yield from self._through(made, place, fit_time, score_time)
                elif (model := made.models[place]) is not None:
                    for number in setting.candidates:
                        fitted = FittedModel(model, None, fit_time + made.seconds_each)
                        try:
                            what = answer(self.tasks[number], fitted, (part.X_train, part.X_test), self.labels)
                        except Exception as error:  # the candidate's own estimator says so in its own way
                            log.info("%s is not scored here: %s: %s", fit.name, type(error).__name__, error)
                            continue
                        what["score_time"] += score_time
                        yield self.tasks[number], what

    def _through(
        self, made: _Made, place: int, fit_time: float, score_time: float
    ) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Transform the samples by one setting of a step, and walk on below it."""
        setting, model, part = made.fit.settings[place], made.fit.model, made.part
        if made.models[place] is None:  # which was said
            return
        begin, many = time.perf_counter(), len(setting.candidates)
        try:
            samples, asking = made.transformed(place)
        except Exception as error:  # each candidate says so in its own way
            log.info("%s: %s: %s", made.fit.name, type(error).__name__, error)
            return
        fitting = time.perf_counter() - begin - asking
        X, X_test, X_train = samples
        del samples
        below = SplitPart(X, part.y, part.weight, X_test, part.y_test, X_train, part.again and model is None)
        del X, X_test, X_train  # so they are gone before those of the next setting are made
        spent = fit_time + made.seconds_each + fitting / many
        yield from self.below(setting.fits, below, spent, score_time + asking / many)


class _Made:
    """A step fitted for its settings, when the first of them is needed."""

    def __init__(self, fit: StepFit, part: SplitPart) -> None:
        self.fit, self.part = fit, part
        self.seconds_each = 0.0  # that the fit took, divided by the number of candidates that use it

    @cached_property
    def models(self) -> list[Any]:
        """Of each setting a fitted model, at the last step, or a `Transformed`; None if it failed."""
        begin = time.perf_counter()
        try:
            models = _fitted(self.fit, self.part)
        except Exception as error:  # each candidate says so in its own way
            log.info("%s is not fitted for several candidates: %s: %s", self.fit.name, type(error).__name__, error)
            return [None] * len(self.fit.settings)
        made = zip(self.fit.settings, models, strict=True)
        n_candidates = sum(len(setting.candidates) for setting, model in made if model is not None)
        self.seconds_each = (time.perf_counter() - begin) / max(n_candidates, 1)
        return models

    def transformed(self, place: int) -> tuple[tuple[Any, Any, Any], float]:
        """The samples of the part (X, X_test, X_train) after this step, and the seconds that the last two took."""
        model, transformed_X = self.models[place]
        if model is None:
            return (self.part.X, self.part.X_test, self.part.X_train), 0.0
        X, begin = transformed_X(), time.perf_counter()
        samples = _own(self.part, model)
        X_test = model.transform(samples.X_test)
        X_train = None if samples.X_train is None else model.transform(samples.X_train)
        _check_unwritten(samples, self.part)
        return (X, X_test, X_train), time.perf_counter() - begin


def _fitted(fit: StepFit, part: SplitPart) -> list[Any]:
    """Of each setting a fitted model, at the last step, or a `Transformed`; None if it failed."""
    last = not fit.settings[0].fits
    if fit.model is None:
        # A Pipeline that ends in "passthrough" is left to scikit-learn.
        return [None if last else (None, lambda: part.X)]
    if fit.family is not None:
        if last and part.weight is not None and not has_fit_parameter(fit.model, "sample_weight"):
            raise TypeError("its fit takes no sample weights")
        fitted = fit.family.fit if last else fit.family.fit_transform
        made = list(fitted(fit.model, [setting.values for setting in fit.settings], own := _own(part, fit.model)))
    else:
        made = [_alone(fit.model, own := _own(part, fit.model), last)]
    _check_unwritten(own, part)
    return made


def _alone(model: Any, part: SplitPart, last: bool) -> Any:
    model = clone(model)
    if last:
        return model.fit(part.X, **part.weights) if part.y is None else model.fit(part.X, part.y, **part.weights)
    if hasattr(model, "fit_transform"):
        samples = [model.fit_transform(part.X, part.y)]
        return model, samples.pop  # which hands them on and keeps nothing
    return model, partial(model.fit(part.X, part.y).transform, part.X)


def _check_unwritten(own: SplitPart, part: SplitPart) -> None:
    """Raise ValueError if a step wrote to its copies of samples that scikit-learn would ask about as they are now."""
    if part.again and own is not part and joblib.hash((own.X, own.X_test)) != joblib.hash((part.X, part.X_test)):
        raise ValueError("it writes to samples that are asked about again")


def _own(part: SplitPart, model: Any) -> SplitPart:
    """The part, in copies where the step may write to its samples, which others need too."""
    if not may_write(model):
        return part
    X, X_test, X_train = (copy.deepcopy(samples) for samples in (part.X, part.X_test, part.X_train))
    return SplitPart(X, part.y, part.weight, X_test, part.y_test, X_train)


def may_write(model: Any) -> bool:
    """Whether a step may change the samples it is given: as a parameter says, or as we cannot know."""
    parameters = model.get_params(deep=True)
    things = [model, *(value for value in parameters.values() if isinstance(value, BaseEstimator))]
    return (
        any(name.rpartition("__")[2].startswith("copy") and value is False for name, value in parameters.items())
        or any(callable(value) and not isinstance(value, BaseEstimator) for value in parameters.values())
        or any(type(thing).__module__.split(".")[0] not in _KNOWN for thing in things)
    )
