"""Support vector machines of a whole grid solved together on a CPU.

What the points of a grid have in common is computed once: squared distances for all of them; K - 1 of a gamma for all
C, folds and class pairs; and each C starts from what the smaller ones have found (see ``path.py``).

    samples = prepare(x, y)
    plan = choose_plan(samples, "ovo", n_penalties, n_folds, memory)       # log str(plan)
    distances = squared_distances(samples) if plan.distances else None     # may lie in shared memory
    for gamma in gammas:
        points = path(samples, gamma, penalties, folds, plan, distances)   # [fold][C]

`matrices.keep` makes plan and matrices for one of several processes of a node that share them.

Importing this package imports numba: do so inside workers.
"""

from mnist_svm.shared.grid import MAX_ITER, TOLERANCE, Fold, Model, Point, fit, fit_samples, path
from mnist_svm.shared.kernel import Samples, kernel_minus_one, prepare, squared_distances
from mnist_svm.shared.plan import Plan, choose_plan
from mnist_svm.shared.warm import warm_up

__all__ = [
    "MAX_ITER",
    "TOLERANCE",
    "Fold",
    "Model",
    "Plan",
    "Point",
    "Samples",
    "choose_plan",
    "fit",
    "fit_samples",
    "kernel_minus_one",
    "path",
    "prepare",
    "squared_distances",
    "warm_up",
]
