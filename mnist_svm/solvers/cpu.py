"""The grid solver of `mpitune.svm`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from mnist_svm.dataset import Dataset, Fit, GridPoint, LittleMemory, Solver, grids
from mpitune import svm
from mpitune.experiment import WorkerContext
from mpitune.svm import Samples
from mpitune.svm.memory.matrices import Matrices, keep


class SharedSolver(Solver):
    """All points of one gamma together; matrices are kept, and shared with other processes, as memory allows.

    Args:
        worker: its buffers are matrices that the workers of the node share.
        multiclass: "ovo" or "ovr".
        memory: bytes that this process may use.
        n_points: the most points (folds times C) of one gamma that it will be asked for at once.
    """

    def __init__(self, worker: WorkerContext, multiclass: str, *, memory: int, n_points: int) -> None:
        worker.report_step(0, unit="compiling")
        svm.warm_up()
        self.worker, self.multiclass, self.memory, self.n_points = worker, multiclass, memory, n_points
        self._kept: tuple[Samples, Matrices] | None = None

    def __call__(self, dataset: Dataset, gamma: float, points: Sequence[GridPoint]) -> Iterator[Fit]:
        samples, kept = self._prepared(dataset)
        with kept.kernel(gamma) as kernel:
            for penalties, splits in grids(points):
                if splits[0].is_refit:
                    for penalty in penalties:
                        model = svm.fit_samples(
                            samples, C=penalty, gamma=gamma, plan=kept.plan, distances=kept.distances, kernel=kernel
                        )
                        yield Fit(model.predict(dataset.test_images), model.n_support, model.converged)
                    continue
                cuts = [(split.train, split.held_out) for split in splits]
                report = partial(self.worker.report_step, unit="binary problem", trials=len(splits) * len(penalties))
                for fold in svm.solve_gamma(
                    samples,
                    gamma,
                    penalties=penalties,
                    folds=cuts,
                    plan=kept.plan,
                    distances=kept.distances,
                    kernel=kernel,
                    told=report,
                ):
                    yield from (Fit(point.predictions, point.n_support, point.converged) for point in fold)

    def _prepared(self, dataset: Dataset) -> tuple[Samples, Matrices]:
        """Sorted samples and their matrices, made once. Raises LittleMemory."""
        if self._kept is None:
            samples = svm.prepare(dataset.images, dataset.labels)
            try:
                kept = keep(
                    samples, self.multiclass, self.n_points, self.memory, self.worker.buffers, self.worker.n_workers
                )
            except MemoryError as error:
                raise LittleMemory(str(error)) from error
            self._kept = samples, kept
        return self._kept
