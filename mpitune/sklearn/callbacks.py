"""Whether scikit-learn's callbacks (since version 1.9) listen to the fits of a search.

They live in the process of the script, and hear of a fit by a context that is handed to it. Fits in other processes and
fits that several candidates share have none. So scikit-learn itself makes a search with callbacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sklearn.base import BaseEstimator


def have_callbacks(search: BaseEstimator) -> bool:
    """Whether a search, its estimator or an estimator anywhere in its parameters has callbacks."""
    return any(hasattr(estimator, "_skl_callbacks") for estimator in _estimators(search))


def _estimators(thing: Any) -> Iterator[BaseEstimator]:
    if isinstance(thing, BaseEstimator):
        yield thing
        for value in thing.get_params(deep=False).values():
            yield from _estimators(value)
    elif isinstance(thing, Mapping):
        for value in thing.values():
            yield from _estimators(value)
    elif isinstance(thing, Sequence) and not isinstance(thing, str | bytes):
        for value in thing:
            yield from _estimators(value)
