"""The grid search: which points, in which batches, and what is reported of them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from common import statistics
from common.cluster import probe
from common.cluster.devices import Device, free_memory
from common.cluster.shared_arrays import Spec
from common.errors import UsageError
from common.experiment import Data, DoctorChecks, Objective, WorkerContext
from common.images import DatasetSettings, ImageSettings, fold_slices
from common.settings import setting
from common.storage.files import written_whole
from common.storage.table import last_line, write_table
from common.trial import Batch, Outcome, Result, Search, Trial
from kernel_svm.layout import buffer_sizes

REFIT = "refit"
KERNEL_PART = 0.06  # of the work of one gamma: divided by fold it takes 1.24 times as long in all, see division.md


@dataclass(frozen=True)
class SvmGrid(ImageSettings):
    """Choose penalty C and kernel parameter gamma of a support vector machine by cross-validation.

    The kernel is exp(-gamma |x - z|^2). The grid is n x n points, C = 10^-3 to 10^6 and
    gamma = 10^-6 to 10^-2, equally spaced in the exponent; the best point is then fitted to all
    training images.
    """

    doctor_checks = DoctorChecks(
        settings=DatasetSettings,
        libraries={"cpu": ("sklearn",), "cuda": ("sklearn",)},
        optional={"cuda": ("cupy", "cuml")},
        self_checks=("mnist_svm.solvers.trust:verdict_of_gpu",),
        benchmarks=("mnist_svm.solvers.rates:measured",),
    )

    n_tuning: int = setting(help="values of C, and of gamma: the grid has n x n points", low=1, high=300)
    multiclass: str = setting(
        "ovo", "one classifier per pair of classes (ovo) or per class against the rest (ovr)", choices=("ovo", "ovr")
    )
    solver: str = setting(
        "auto",
        "auto (shared, on a GPU only if it passes its check there, else on a core beside it), shared (the whole grid "
        "as one computation), sklearn or cuml",
        choices=("auto", "shared", "sklearn", "cuml"),
    )
    memory: float | None = setting(
        None,
        "memory of each worker for the shared solver (default: six tenths of what is free, divided by the workers)",
        low=0.1,
        changes_results=False,
        metavar="GB",
    )
    gammas_per_batch: int | None = setting(
        None,
        "values of gamma that one slot solves together, with all their folds (shared solver on a GPU: more paths at a "
        "time, more memory; default: 1, and folds apart where there are many slots)",
        low=1,
        changes_results=False,
        metavar="N",
    )

    @cached_property
    def penalties(self) -> np.ndarray:
        """C, float64 (n_tuning,), ascending."""
        return 10 ** np.linspace(-3, 6, self.n_tuning)

    @cached_property
    def gammas(self) -> np.ndarray:
        """gamma, float64 (n_tuning,), ascending."""
        return 10 ** np.linspace(-6, -2, self.n_tuning)

    def check(self, device: str) -> None:
        """Raises UsageError for a solver that this kind of device or this installation does not have.

        Whether its library can be imported is found out in a process of its own, as a rank holds no GPU library.
        """
        if device == "cpu":
            if self.solver == "cuml":
                raise UsageError(f"--solver {self.solver} needs a GPU: name one with --gpu, or use --solver shared")
            return
        library = {"shared": "cupy", "cuml": "cuml"}.get(self.solver)
        if library is None:
            return
        found = probe.answer(probe.begin(Device("cuda", os.environ.get("CUDA_VISIBLE_DEVICES", "0")), library))
        if wrong := found.get("error") or (None if found["installed"] else "it is not installed"):
            raise UsageError(
                f"--solver {self.solver} needs {library} on a GPU, which cannot be imported ({wrong}): "
                "pip install -r requirements-cu12.txt (or -cu11, -cu13), or give --gpu none"
            )

    def self_checks(self) -> Sequence[Sequence[str]]:
        asked = self.solver in ("auto", "shared") and find_spec("cupy")
        return [("mnist_svm.solvers.trust:verdict_of_gpu", "")] if asked else []

    def data(self) -> dict[str, np.ndarray]:
        """The arrays of `common.data.load`. Raises UsageError when a fold leaves a class without images."""
        from mnist_svm.dataset import check_classes

        arrays = super().data()
        labels = arrays["train_labels"]
        try:
            check_classes(labels, fold_slices(len(labels), self.folds))
        except ValueError as error:
            raise UsageError(f"{error}; give a larger --train-size") from error
        return arrays

    def searches(self) -> Iterable[Search]:
        yield self._search()

    def _search(self) -> Search:
        """Batches of whole gammas, all folds with every C ascending; then the refit of the best point, if any.

        Returns:
            What `_errors` says of the grid.
        """
        folds, columns, rows = range(self.folds), range(len(self.penalties)), range(len(self.gammas))
        together = self.gammas_per_batch or 1
        groups = [rows[start : start + together] for start in rows[::together]]
        results = yield [
            tuple(self._trial(g, c, fold) for g in group for fold in folds for c in columns) for group in groups
        ]
        errors = self._errors({result.key: result for result in results})
        best = best_point(errors)
        if best is not None:
            g, c = best
            yield [(Trial(REFIT, {"C": float(self.penalties[c]), "gamma": float(self.gammas[g])}),)]
        return errors

    def shared_buffers(self, device: str, data: Data, n_workers: int) -> dict[str, Spec]:
        """Buffers of the shared solver: with one-vs-rest a kernel matrix for each worker; squared distances."""
        if device != "cpu" or self.solver not in ("auto", "shared") or n_workers == 1:
            return {}
        _, sizes = np.unique(data["train_labels"], return_counts=True)
        return {
            name: Spec((n_bytes,), "|u1")
            for name, n_bytes in buffer_sizes(sizes, n_workers if self.multiclass == "ovr" else 0).items()
        }

    def objective(self, worker: WorkerContext) -> Objective:
        from mnist_svm.dataset import Dataset
        from mnist_svm.objective import SvmObjective
        from mnist_svm.solvers import make_solver, name_here

        memory = 0.6 * free_memory() / worker.n_workers if self.memory is None else self.memory * 1e9
        name = name_here(self.solver, worker.device)
        # The largest batch of one gamma: not the first that comes, which after a resume may be a single point.
        n_points = self.n_tuning * (1 if self._is_divided(worker.n_workers) else self.folds)
        solver = make_solver(name, worker, multiclass=self.multiclass, memory=int(memory), n_points=n_points)
        on_gpu = worker.device == "cuda" and name not in ("shared-on-cpu", "sklearn")
        return SvmObjective(Dataset.of(worker.data, self.folds, self.max_pixel), solver, on_gpu)

    def split_batch(self, batch: Batch) -> list[Batch]:
        """By fold: a 24 x 24 grid is 24 batches, or up to 120 parts of them (5 folds).

        Where `gammas_per_batch` is given, batches stay as they are: a GPU then walks the paths of all folds at once.
        """
        if self.gammas_per_batch is not None:
            return [batch]
        folds = dict.fromkeys(trial.params.get("fold") for trial in batch)
        return [tuple(trial for trial in batch if trial.params.get("fold") == fold) for fold in folds]

    def shared_cost(self, batch: Batch, workers: int) -> float:
        """The kernel matrix of a gamma, which the folds have in common: KERNEL_PART of the whole grid's work on it.

        Nothing where points are fitted one by one. Nothing with one-vs-rest where workers of a node share the matrix:
        they may have memory for one only, so all of them work on the same gamma. A GPU has a matrix of its own,
        and walks the paths of all folds at once.
        """
        if self.solver in ("sklearn", "cuml") or self._is_divided(workers):
            return 0.0
        return KERNEL_PART * self.cost(batch[0]) * self.n_tuning * self.folds

    def _is_divided(self, workers: int) -> bool:
        """Whether each batch is one fold, where a node has so many workers."""
        return self.multiclass == "ovr" and self.solver in ("auto", "shared") and workers > 1

    def cost(self, trial: Trial) -> float:
        """More towards both ends of gamma: a large one makes every image a support vector, a small one most of C."""
        return 1 + abs(math.log10(float(trial.params["gamma"])) + 4)

    def n_trials(self) -> int:
        return len(self.gammas) * len(self.penalties) * self.folds + 1

    def report(self, outcomes: Sequence[Outcome], conclusions: Sequence[np.ndarray], data: Data, folder: Path) -> None:
        """Print the best point; write validation_error.npy, results.csv, best.json and the figures.

        validation_error.npy: float64 (folds, n_gamma, n_C), fraction of each fold that is wrong, NaN where failed.
        """
        from mnist_svm.figures import draw_figures

        results = {outcome.trial.key: outcome.result for outcome in outcomes}
        (errors,) = conclusions
        best = best_point(errors)
        with written_whole(folder / "validation_error.npy") as file:
            np.save(file, errors)
        write_table(folder / "results.csv", self._rows(results, errors))
        summary = self._summary(results, errors, best)
        with written_whole(folder / "best.json", "w") as file:
            json.dump(summary, file, indent=2)
            file.write("\n")
        draw_figures(folder, errors, self.gammas, self.penalties, best)
        _print_summary(summary, errors.size)

    def _key(self, g: int, c: int, fold: int) -> str:
        width = max(2, len(str(self.n_tuning - 1)))
        return f"g{g:0{width}}/c{c:0{width}}/f{fold}"

    def _trial(self, g: int, c: int, fold: int) -> Trial:
        params = {"C": float(self.penalties[c]), "gamma": float(self.gammas[g]), "fold": fold}
        return Trial(self._key(g, c, fold), params)

    def _errors(self, results: dict[str, Result]) -> np.ndarray:
        """float64 (folds, n_gamma, n_C); NaN where a trial failed or has no result."""
        errors = np.full((self.folds, len(self.gammas), len(self.penalties)), np.nan)
        for fold, g, c in np.ndindex(errors.shape):
            result = results.get(self._key(g, c, fold))
            if result is not None:
                errors[fold, g, c] = result.value("error")
        return errors

    def _rows(self, results: dict[str, Result], errors: np.ndarray) -> list[dict[str, Any]]:
        """One row per point, gamma by gamma."""
        rows = []
        for g, c in np.ndindex(errors.shape[1:]):
            keys = [self._key(g, c, fold) for fold in range(self.folds)]
            folds = [results[key] for key in keys if key in results]
            row: dict[str, Any] = {"C": float(self.penalties[c]), "gamma": float(self.gammas[g])}
            row.update({f"error_{fold}": float(error) for fold, error in enumerate(errors[:, g, c])})
            row["mean"], row["standard_deviation"] = float(errors[:, g, c].mean()), float(errors[:, g, c].std())
            row["unconverged_folds"] = sum(result.values.get("converged") == 0 for result in folds)
            row["seconds"] = f"{sum(result.seconds for result in folds):.6g}"
            row["place"] = " ".join(dict.fromkeys(str(result.place) for result in folds))
            row["error"] = "; ".join(dict.fromkeys(last_line(result.error) for result in folds if result.failed))
            rows.append(row)
        return rows

    def _summary(self, results: dict[str, Result], errors: np.ndarray, best: tuple[int, int] | None) -> dict[str, Any]:
        """The best point and its errors as JSON values; None for what is not known. Intervals are of 95 %."""
        summary: dict[str, Any] = dict.fromkeys((
            "C", "gamma", "cross_validation_error", "cross_validation_interval", "standard_deviation",
            "points_within_one_standard_error", "test_error", "test_interval", "n_support",
        ))  # fmt: skip
        if best is not None:
            g, c = best
            summary["C"], summary["gamma"] = float(self.penalties[c]), float(self.gammas[g])
            summary["cross_validation_error"] = float(errors[:, g, c].mean())
            summary["cross_validation_interval"] = list(statistics.cross_validated(errors[:, g, c]))
            summary["standard_deviation"] = float(errors[:, g, c].std())
            reach = errors[:, g, c].mean() + statistics.standard_error(errors[:, g, c])
            summary["points_within_one_standard_error"] = int(np.sum(errors.mean(axis=0) <= reach))
        refit = results.get(REFIT)
        if refit is not None and not refit.failed:
            summary["test_error"], summary["n_support"] = refit.value("test_error"), int(refit.value("n_support"))
            n_test = len(refit.arrays.get("predictions", ()))
            if n_test:
                n_wrong = round(summary["test_error"] * n_test)
                summary["test_interval"] = list(statistics.proportion(n_wrong, n_test))
        on_gpu = ["on_gpu" in result.values for result in results.values() if not result.failed]
        summary["fits_on_gpus"], summary["fits_on_cpus"] = sum(on_gpu), len(on_gpu) - sum(on_gpu)
        summary["failed_fits"] = int(np.isnan(errors).sum())
        summary["unconverged_fits"] = sum(result.values.get("converged") == 0 for result in results.values())
        return summary


def best_point(errors: np.ndarray) -> tuple[int, int] | None:
    """(gamma index, C index) of the least mean error over folds; None when every point has a failed fold.

    errors: (folds, n_gamma, n_C), NaN where failed. Of equal points the one with the smaller C wins,
    then the one with the smaller gamma. Means are compared to 12 decimals, because the last bits of
    a mean depend on the order of its folds.
    """
    means = np.round(errors.mean(axis=0), 12).T
    means[np.isnan(means)] = np.inf
    c, g = np.unravel_index(np.argmin(means), means.shape)
    return (int(g), int(c)) if np.isfinite(means[c, g]) else None


def _percent(interval: Sequence[float] | None) -> str:
    if interval is None:
        return ""
    low, high = interval
    return f" (95 % interval {max(0.0, low):.2%} to {high:.2%})"


def _print_summary(summary: dict[str, Any], n_fits: int) -> None:
    if summary["C"] is None:
        print(f"no best point: each one has a failed fold ({summary['failed_fits']} of {n_fits} fits failed)")
        return
    test_error = "not known: the refit failed"
    if summary["test_error"] is not None:
        test_error = f"{summary['test_error']:.4%}{_percent(summary['test_interval'])}"
    error, within = summary["cross_validation_error"], summary["points_within_one_standard_error"]
    print(f"best penalty C:           {summary['C']:.6g}")
    print(f"best kernel parameter:    {summary['gamma']:.6g}")
    print(f"cross-validation error:   {error:.4%}{_percent(summary['cross_validation_interval'])}")
    print(f"points as good:           {within} within one standard error of the best")
    print(f"test error:               {test_error}")
    if summary["fits_on_gpus"] and summary["fits_on_cpus"]:
        n_gpu, n_cpu = summary["fits_on_gpus"], summary["fits_on_cpus"]
        print(f"fits on GPUs:             {n_gpu} of {n_gpu + n_cpu}, the others on CPUs, within the tolerance")
    if summary["failed_fits"]:
        print(f"failed fits:              {summary['failed_fits']} of {n_fits} (see results.csv)")
    if summary["unconverged_fits"]:
        print(f"fits short of tolerance:  {summary['unconverged_fits']} of {n_fits} (see results.csv)")
