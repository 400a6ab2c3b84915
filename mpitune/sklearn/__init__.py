"""scikit-learn's searches on the engine: a fold of a candidate is a trial. It knows scikit-learn and `mpitune.svm`.

    from mpitune.sklearn import GridSearchCV
    search = GridSearchCV(SVC(), {"C": [1, 10], "gamma": [0.01, 0.1]}, cv=5).fit(X, y)   # python, mpirun or srun

The names below import scikit-learn when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpitune.sklearn.halving import HalvingGridSearchCV, HalvingRandomSearchCV
    from mpitune.sklearn.searches import GridSearchCV, RandomizedSearchCV
    from mpitune.sklearn.winner import careful, winner_of

__all__ = ["GridSearchCV", "HalvingGridSearchCV", "HalvingRandomSearchCV", "RandomizedSearchCV", "careful", "winner_of"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        home = "winner" if name in ("careful", "winner_of") else "halving" if name[:7] == "Halving" else "searches"
        return getattr(import_module(f"mpitune.sklearn.{home}"), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
