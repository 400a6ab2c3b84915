"""The grid search: which points, in which batches, and what is reported of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from common.images import ImageSettings
from mnist_svm.summary import REFIT, Point, best_point, print_summary, summarised, table_rows
from mpitune.devices import probe
from mpitune.devices.choose import free_memory
from mpitune.earlier.studies import Earlier
from mpitune.errors import UsageError
from mpitune.experiment import Data, Objective, WorkerContext
from mpitune.figures.panels import Section
from mpitune.port import Matching, Reporting, Scheduling, WantsCores
from mpitune.settings import setting
from mpitune.storage.files import written_whole
from mpitune.storage.history import History
from mpitune.storage.table import write_table
from mpitune.trial import Batch, Outcome, Parameter, Result, Rounds, Segment, Trial

KERNEL_PART = 0.06  # of the work of one gamma: divided by fold it takes 1.24 times as long in all, see division.md


@dataclass(frozen=True)
class SvmGrid(ImageSettings):
    """Choose penalty C and kernel parameter gamma of a support vector machine by cross-validation.

    The kernel is exp(-gamma |x - z|^2). The grid is n x n points, C = 10^-3 to 10^6 and
    gamma = 10^-6 to 10^-2, equally spaced in the exponent; the best point is then fitted to all
    training images.
    """

    n_tuning: int = setting(help="values of C, and of gamma: the grid has n x n points", low=1, high=300, selects=True)
    multiclass: str = setting(
        "ovo",
        "one classifier per pair of classes (ovo) or per class against the rest (ovr)",
        choices=("ovo", "ovr"),
        advanced=True,
    )
    solver: str = setting(
        "auto",
        "auto (shared), shared (the whole grid as one computation, on CPU cores), sklearn (on CPU cores) or cuml "
        "(cuML of NVIDIA's RAPIDS, point by point, on GPUs)",
        choices=("auto", "shared", "sklearn", "cuml"),
    )
    memory: float | None = setting(
        None,
        "memory of each worker for the shared solver (default: six tenths of what is free, divided by the workers)",
        low=0.1,
        high=10**6,
        changes_results=False,
        metavar="GB",
        advanced=True,
    )

    @cached_property
    def penalties(self) -> np.ndarray:
        """C, float64 (n_tuning,), ascending."""
        return 10 ** np.linspace(-3, 6, self.n_tuning)

    @cached_property
    def gammas(self) -> np.ndarray:
        """gamma, float64 (n_tuning,), ascending."""
        return 10 ** np.linspace(-6, -2, self.n_tuning)

    def scheduling(self) -> Scheduling:
        return Scheduling(
            n_trials=self.n_trials(),
            cost=self.cost,
            split_batch=self.split_batch,
            shared_cost=self.shared_cost,
            preload=("mnist_svm.dataset", "mnist_svm.objective", "mnist_svm.solvers", "mpitune.svm.solved"),
        )

    def check(self, device: str, visible: str) -> None:
        """Raises UsageError where cuML is asked for and cannot be used. The other solvers have all CPU cores.

        Whether it can be imported is found out in a process of its own, as a rank holds no GPU library.
        """
        if self.solver != "cuml" and device != "cpu":
            why = "it has no code for GPUs" if self.solver == "sklearn" else "points of the grid share work only there"
            there = "cuML is installed, but " if find_spec("cuml") and self.solver == "auto" else ""
            how = "--solver cuml fits point by point on the GPUs"
            raise WantsCores(f"{there}--solver {self.solver} uses all CPU cores, as {why}; {how}")
        if self.solver != "cuml":
            return
        if device == "cpu":
            raise UsageError("--solver cuml needs a GPU: name one with --gpu, or use --solver shared")
        if why := probe.why_unusable("cuml", visible)():
            raise UsageError(f"--solver cuml: {why}, or use --solver shared")

    def data(self) -> dict[str, np.ndarray]:
        """The arrays of `common.data.load`. Raises UsageError when a fold leaves a class without images."""
        from mnist_svm.dataset import check_classes

        arrays = super().data()
        labels = arrays["train_labels"]
        try:
            check_classes(labels, self.folds)
        except ValueError as error:
            raise UsageError(f"{error}; give a larger --train-size") from error
        return arrays

    def matching(self, earlier: Sequence[Earlier]) -> Matching:
        return Matching(by_key=False)  # keys are places in the grid; nothing is drawn at random

    def searches(self) -> Iterable[Rounds]:
        return [self._search()]

    def key(self, g: int, c: int, fold: int) -> str:
        """Of the trial of a point, by the indices of gamma and C, on one fold."""
        width = max(2, len(str(self.n_tuning - 1)))
        return f"g{g:0{width}}/c{c:0{width}}/f{fold}"

    def params(self, point: Point) -> dict[str, Parameter]:
        """Of a point, for any fold."""
        g, c = point
        return {"C": float(self.penalties[c]), "gamma": float(self.gammas[g])}

    def at(self, point: Point, results: Mapping[str, Result]) -> list[Result]:
        """Those of a point's folds that are there."""
        keys = (self.key(*point, fold) for fold in range(self.folds))
        return [results[key] for key in keys if key in results]

    def errors(self, results: Mapping[str, Result]) -> np.ndarray:
        """float64 (folds, n_gamma, n_C); NaN where a trial failed or has no result."""
        errors = np.full((self.folds, self.n_tuning, self.n_tuning), np.nan)
        for fold, g, c in np.ndindex(errors.shape):
            result = results.get(self.key(g, c, fold))
            if result is not None:
                errors[fold, g, c] = result.value("error")
        return errors

    def _search(self) -> Rounds:
        """Batches of whole gammas, all folds with every C ascending; then the refit of the chosen point, if any."""
        every = range(self.n_tuning)
        results = yield [
            tuple(
                Trial(self.key(g, c, fold), self.params((g, c)), Segment(fold=fold))
                for fold in range(self.folds)
                for c in every
            )
            for g in every
        ]
        errors = self.errors({result.key: result for result in results})
        point = best_point(errors)
        if point is not None:
            yield [(Trial(REFIT, self.params(point)),)]
        return errors

    def objective(self, worker: WorkerContext) -> Objective:
        from mnist_svm.dataset import Dataset
        from mnist_svm.objective import SvmObjective
        from mnist_svm.solvers import make_solver

        memory = 0.6 * free_memory() / worker.n_workers if self.memory is None else self.memory * 1e9
        # The largest batch of one gamma: not the first that comes, which after a resume may be a single point.
        n_points = self.n_tuning * (1 if self._is_divided(worker.n_workers) else self.folds)
        dataset = Dataset.of(worker.data, self.folds, self.max_pixel)
        solver = make_solver(self.solver, worker, multiclass=self.multiclass, memory=int(memory), n_points=n_points)
        return SvmObjective(dataset, solver)

    def split_batch(self, batch: Batch) -> list[Batch]:
        """By fold: a 24 x 24 grid is 24 batches, or up to 120 parts of them (5 folds)."""
        folds = dict.fromkeys(trial.segment.fold for trial in batch)
        return [tuple(trial for trial in batch if trial.segment.fold == fold) for fold in folds]

    def shared_cost(self, batch: Batch, workers: int) -> float:
        """The kernel matrix of a gamma, which the folds have in common: KERNEL_PART of the whole grid's work on it.

        Nothing where points are fitted one by one. Nothing with one-vs-rest where workers of a node share the matrix:
        they may have memory for one only, so all of them work on the same gamma.
        """
        if self.solver in ("sklearn", "cuml") or self._is_divided(workers):
            return 0.0
        return KERNEL_PART * self.cost(batch[0]) * self.n_tuning * self.folds

    def _is_divided(self, workers: int) -> bool:
        """Whether each batch is one fold, where a node has so many workers."""
        return self.multiclass == "ovr" and self.solver in ("auto", "shared") and workers > 1

    def cost(self, trial: Trial) -> float:
        """Slowest at both ends: a large gamma makes every image a support vector, a small one needs a large C."""
        return 1 + abs(math.log10(float(trial.params["gamma"])) + 4)

    def n_trials(self) -> int:
        return len(self.gammas) * len(self.penalties) * self.folds + 1

    def report(self, outcomes: Sequence[Outcome], conclusions: Sequence[np.ndarray], data: Data, folder: Path) -> None:
        """Print the chosen point; write validation_error.npy, results.csv, best.json and the figures.

        validation_error.npy: float64 (folds, n_gamma, n_C), fraction of each fold that is wrong, NaN where failed.
        """
        from mnist_svm.figures import draw_figures

        results = {outcome.trial.key: outcome.result for outcome in outcomes}
        (errors,) = conclusions
        with written_whole(folder / "validation_error.npy") as file:
            np.save(file, errors)
        write_table(folder / "results.csv", table_rows(self, results, errors))
        summary = summarised(self, results, errors)
        with written_whole(folder / "best.json", "w") as file:
            json.dump(summary, file, indent=2)
            file.write("\n")
        draw_figures(folder, errors, gammas=self.gammas, penalties=self.penalties, best=best_point(errors))
        print_summary(summary, errors.size)

    def reporting(self) -> Reporting:
        tables = ("validation_error.npy", "results.csv", "best.json")
        return Reporting(
            "minimize error", sections=self.report_sections,
            files=(*tables, "heat_map.svg", "heat_map.png", "figures"), best=self._best,
        )  # fmt: skip

    def _best(self, history: History) -> Mapping[str, Parameter] | None:
        point = best_point(self.errors(history.results))
        return None if point is None else self.params(point)

    def report_sections(self, history: History, data: Data | None) -> Sequence[Section]:
        from mnist_svm.sections import sections_of

        return sections_of(self, history.results)
