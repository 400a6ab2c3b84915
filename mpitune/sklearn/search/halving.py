"""HalvingGridSearchCV and HalvingRandomSearchCV: scikit-learn's, each of their iterations a study."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sklearn.experimental import enable_halving_search_cv  # noqa: F401 (without it scikit-learn has no such names)
from sklearn.model_selection import _search_successive_halving as theirs

from mpitune.sklearn.search.searches import OnEngine
from mpitune.sklearn.search.signature import documented


@documented
class HalvingGridSearchCV(theirs.HalvingGridSearchCV, OnEngine):  # noqa: D101 - made by the decorator
    if TYPE_CHECKING:

        def __init__(self, estimator: Any, param_grid: Any, **arguments: Any) -> None: ...


@documented
class HalvingRandomSearchCV(theirs.HalvingRandomSearchCV, OnEngine):  # noqa: D101 - made by the decorator
    if TYPE_CHECKING:

        def __init__(self, estimator: Any, param_distributions: Any, **arguments: Any) -> None: ...
