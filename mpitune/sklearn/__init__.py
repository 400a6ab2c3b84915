"""scikit-learn's searches on the engine: a fold of a candidate is a trial. It knows scikit-learn and `mpitune.svm`.

    from sklearn.datasets import load_iris
    from sklearn.svm import SVC
    from mpitune.sklearn import GridSearchCV

    X, y = load_iris(return_X_y=True)
    search = GridSearchCV(SVC(), {"C": [1, 10], "gamma": [0.01, 0.1]}, cv=5).fit(X, y)   # python, mpirun or srun
    print(search.winner_)

The names below import scikit-learn when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpitune.lazy import front

if TYPE_CHECKING:
    from mpitune.sklearn.search.searches import GridSearchCV as GridSearchCV
    from mpitune.sklearn.search.searches import HalvingGridSearchCV as HalvingGridSearchCV
    from mpitune.sklearn.search.searches import HalvingRandomSearchCV as HalvingRandomSearchCV
    from mpitune.sklearn.search.searches import RandomizedSearchCV as RandomizedSearchCV
    from mpitune.sklearn.search.winner import careful as careful
    from mpitune.sklearn.search.winner import winner_of as winner_of

__getattr__, __dir__, __all__ = front(
    __name__,
    {
        "search.searches": ("GridSearchCV", "RandomizedSearchCV", "HalvingGridSearchCV", "HalvingRandomSearchCV"),
        "search.winner": ("careful", "winner_of"),
    },
)
