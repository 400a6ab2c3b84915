"""Transformers of a Pipeline fitted once for all candidates that have them in common on a split, on each node.

Fitted transformers and the samples that came out are kept in memory that the workers of a node share, by the split and
the steps so far. A step that has no room there is fitted again.
"""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import joblib
from sklearn.pipeline import Pipeline

from common.cluster.kept import Keeper, Unkept

Steps = tuple[str, ...] | None  # digests of the steps so far; None where one of them has none


def extended(steps: Steps, model: Any) -> Steps:
    """The steps so far and this unfitted one."""
    try:
        return None if steps is None else (*steps, joblib.hash(model))
    except (pickle.PicklingError, TypeError, AttributeError):  # it holds a lambda, for instance
        return None


def computed_once(keeper: Keeper | None, split: int, steps: Steps, compute: Callable[[], Any]) -> Any:
    """What `compute` returns for the training samples of this split after these steps, or a copy that is kept."""
    if keeper is None or steps is None:
        return compute()
    made: list[Any] = []

    def computed() -> Any:
        made.append(compute())
        return made[0]

    try:
        return copy.deepcopy(keeper.value(json.dumps([split, *steps]), computed))  # the next step may write to it
    except Unkept:
        return made[0]


class SharedSteps:
    """Stands for the `memory` of a Pipeline, scikit-learn's own way to keep fitted transformers."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._split = 0
        self._steps: Steps = ()

    @contextmanager
    def of(self, estimator: Any, split: int) -> Iterator[None]:
        """While a Pipeline without a memory of its own is fitted to the training samples of that split."""
        if not isinstance(estimator, Pipeline) or estimator.memory is not None:
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
            return computed_once(self._keeper, self._split, self._steps, compute)

        return fit_transform
