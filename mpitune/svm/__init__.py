"""Support vector machines of a whole grid solved together: a library, arrays in, models out.

What the points of a grid have in common is computed once: squared distances for all of them; K - 1 of a gamma for all
C, folds and class pairs; and each C starts from what the smaller ones have found (see `solver/path.py`).

`SVC` is an estimator with scikit-learn's interface, and `fit_grid` fits every candidate of a search on every fold, for
any of its kernels and weights, for any scorer:

    for fitted in fit_grid(SVC(), [{"C": 1.0, "gamma": "scale"}, ...], X, y, splits, sample_weight=weights):
        if fitted.error is None:
            score = scorer(fitted.model, fitted.x_validation, y[splits[fitted.split][1]])   # or predict_proba, ...
            table[fitted.candidate, fitted.split] = score

The model answers from the solver's matrices when it is asked about `fitted.x_validation` itself, and is a fitted `SVC`
for any other samples. Both stand on `solved.solve`, which programs with arrays of their own call: it takes samples, a
source of kernel matrices, penalties and training sets. `matrices.plan.keep` makes sources for one of several
processes of a node that share matrices.

The room knows no MPI and no other room but `_jit`. The names below are imported when they are first used, most with
numba.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpitune.lazy import front

if TYPE_CHECKING:  # for type checkers, who cannot read the table below
    from mpitune.svm.apart import is_compiled as is_compiled
    from mpitune.svm.apart import is_ready as is_ready
    from mpitune.svm.candidates import Fitted as Fitted
    from mpitune.svm.candidates import fit_grid as fit_grid
    from mpitune.svm.compiling import warm_up as warm_up
    from mpitune.svm.data import Data as Data
    from mpitune.svm.data import TrainingSet as TrainingSet
    from mpitune.svm.solved import Solved as Solved
    from mpitune.svm.solved import solve as solve
    from mpitune.svm.svc import SVC as SVC
    from mpitune.svm.svc import Refit as Refit

__getattr__, __dir__, __all__ = front(
    __name__,
    {
        "apart": ("is_compiled", "is_ready"),
        "candidates": ("Fitted", "fit_grid"),
        "data": ("Data", "TrainingSet"),
        "solved": ("Solved", "solve"),
        "svc": ("SVC", "Refit"),
        "compiling": ("warm_up",),
    },
)
