"""Transformers of a Pipeline fitted once for all candidates that have them in common on a split, on each node.

Two kinds of values are kept in memory that the workers of a node share: a fitted step with its samples, as the `memory`
of a Pipeline keeps it, and the samples of a split behind some steps, as the walk along a plan needs them. Their key has
the kind, the split and the steps so far. A step that has no room there is fitted again.
"""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import joblib
from sklearn.pipeline import Pipeline

from mpitune.memory.cache import Cache, NotPicklable

Steps = tuple[str, ...] | None  # digests of the steps so far; None where one of them has none

Kind = Literal["fitted step", "samples"]  # of a value: what it is made of, and so how it is read


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
        return copy.deepcopy(cache.value(json.dumps([kind, split, *steps]), computed))  # the next step may write to it
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
