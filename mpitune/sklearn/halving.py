"""HalvingGridSearchCV and HalvingRandomSearchCV: scikit-learn's, each of their iterations a study."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from sklearn.experimental import enable_halving_search_cv  # noqa: F401 (without it scikit-learn has no such names)
from sklearn.model_selection import _search_successive_halving as theirs

from mpitune.sklearn.searches import Arguments, OnEngine, constructor, documented


class HalvingArguments(Arguments, total=False):
    """Keyword arguments, for editors and type checkers."""

    factor: float
    resource: str
    max_resources: int | str
    min_resources: int | str
    aggressive_elimination: bool
    random_state: Any


class HalvingRandomArguments(HalvingArguments, total=False):
    """Those of HalvingRandomSearchCV."""

    n_candidates: int | str


class HalvingGridSearchCV(theirs.HalvingGridSearchCV, OnEngine):  # noqa: D101 - made below
    __doc__ = documented(theirs.HalvingGridSearchCV)
    if TYPE_CHECKING:

        def __init__(self, estimator: Any, param_grid: Any, **arguments: Unpack[HalvingArguments]) -> None: ...
    else:
        __init__ = constructor(theirs.HalvingGridSearchCV.__init__)
    _parameter_constraints = {**theirs.HalvingGridSearchCV._parameter_constraints, **OnEngine.added}


class HalvingRandomSearchCV(theirs.HalvingRandomSearchCV, OnEngine):  # noqa: D101 - made below
    __doc__ = documented(theirs.HalvingRandomSearchCV)
    if TYPE_CHECKING:

        def __init__(
            self, estimator: Any, param_distributions: Any, **arguments: Unpack[HalvingRandomArguments]
        ) -> None: ...
    else:
        __init__ = constructor(theirs.HalvingRandomSearchCV.__init__)
    _parameter_constraints = {**theirs.HalvingRandomSearchCV._parameter_constraints, **OnEngine.added}
