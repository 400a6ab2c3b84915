"""Filters of features: one fit for all sizes and thresholds.

Why the result is the single one. A filter gives each feature a number when it is fitted. The parameters that are shared
here are read later, when the filter chooses the features to keep, or refuses them.

- SelectKBest, SelectPercentile, SelectFpr, SelectFdr and SelectFwe compute a score of each feature, or a p-value.
  Nothing is shared with a score function that may differ from call to call (`chance.py`).
- SelectFromModel fits its estimator to all features; `threshold`, `max_features` and `norm_order` choose among the
  coefficients or importances afterwards. Nothing is shared with an estimator whose fits may differ (`chance.py`), or
  with one that is fitted already (`prefit`).
"""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import Any

from sklearn.base import clone

from mpitune.sklearn.sharing.chance import why_unsure
from mpitune.sklearn.sharing.family import Family, Settings, SplitPart, Transformed, valid


class Filters(Family):
    """Filters that score each feature, and differ in how many of them they keep."""

    def __init__(self, *names: str):
        self.names = frozenset(names)

    def shares(self, name: str) -> bool:
        return name in self.names

    def why_not(self, model: Any) -> str | None:
        return why_unsure(model)

    def fit_transform(self, model: Any, settings: Settings, part: SplitPart) -> list[Transformed | None]:
        own = {name: getattr(model, name) for name in self.names}  # of a candidate that does not set them
        right = {place: {**own, **setting} for place, setting in enumerate(settings) if valid(model, setting)}
        made: list[Transformed | None] = [None] * len(settings)
        whole = self.fitted(model, part)
        for place, values in right.items():
            kept = copy(whole)
            kept.__dict__.update(values)
            if self.right(kept, part.X):
                made[place] = kept, partial(kept.transform, part.X)
        return made

    def fitted(self, model: Any, part: SplitPart) -> Any:
        """A fit that serves all candidates."""
        return clone(model).fit(part.X, part.y)

    def right(self, model: Any, X: Any) -> bool:
        """Whether `fit` would take what this fitted model was told afterwards."""
        return True


class Best(Filters):
    """The best k features, no more than there are."""

    def fitted(self, model: Any, part: SplitPart) -> Any:
        return clone(model).set_params(k="all").fit(part.X, part.y)

    def right(self, model: Any, X: Any) -> bool:
        return bool(model.k == "all" or model.k <= model.n_features_in_)


class FromModel(Filters):
    """Features that a model finds important."""

    def why_not(self, model: Any) -> str | None:
        if model.prefit:
            return "its estimator is fitted already"
        return why_unsure(model.estimator)

    def fitted(self, model: Any, part: SplitPart) -> Any:
        return clone(model).set_params(max_features=None).fit(part.X, part.y)

    def right(self, model: Any, X: Any) -> bool:
        try:
            model._check_max_features(X)
        except (TypeError, ValueError):
            return False
        return True


FAMILIES: dict[str, Family] = {
    "SelectKBest": Best("k"),
    "SelectPercentile": Filters("percentile"),
    "SelectFromModel": FromModel("threshold", "max_features", "norm_order"),
}
for _name in ("SelectFpr", "SelectFdr", "SelectFwe"):
    FAMILIES[_name] = Filters("alpha")
