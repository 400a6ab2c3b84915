"""HalvingGridSearchCV and HalvingRandomSearchCV: scikit-learn's, each of their iterations a study."""

from __future__ import annotations

from sklearn.experimental import enable_halving_search_cv  # noqa: F401 (without it scikit-learn has no such names)
from sklearn.model_selection import _search_successive_halving as theirs

from mpitune.sklearn.searches import OnEngine, constructor, documented


class HalvingGridSearchCV(theirs.HalvingGridSearchCV, OnEngine):  # noqa: D101 - made below
    __doc__ = documented(theirs.HalvingGridSearchCV)
    __init__ = constructor(theirs.HalvingGridSearchCV.__init__)
    _parameter_constraints = {**theirs.HalvingGridSearchCV._parameter_constraints, **OnEngine.added}


class HalvingRandomSearchCV(theirs.HalvingRandomSearchCV, OnEngine):  # noqa: D101 - made below
    __doc__ = documented(theirs.HalvingRandomSearchCV)
    __init__ = constructor(theirs.HalvingRandomSearchCV.__init__)
    _parameter_constraints = {**theirs.HalvingRandomSearchCV._parameter_constraints, **OnEngine.added}
