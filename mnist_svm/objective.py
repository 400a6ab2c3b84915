"""Errors of support vector machines on validation folds and on test images, inside a worker."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mnist_svm.dataset import Dataset, Fit, Solver
from mpitune.trial import Batch, Evaluation, NoRoom, Trial


class SvmObjective:
    """Evaluates batches of trials, each of one gamma.

    A trial has parameters C and gamma, and a fold unless it is a refit. Its values are `error` (or `test_error`), a
    fraction; `n_support`; `converged`, 1 or 0, missing if the solver does not tell (cuML). A refit also has the array
    `predictions`, uint8 (n_test,). With the shared solver the points of one fold start from each other, so they may
    depend, within the solver's tolerance, on which C a batch holds. Where the solver has too little memory here, the
    answer is `NoRoom`.
    """

    def __init__(self, dataset: Dataset, solver: Solver) -> None:
        self.dataset, self.solver = dataset, solver

    def __call__(self, batch: Batch) -> Iterator[Evaluation | NoRoom]:
        gamma = float(batch[0].params["gamma"])  # which all trials of a batch have in common
        fits = self.solver(self.dataset, gamma, [(float(trial.params["C"]), trial.segment.fold) for trial in batch])
        for number, trial in enumerate(batch):
            try:
                fit = next(fits)
            except MemoryError as error:
                yield from (NoRoom(left.key, str(error)) for left in batch[number:])
                return
            yield self._result(trial, fit)

    def _result(self, trial: Trial, fit: Fit) -> Evaluation:
        fold = trial.segment.fold
        error = float(np.mean(fit.predictions != self.dataset.evaluated(fold)[1]))
        values = {"test_error" if fold is None else "error": error, "n_support": float(fit.n_support)}
        if fit.converged is not None:
            values["converged"] = float(fit.converged)
        arrays = {"predictions": fit.predictions.astype(np.uint8)} if fold is None else {}
        return Evaluation(trial.key, values, arrays)
