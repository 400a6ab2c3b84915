"""A Pipeline's transformers fitted once for all candidates that have them in common on a fold."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import joblib
from sklearn.pipeline import Pipeline

KEPT = 8  # fitted transformers; candidates that share them come one after the other


class SharedSteps:
    """Stands for the `memory` of a Pipeline (scikit-learn's own way to keep fitted transformers), in this process."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], tuple[Any, Any]] = {}  # the longest unused first
        self._split = 0
        self._last: tuple[Any, tuple[Any, ...]] = (None, ())  # samples that came out, and the steps they came through

    @contextmanager
    def of(self, estimator: Any, split: int) -> Iterator[None]:
        """While a Pipeline without a memory of its own is fitted to the training samples of that split."""
        if not isinstance(estimator, Pipeline) or estimator.memory is not None:
            yield
            return
        self._split, self._last = split, (None, ())
        estimator.memory = self
        try:
            yield
        finally:
            estimator.memory = None

    def cache(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """scikit-learn's function that fits one transformer, remembered by split, steps before and parameters."""

        def fit_transform(transformer: Any, X: Any, *args: Any, **kwargs: Any) -> Any:
            before = self._last[1] if X is self._last[0] else ()
            try:
                steps = (*before, joblib.hash(transformer))
            except (pickle.PicklingError, TypeError, AttributeError):  # it holds a lambda, for instance
                return function(transformer, X, *args, **kwargs)
            kept = self._kept.pop((self._split, *steps), None)
            if kept is None:
                kept = function(transformer, X, *args, **kwargs)
            self._kept[self._split, *steps] = kept
            while len(self._kept) > KEPT:
                del self._kept[next(iter(self._kept))]
            samples = copy.deepcopy(kept[0])  # the next step may write to them
            self._last = samples, steps
            return samples, kept[1]

        return fit_transform
