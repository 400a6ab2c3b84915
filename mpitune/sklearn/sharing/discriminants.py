"""Linear discriminant analysis: one fit for all numbers of components.

Why the result is the single one. `n_components` is the number of columns of the projected samples that are kept. It
does not change the decomposition or the classes, so each size is cut from one fit.
"""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import Any

from sklearn.base import clone

from mpitune.sklearn.sharing.family import Family, Settings, SplitPart, Transformed, valid


class Discriminants(Family):
    """Candidates that differ in the number of components."""

    divides = True

    shared = frozenset({"n_components"})

    def why_not(self, model: Any) -> str | None:
        return "its covariance comes from another estimator" if model.covariance_estimator is not None else None

    def fit(self, model: Any, settings: Settings, part: SplitPart) -> list[Any]:
        whole = clone(model).set_params(n_components=None).fit(part.X, part.y, **part.weights)
        sizes = [setting.get("n_components", model.n_components) for setting in settings]
        return [
            _cut(whole, size) if valid(model, setting) else None for setting, size in zip(settings, sizes, strict=True)
        ]

    def fit_transform(self, model: Any, settings: Settings, part: SplitPart) -> list[Transformed | None]:
        made = self.fit(model, settings, part)
        return [None if lda is None else (lda, partial(lda.transform, part.X)) for lda in made]


def _cut(whole: Any, size: int | None) -> Any:
    """The analysis with so many components; None where there are fewer."""
    if size is not None and size > whole._max_components:
        return None
    lda = copy(whole)
    lda.n_components = size
    if size is not None:
        lda._max_components = lda._n_features_out = size
        if hasattr(lda, "explained_variance_ratio_"):
            lda.explained_variance_ratio_ = lda.explained_variance_ratio_[:size]
    return lda


FAMILIES = {"LinearDiscriminantAnalysis": Discriminants()}
