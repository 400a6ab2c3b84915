"""The solvers by name: the whole grid together (`cpu`), or point by point (`pointwise`).

None is imported before a worker asks for it.
"""

from __future__ import annotations

import importlib

from mnist_svm.dataset import Solver
from mpitune.experiment import WorkerContext


def make_solver(name: str, worker: WorkerContext, *, multiclass: str, memory: int, n_points: int) -> Solver:
    """The solver of that name for this worker. `SvmGrid.check` says whether it can work there.

    memory: bytes that this worker may use, which the shared solver keeps to. n_points: the most points of one gamma
    that it will be asked for at once.
    """
    if name in ("auto", "shared"):
        from mnist_svm.solvers.cpu import SharedSolver

        return SharedSolver(worker, multiclass, memory=memory, n_points=n_points)
    importlib.import_module({"sklearn": "sklearn.svm", "cuml": "cuml.svm"}[name])  # missing is no trial's fault
    from mnist_svm.solvers.pointwise import Pointwise, fit_cuml, fit_sklearn

    return Pointwise(fit_sklearn if name == "sklearn" else fit_cuml, multiclass)
