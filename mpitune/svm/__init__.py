"""Support vector machines of a whole grid solved together: a library, arrays in, models out.

What the points of a grid have in common is computed once: squared distances for all of them; K - 1 of a gamma for all
C, folds and class pairs; and each C starts from what the smaller ones have found (see `solver/path.py`).

    samples = prepare(x, y)
    plan = choose_plan(samples, "ovo", n_points=n_points, memory=memory)   # log str(plan)
    distances = squared_distances(samples) if plan.distances else None     # may lie in shared memory
    for gamma in gammas:
        points = solve_gamma(                                              # [fold][C]
            samples, gamma, penalties=penalties, folds=folds, plan=plan, distances=distances
        )

`memory.matrices.keep` makes plan and matrices for one of several processes of a node that share them.

`SVC` is an estimator with scikit-learn's interface, and `fit_grid` fits every candidate of a search on every fold, for
any of its kernels and weights, for any scorer:

    for fitted in fit_grid(SVC(), [{"C": 1.0, "gamma": "scale"}, ...], X, y, splits, sample_weight=weights):
        if fitted.error is None:
            score = scorer(fitted.model, fitted.x_validation, y[splits[fitted.split][1]])   # or predict_proba, ...
            table[fitted.candidate, fitted.split] = score

The model answers from the solver's matrices when it is asked about `fitted.x_validation` itself, and is a fitted `SVC`
for any other samples. The room knows no MPI and no other room but `_jit`. The names below import numba when they are
first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpitune.svm.candidates import Fitted, fit_grid
    from mpitune.svm.grid import MAX_ITER, TOLERANCE, Classifier, Fold, PointResult, fit, fit_samples, solve_gamma
    from mpitune.svm.kernel.rbf import Samples, kernel_minus_one, prepare, squared_distances
    from mpitune.svm.memory.matrix_plan import MatrixPlan, choose_plan
    from mpitune.svm.svc import SVC
    from mpitune.svm.warm import warm_up

__all__ = [
    "MAX_ITER",
    "SVC",
    "TOLERANCE",
    "Classifier",
    "Fitted",
    "Fold",
    "MatrixPlan",
    "PointResult",
    "Samples",
    "choose_plan",
    "fit",
    "fit_grid",
    "fit_samples",
    "kernel_minus_one",
    "prepare",
    "solve_gamma",
    "squared_distances",
    "warm_up",
]

_HOME = {
    "mpitune.svm.grid": (
        "MAX_ITER",
        "TOLERANCE",
        "Fold",
        "Classifier",
        "PointResult",
        "fit",
        "fit_samples",
        "solve_gamma",
    ),
    "mpitune.svm.kernel.rbf": ("Samples", "kernel_minus_one", "prepare", "squared_distances"),
    "mpitune.svm.memory.matrix_plan": ("MatrixPlan", "choose_plan"),
    "mpitune.svm.candidates": ("Fitted", "fit_grid"),
    "mpitune.svm.svc": ("SVC",),
    "mpitune.svm.warm": ("warm_up",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
