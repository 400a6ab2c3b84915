"""Ridge regression and classification: one product of the samples for all penalties.

Why the result is the single one. With dense samples scikit-learn's solver ("auto", "cholesky") centres X and y and
solves (X'X + alpha I) w = X'y. If there are more features than samples, it solves (XX' + alpha I) c = y, and w = X'c.
The centred samples and both products do not depend on alpha. They are computed once, by the same functions, and each
alpha is solved for by the same function as in scikit-learn: results are bitwise equal. Where a matrix is singular, that
candidate is fitted alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import copy
from numbers import Real
from types import FunctionType
from typing import Any

import numpy as np
import scipy.sparse
from scipy import linalg
from sklearn.base import clone
from sklearn.linear_model import _ridge
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import validate_data

from mpitune.sklearn.sharing.family import Family, Settings, SplitPart, valid

_ALONE = (np.linalg.LinAlgError, ValueError, TypeError)


def _first_answer(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a function of scikit-learn returned when it was first called."""
    kept: list[Any] = []

    def answer(*args: Any, **kwargs: Any) -> Any:
        if not kept:
            kept.append(function(*args, **kwargs))
        return kept[0]

    return answer


class _Solver:
    """Stands for scikit-learn's `_ridge_regression`, which is called for one alpha after the other."""

    def __init__(self) -> None:
        self._ready: tuple[np.ndarray, ...] | None = None

    def __call__(self, X: Any, y: Any, alpha: Any, sample_weight: Any = None, **_: Any) -> Any:
        if self._ready is None:
            self._flat = y.ndim == 1
            y = y.reshape(-1, 1) if self._flat else y
            if sample_weight is not None:
                X, y, _root = _ridge._rescale_data(X, y, sample_weight)
            if X.shape[1] > X.shape[0]:
                self._ready = (safe_sparse_dot(X, X.T), y, X)
            else:
                self._ready = (safe_sparse_dot(X.T, X), safe_sparse_dot(X.T, y), X[:0])
        product, right, X = self._ready
        A = product.copy()
        A.flat[:: len(A) + 1] += np.asarray(alpha, A.dtype)
        solution = linalg.solve(A, right, assume_a="pos", overwrite_a=True)
        coef = safe_sparse_dot(X.T, solution).T if len(X) else solution.T
        return (coef.ravel() if self._flat else coef), None, "cholesky"


class Penalties(Family):
    """Candidates that differ in alpha."""

    shared = frozenset({"alpha"})

    def why_not(self, model: Any) -> str | None:
        if model.positive:
            return "positive=True is solved step by step"
        if model.solver not in ("auto", "cholesky"):
            return f"solver={model.solver!r} has nothing in common between penalties"
        return None

    def fit(self, model: Any, settings: Settings, part: SplitPart) -> list[Any]:
        if scipy.sparse.issparse(part.X):
            raise ValueError("sparse samples are solved step by step")
        first = clone(model)
        X, y, weight = self._validated(first, part)
        names = {
            **_ridge._BaseRidge.fit.__globals__,
            "_preprocess_data": _first_answer(_ridge._preprocess_data),
            "_ridge_regression": _Solver(),
        }
        # scikit-learn's own `fit`, in which two names mean the above
        fit = FunctionType(_ridge._BaseRidge.fit.__code__, names, "fit", _ridge._BaseRidge.fit.__defaults__)
        made: list[Any] = []
        for setting in settings:
            ridge = copy(first)
            vars(ridge).update(setting)
            made.append(None)
            if not isinstance(ridge.alpha, Real) or not valid(model, setting):
                continue
            with suppress(*_ALONE):
                fit(ridge, X, y, weight)
                made[-1] = ridge
        return made

    def _validated(self, model: Any, part: SplitPart) -> tuple[Any, Any, Any]:
        X, y = validate_data(
            model, part.X, part.y, dtype=[np.float64, np.float32], force_writeable=True, multi_output=True,
            y_numeric=True,
        )  # fmt: skip
        return X, y, part.weight


class ClassifierPenalties(Penalties):
    """The same of a classifier, which regresses on -1 and 1."""

    def _validated(self, model: Any, part: SplitPart) -> tuple[Any, Any, Any]:
        X, _, weight, Y = model._prepare_data(part.X, part.y, part.weight, model.solver)
        return X, Y, weight


FAMILIES = {"Ridge": Penalties(), "RidgeClassifier": ClassifierPenalties()}
