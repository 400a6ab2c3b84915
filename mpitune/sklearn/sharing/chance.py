"""Whether two fits of a model to the same samples give the same model, as far as its parameters say.

A shared fit can only be equal to single fits if these are equal to each other. A model of scikit-learn is, if each
part of it that may choose at random has an integer as seed. A class, a function or a generator from elsewhere may do
what it likes, such as count how often it was asked, so there it is unsure.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.feature_selection import mutual_info_classif, mutual_info_regression

_KNOWN = ("builtins", "numpy", "sklearn", "lightgbm", "xgboost")
_OWN_SEED = ("lightgbm", "xgboost")  # None is a fixed seed there
_SURE = ("svd", "cholesky", "lsqr", "sparse_cg", "lbfgs", "newton-cg", "newton-cholesky")  # solvers without chance


def why_unsure(model: Any, drawn: bool = False) -> str | None:
    """Why two fits of an unfitted model, or with a function, may differ; None where they do not.

    drawn: whether the model sets the seeds of those within it.
    """
    parts = [model]
    if hasattr(model, "get_params"):
        parts += model.get_params(deep=True).values()
    for part in parts:
        if reason := _why(part, drawn and part is not model):
            return reason
    return None


def _why(part: Any, drawn: bool) -> str | None:
    thing = part if callable(part) and hasattr(part, "__name__") else type(part)  # a function or class, or an object's
    name, module = thing.__name__, str(getattr(thing, "__module__", "numpy"))  # NumPy's own have none
    library = module.split(".")[0]
    if library not in _KNOWN:
        return f"fits with {name}, which is not scikit-learn's, may differ"
    if thing in (mutual_info_classif, mutual_info_regression):
        return f"{name} without a seed may differ from fit to fit"
    if hasattr(part, "_skl_callbacks"):
        return f"{name} has callbacks"
    if module.startswith("numpy.random"):
        return f"fits draw on from a {name}"
    if library in _OWN_SEED and getattr(part, "random_state", None) is None:
        return None
    if thing is part or (drawn and isinstance(part, BaseEstimator)):
        return None
    linear = module.startswith("sklearn.linear_model")
    sure = linear and (getattr(part, "selection", "") == "cyclic" or getattr(part, "solver", "") in _SURE)
    sure = sure or getattr(part, "shuffle", True) is False  # a splitter that goes in order
    seeded = isinstance(getattr(part, "random_state", 0), Integral)
    return None if sure or seeded else f"fits of {name} without a seed may differ"
