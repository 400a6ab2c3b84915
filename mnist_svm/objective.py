"""Errors of support vector machines on validation folds and on test images, inside a worker."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mnist_svm.dataset import Dataset, Fit, GridPoint, LittleMemory, Solver
from mpitune.trial import Batch, Evaluation, NoRoom, Trial


class SvmObjective:
    """Evaluates batches of trials, each of one gamma.

    A trial has parameters C and gamma, and fold unless it is a refit. Its values are `error` (or `test_error`), a
    fraction; `n_support`; `converged`, 1 or 0, missing if the solver does not tell (cuML). A refit also has the array
    `predictions`, uint8 (n_test,). With the shared solver the points of one fold start from each other, so they may
    depend, within the solver's tolerance, on which C a batch holds. Where the solver has too little memory here, the
    answer is `NoRoom`.
    """

    def __init__(self, dataset: Dataset, solver: Solver) -> None:
        self.dataset = dataset
        self.solver = solver

    def __call__(self, batch: Batch) -> Iterator[Evaluation | NoRoom]:
        gamma = float(batch[0].params["gamma"])  # which all trials of a batch have in common
        fits = self.solver(self.dataset, gamma, [self._point(trial) for trial in batch])
        for number, trial in enumerate(batch):
            try:
                fit = next(fits)
            except LittleMemory as error:
                yield from (NoRoom(left.key, str(error)) for left in batch[number:])
                return
            yield self._result(trial, fit)

    def _result(self, trial: Trial, fit: Fit) -> Evaluation:
        split = self._point(trial).split
        counts = {"n_support": float(fit.n_support)}
        if fit.converged is not None:
            counts["converged"] = float(fit.converged)
        error = float(np.mean(fit.predictions != split.labels))
        if split.is_refit:
            arrays = {"predictions": fit.predictions.astype(np.uint8)}
            return Evaluation(trial.key, {"test_error": error, **counts}, arrays)
        return Evaluation(trial.key, {"error": error, **counts})

    def _point(self, trial: Trial) -> GridPoint:
        fold = trial.segment.fold
        return GridPoint(float(trial.params["C"]), self.dataset.splits[fold])
