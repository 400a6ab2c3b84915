"""A Pipeline's transformers fitted once for all candidates that have them in common on a fold."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import joblib
import numpy as np
import scipy.sparse
from sklearn.pipeline import Pipeline

from common.cluster.devices import free_memory, workers_here

KEPT = 8  # fitted transformers; candidates that share them come one after the other


class SharedSteps:
    """Stands for the `memory` of a Pipeline (scikit-learn's own way to keep fitted transformers), in this process.

    They take at most an eighth of the memory that is free for this worker. The longest unused are dropped first. A step
    that has no room is not kept, but fitted again.

    Args:
        limit: bytes to keep, if that is to be another number.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = free_memory() // 8 // workers_here() if limit is None else limit
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
            while len(self._kept) > KEPT or sum(_bytes(X) for X, _ in self._kept.values()) > self._limit:
                del self._kept[next(iter(self._kept))]
            samples = copy.deepcopy(kept[0])  # the next step may write to them
            self._last = samples, steps
            return samples, kept[1]

        return fit_transform


def _bytes(samples: Any) -> int:
    """About the memory that transformed samples take."""
    if scipy.sparse.issparse(samples):
        return sum(int(getattr(samples, name, np.empty(0)).nbytes) for name in ("data", "indices", "indptr"))
    if hasattr(samples, "memory_usage"):  # a table of pandas
        return int(np.sum(samples.memory_usage(deep=True)))
    return int(samples.nbytes) if hasattr(samples, "nbytes") else sys.getsizeof(samples)
