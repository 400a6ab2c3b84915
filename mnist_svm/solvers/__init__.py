"""The solvers by name, one file for each way to fit a grid. None is imported before a worker asks for it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence

from mnist_svm.dataset import Dataset, Fit, GridPoint, Solver
from mpitune.experiment import WorkerContext


def make_solver(name: str, worker: WorkerContext, *, multiclass: str, memory: int, n_points: int) -> Solver:
    """The solver of that name for this worker. `SvmGrid.check` says whether it can work there.

    Args:
        name: "auto", "shared", "sklearn" or "cuml".
        worker: its device, and the buffers that workers of the node share.
        multiclass: "ovo" (one-vs-one) or "ovr" (one-vs-rest).
        memory: bytes that this worker may use, which the shared-kernel solver keeps to.
        n_points: the most points of one gamma that it will be asked for at once.
    """
    if name in ("auto", "shared"):
        from mnist_svm.solvers.cpu import SharedSolver

        return SharedSolver(worker, multiclass, memory=memory, n_points=n_points)
    importlib.import_module({"sklearn": "sklearn.svm", "cuml": "cuml.svm"}[name])  # missing is no trial's fault
    if name == "sklearn":
        from mnist_svm.solvers.peers import fit_sklearn as fit
    else:
        from mnist_svm.solvers.cuml import fit_cuml as fit

    return Pointwise(fit, multiclass)


class Pointwise(Solver):
    """Fits point by point.

    Args:
        fit: such as `peers.fit_sklearn`.
    """

    def __init__(self, fit: Callable[..., Fit], multiclass: str) -> None:
        self.fit, self.multiclass = fit, multiclass

    def __call__(self, dataset: Dataset, gamma: float, points: Sequence[GridPoint]) -> Iterator[Fit]:
        for penalty, split in points:
            images, labels = dataset.images[split.train], dataset.labels[split.train]
            point = {"penalty": penalty, "gamma": gamma, "multiclass": self.multiclass}
            yield self.fit(images, labels, dataset.predicted(split), **point)
