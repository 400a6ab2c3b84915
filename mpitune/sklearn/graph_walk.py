"""Fits along the graph of a plan, depth first, each once; what fails there is left to be fitted alone.

Two kinds of values are kept in memory that the workers of a node share: a fitted step with its samples, as the `memory`
of a Pipeline keeps it, and the samples of a split behind some steps, as the walk along a plan needs them. Their key has
the kind, the split and the steps so far. A step that has no room there is fitted again.
"""

from __future__ import annotations

import copy
import json
import logging
import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import joblib
from sklearn.base import BaseEstimator, clone
from sklearn.metrics._scorer import _MultimetricScorer
from sklearn.model_selection import _validation
from sklearn.pipeline import Pipeline
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.validation import has_fit_parameter

from mpitune.memory.cache import Cache, NotPicklable
from mpitune.sklearn.answers import FittedModel, answer
from mpitune.sklearn.fit_graph import StepFit, configured
from mpitune.sklearn.sharing.family import SplitPart

log = logging.getLogger(__name__)

Steps = tuple[str, ...] | None  # digests of the steps so far; None where one of them has none
Kind = Literal["fitted step", "samples"]  # of a value: what it is made of, and so how it is read

_KNOWN = ("sklearn", "mpitune", "lightgbm", "xgboost")  # packages whose parameters say what their steps write to


def walked(
    tasks: Mapping[int, Any], fits: tuple[StepFit, ...], cache: Cache | None = None
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Fit and score candidates of one split (tasks by number) that share fits, along the graph of these.

    Yields (task, scikit-learn's answer) of each that could be done so; the others are to be fitted alone. A fit's time
    is divided by the number of candidates that use it. The cache has the samples between steps for other workers, who
    have other candidates below the same fits.
    """
    first = next(iter(tasks.values()))
    X, y = first.args[:2]
    train, test = first.kwargs["train"], first.kwargs["test"]
    X_train, y_train = _safe_split(first.estimator, X, y, train)
    X_test, y_test = _safe_split(first.estimator, X, y, test, train)
    given = {name: value for name, value in first.kwargs["fit_params"].items() if value is not None}
    weights = _validation._check_method_params(X, params=given, indices=train)
    scored = X_train if first.kwargs["return_train_score"] else None
    again = scored is not None or isinstance(first.kwargs["scorer"], _MultimetricScorer)
    part = SplitPart(X_train, y_train, weights.get(first.weight_name), X_test, y_test, scored, again)
    yield from _Walk(tasks, first.split, (y_train, y_test), cache).below(fits, part, (), 0.0, 0.0)


@dataclass(frozen=True)
class _Walk:
    """Candidates of one split (tasks by number), its labels, and what keeps samples for other workers."""

    tasks: Mapping[int, Any]
    split: int
    labels: Any
    cache: Cache | None

    def below(
        self, fits: tuple[StepFit, ...], part: SplitPart, steps: Steps, fit_time: float, score_time: float
    ) -> Iterator[tuple[Any, dict[str, Any]]]:
        """fit_time, score_time: of the steps before, divided by use."""
        for fit in fits:
            made = _Made(fit, part)
            for place, setting in enumerate(fit.settings):
                if setting.fits:
                    yield from self._through(made, place, steps, fit_time, score_time)
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
        self, made: _Made, place: int, steps: Steps, fit_time: float, score_time: float
    ) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Transform the samples by one setting of a step, and walk on below it."""
        setting, model, part = made.fit.settings[place], made.fit.model, made.part
        cache = None if model is None else self.cache
        if cache is not None:
            steps = extended(steps, configured(model, setting.values))
        begin, before, many = time.perf_counter(), made.seconds, len(setting.candidates)
        try:
            samples, asking = computed_once(cache, "samples", self.split, steps, partial(made.transformed, place))
        except _NotFitted:
            return
        except Exception as error:  # each candidate says so in its own way
            log.info("%s: %s: %s", made.fit.name, type(error).__name__, error)
            return
        fitting = max(time.perf_counter() - begin - asking - (made.seconds - before), 0.0)
        X, X_test, X_train = samples
        del samples
        below = SplitPart(X, part.y, part.weight, X_test, part.y_test, X_train, part.again and model is None)
        del X, X_test, X_train  # so they are gone before those of the next setting are made
        spent = fit_time + made.seconds_each + fitting / many
        yield from self.below(setting.fits, below, steps, spent, score_time + asking / many)


class _NotFitted(Exception):
    """A setting whose fit has failed, which was said."""


class _Made:
    """A step fitted for its settings, when the first of them is needed."""

    def __init__(self, fit: StepFit, part: SplitPart) -> None:
        self.fit, self.part = fit, part
        self.seconds = 0.0  # that the fit took, once it was needed

    @cached_property
    def models(self) -> list[Any]:
        """Of each setting a fitted model, at the last step, or a `Transformed`; None if it failed."""
        begin = time.perf_counter()
        try:
            return _fitted(self.fit, self.part)
        except Exception as error:  # each candidate says so in its own way
            log.info("%s is not fitted for several candidates: %s: %s", self.fit.name, type(error).__name__, error)
            return [None] * len(self.fit.settings)
        finally:
            self.seconds = time.perf_counter() - begin

    @property
    def seconds_each(self) -> float:
        """The seconds divided by the number of candidates that use the fit."""
        return self.seconds / self._used if self.seconds else 0.0

    @cached_property
    def _used(self) -> int:
        made = zip(self.fit.settings, self.models, strict=True)
        return max(sum(len(setting.candidates) for setting, model in made if model is not None), 1)

    def transformed(self, place: int) -> tuple[tuple[Any, Any, Any], float]:
        """The samples of the part (X, X_test, X_train) after this step, and the seconds that the last two took.

        Raises _NotFitted where the step is not fitted for this setting.
        """
        if (fitted := self.models[place]) is None:
            raise _NotFitted
        model, transformed_X = fitted
        if model is None:
            return (self.part.X, self.part.X_test, self.part.X_train), 0.0
        X, begin = transformed_X(), time.perf_counter()
        asked = _own(self.part, model)
        X_test = model.transform(asked.X_test)
        X_train = None if asked.X_train is None else model.transform(asked.X_train)
        _check_unwritten(asked, self.part)
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


def extended(steps: Steps, model: Any) -> Steps:
    """The steps so far and this unfitted one."""
    try:
        return None if steps is None else (*steps, joblib.hash(model))
    except (pickle.PicklingError, TypeError, AttributeError):  # it holds a lambda, for instance
        return None


def computed_once(cache: Cache | None, kind: Kind, split: int, steps: Steps, compute: Callable[[], Any]) -> Any:
    """What `compute` returns for the training samples of this split after these steps, or a copy that is kept."""
    if cache is None or steps is None:
        return compute()
    made: list[Any] = []

    def computed() -> Any:
        made.append(compute())
        return made[0]

    try:
        return cache.copy(json.dumps([kind, split, *steps]), computed)  # the next step may write to it
    except NotPicklable:
        return made[0]


class SharedSteps:
    """Stands for the `memory` of a Pipeline, scikit-learn's own way to keep fitted transformers."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._split = 0
        self._steps: Steps = ()

    @contextmanager
    def of(self, estimator: Any, split: int) -> Iterator[None]:
        """While a Pipeline without a memory of its own is fitted to the training samples of that split.

        A class derived from Pipeline may keep other things than fitted transformers: it is left as it is.
        """
        if type(estimator) is not Pipeline or estimator.memory is not None:
            yield
            return
        self._split, self._steps = split, ()
        estimator.memory = self
        try:
            yield
        finally:
            estimator.memory = None

    def cache(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """scikit-learn's function that fits one transformer. It is called for one step after the other."""

        def fit_transform(transformer: Any, *args: Any, **kwargs: Any) -> Any:
            self._steps = extended(self._steps, transformer)
            compute = partial(function, transformer, *args, **kwargs)
            return computed_once(self._cache, "fitted step", self._split, self._steps, compute)

        return fit_transform
