"""Linear discriminant analysis: one covariance of each class for all shrinkages, one decomposition for all sizes.

Why the result is the single one. The solvers "lsqr" and "eigen" shrink the empirical covariance S of each class, and of
all samples, to (1 - s) S + s m I. S and m do not depend on the shrinkage s. S is computed once, by scikit-learn's own
function, and given to scikit-learn's own solver for each s: equal to the bit. `shrinkage="auto"` (Ledoit and Wolf)
looks at the samples by itself and is computed once. `n_components` is the number of columns of the projected samples
that are kept. It does not change the decomposition or the classes, so each size is cut from one fit.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np
from sklearn import discriminant_analysis as theirs
from sklearn.base import clone
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from mpitune.sklearn.sharing.family import Family, Settings, SplitPart, Transformed, valid


class _Covariances:
    """scikit-learn's `empirical_covariance`, whose answers are kept in the order of a fit's calls."""

    def __init__(self, function: Callable[..., Any]):
        self._function, self._next = function, 0
        self._kept: list[np.ndarray] = []

    def begin(self) -> None:
        """Another fit to the same samples begins."""
        self._next = 0

    def __call__(self, X: Any, **kwargs: Any) -> Any:
        if self._next == len(self._kept):
            self._kept.append(self._function(X, **kwargs))
        self._next += 1
        return self._kept[self._next - 1].copy()


class Discriminants(Family):
    """Candidates that differ in shrinkage and the number of components."""

    divides = True

    shared = frozenset({"shrinkage", "n_components"})

    def why_not(self, model: Any) -> str | None:
        return "its covariance comes from another estimator" if model.covariance_estimator is not None else None

    def fit(self, model: Any, settings: Settings, part: SplitPart) -> list[Any]:
        if part.weight is not None:
            raise TypeError("it takes no sample weights")
        known = _Covariances(theirs.empirical_covariance)
        names: dict[str, Any] = {**vars(theirs), "empirical_covariance": known}
        for function in (theirs._cov, theirs._class_cov):
            names[function.__name__] = _in(function, names)
        solvers = {
            name: _in(getattr(LinearDiscriminantAnalysis, name), names) for name in ("_solve_lstsq", "_solve_eigen")
        }
        whole: dict[Any, Any] = {}  # by shrinkage; None where scikit-learn would not have it
        made: list[Any] = []
        for setting in settings:
            shrinkage = setting.get("shrinkage", model.shrinkage)
            if not valid(model, setting):
                made.append(None)
                continue
            key = type(shrinkage), shrinkage  # a number of NumPy may be of more digits than the samples
            if key not in whole:
                known.begin()
                whole[key] = _fitted(model, shrinkage, solvers, part)
            made.append(_cut(whole[key], setting.get("n_components", model.n_components)))
        return made

    def fit_transform(self, model: Any, settings: Settings, part: SplitPart) -> list[Transformed | None]:
        made = self.fit(model, settings, part)
        return [None if lda is None else (lda, partial(lda.transform, part.X)) for lda in made]


def _in(function: Any, names: dict[str, Any]) -> FunctionType:
    """A function of scikit-learn in which some names mean other things."""
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__)


def _fitted(model: Any, shrinkage: Any, solvers: dict[str, FunctionType], part: SplitPart) -> Any:
    lda = clone(model).set_params(shrinkage=shrinkage, n_components=None)
    for name, function in solvers.items():
        setattr(lda, name, MethodType(function, lda))
    try:
        lda.fit(part.X, part.y)
    except (ValueError, NotImplementedError, np.linalg.LinAlgError):
        return None
    for name in solvers:
        delattr(lda, name)
    return lda


def _cut(whole: Any, size: int | None) -> Any:
    """The analysis with so many components."""
    if whole is None or (size is not None and size > whole._max_components):
        return None
    lda = copy(whole)
    lda.n_components = size
    if size is not None:
        lda._max_components = lda._n_features_out = size
        if hasattr(lda, "explained_variance_ratio_"):
            lda.explained_variance_ratio_ = lda.explained_variance_ratio_[:size]
    return lda


FAMILIES = {"LinearDiscriminantAnalysis": Discriminants()}
