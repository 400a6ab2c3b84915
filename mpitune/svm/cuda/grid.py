"""All C of many gammas on a device, for several folds at once; and a single fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from mpitune.svm.cuda.launch import solve_paths
from mpitune.svm.cuda.matrices import kernel_between, kernels_minus_one
from mpitune.svm.cuda.plan import CHUNK, LaunchPlan, Loaded, View, plan
from mpitune.svm.cuda.verify import check_launch
from mpitune.svm.decide.multiclass import Solutions, keep
from mpitune.svm.grid import TOLERANCE, Classifier, Fold, PointResult, point_results
from mpitune.svm.kernel.rbf import sq_lengths
from mpitune.svm.solver.path import Paths

# Of a path and C, after which it counts as not converged. Nothing can stop a launch, and an iteration takes some 10 us
# there: this is two minutes. The CPU's solver is patient for longer.
MAX_ITER = 10**7


def solve_gammas(
    loaded: Loaded,
    gammas: Sequence[float],
    penalties: Sequence[float],
    folds: Sequence[Fold],
    multiclass: str,
    *,
    tolerance: float = TOLERANCE,
    max_iter: int = MAX_ITER,
) -> Iterator[list[list[PointResult]]]:
    """Solve all C of each gamma on each fold; yields [fold][C] in the order given, gamma by gamma.

    It agrees with `mpitune.svm.solve_gamma` within the tolerance. As many gammas are in flight as the memory allows; no
    point depends on that. Of each launch one solution is verified.

    Args:
        loaded: samples on the device.
        gammas: above 0.
        penalties: every C, above 0, in any order.
        folds: the parts of each fold.
        multiclass: "ovo" (one-vs-one) or "ovr" (one-vs-rest).
        tolerance: by which a solution may violate the optimality conditions.
        max_iter: iterations per binary problem and C, after which it counts as not converged.

    Raises:
        ValueError: a class is missing from the training part of a fold, or C or gamma is not above 0.
        MemoryError: not even one matrix fits; the text names the memory needed.
        WrongResult: what the device computed is no solution.
    """
    order = np.argsort(penalties, kind="stable")
    back = np.argsort(order)
    samples, trainings = loaded.samples, [train for train, _ in folds]
    ascending = np.asarray(penalties, float)[order]
    everything = solve(loaded, gammas, ascending, trainings, multiclass, tolerance=tolerance, max_iter=max_iter)
    for gamma, solutions in zip(gammas, everything, strict=True):
        result = []
        for (_, validation), solved in zip(folds, solutions, strict=True):
            rows = loaded.device.xp.asarray(samples.row_of[validation])
            points = point_results(solved, _labels(loaded, solved, gamma, loaded.x[rows], loaded.sq_norms[rows]))
            result.append([points[c] for c in back])
        yield result


def solve(
    loaded: Loaded,
    gammas: Sequence[float],
    penalties: np.ndarray,
    trainings: Sequence[np.ndarray],
    multiclass: str,
    *,
    tolerance: float,
    max_iter: int,
) -> Iterator[list[Solutions]]:
    """The binary problems of each training set, gamma by gamma; see `solve_gammas`.

    Args:
        loaded: samples on the device.
        gammas: above 0.
        penalties: float64 (n_penalties,), ascending.
        trainings: int64 indices of the samples of each training set.
        multiclass: "ovo" or "ovr".
        tolerance: by which a solution may violate the optimality conditions.
        max_iter: iterations per binary problem and C.
    """
    if not (np.min(gammas) > 0 and penalties.min() > 0):
        raise ValueError(f"the smallest gamma is {np.min(gammas)} and C {penalties.min()}: both must be above 0")
    # The samples stay on the device. Inside a reservation they would be cut from its block, which then never went back.
    _ = loaded.x, loaded.sq_norms
    memory = loaded.device.memory() if loaded.memory is None else loaded.memory
    while True:
        planned = plan(
            loaded, len(gammas), penalties=penalties, trainings=trainings, multiclass=multiclass, memory=memory
        )
        with loaded.device.reserved(planned.bytes) as granted:
            if granted >= planned.bytes:
                yield from _solve_planned(loaded, planned, gammas, penalties, len(trainings), tolerance, max_iter)
                return
        memory = granted  # others have the rest, and do not give it back


def _solve_planned(
    loaded: Loaded,
    planned: LaunchPlan,
    gammas: Sequence[float],
    penalties: np.ndarray,
    n_trainings: int,
    tolerance: float,
    max_iter: int,
) -> Iterator[list[Solutions]]:
    samples, views = loaded.samples, planned.views
    solutions: list[Solutions] = []
    for group in planned.groups:
        found = _walk_group(loaded, [(gammas[g], views[v]) for g, v in group], penalties, tolerance, max_iter)
        for (_, v), paths_of_view in zip(group, found, strict=True):
            view = views[v]
            if v == 0:
                solutions = [Solutions(samples, len(penalties)) for _ in range(n_trainings)]
            for m, problem in enumerate(view.problems):
                for t, solved in enumerate(solutions):
                    keep([solved], problem, Paths.of(paths_of_view[m * n_trainings + t]), view.rows)
            if v == len(views) - 1:
                yield solutions


def _walk_group(
    loaded: Loaded, group: Sequence[tuple[float, View]], penalties: np.ndarray, tolerance: float, max_iter: int
) -> list[Any]:
    """The paths of each view, in the order of its lanes, of all views in one launch."""
    xp = loaded.device.xp
    widths = np.array([len(view.rows) for _, view in group])
    kernels = xp.empty(int((widths**2).sum()), np.float32)
    at = 0
    for _, run in groupby(group, key=lambda item: id(item[1])):  # several gammas of one view
        same = list(run)
        gammas, view = [gamma for gamma, _ in same], same[0][1]
        width = len(view.rows)
        part = kernels[at : at + len(gammas) * width**2].reshape(len(gammas), width, width)
        whole = width == loaded.samples.width
        rows = slice(None) if whole else xp.asarray(view.rows)
        x, sq_norms = loaded.x[rows], loaded.sq_norms[rows]
        kernels_minus_one(xp, x, sq_norms, gammas, part)
        at += part.size
    matrices = list(zip((np.cumsum(widths**2) - widths**2).tolist(), widths.tolist(), strict=True))
    problems = [(number, lanes) for number, (_, view) in enumerate(group) for lanes in view.lanes]
    # The smaller gamma and the larger the problem, the longer a path takes.
    order = sorted(range(len(problems)), key=lambda p: (group[problems[p][0]][0], -len(problems[p][1])))
    ordered = [problems[p] for p in order]
    found = solve_paths(loaded.device, kernels, matrices, ordered, penalties, tolerance, max_iter)
    check_launch(xp, kernels, matrices, ordered, paths=found, penalties=penalties, tolerance=tolerance)
    by_view: list[Any] = [[None] * len(view.lanes) for _, view in group]
    starts = np.concatenate([[0], np.cumsum([len(view.lanes) for _, view in group])])
    for p, path in zip(order, found, strict=True):
        number = problems[p][0]
        by_view[number][p - starts[number]] = path
    return by_view


def _labels(loaded: Loaded, solved: Solutions, gamma: float, x: Any, sq_norms: Any) -> np.ndarray:
    """Class indices (n_penalties, n) of samples on the device: float32 (n, n_features), centred, and sq_norms (n,)."""
    device, xp = loaded.device, loaded.device.xp
    offsets = solved.offsets()
    blocks = [tuple(xp.asarray(part) for part in block) for block in solved.blocks()]
    widest = max([len(rows) for rows, _, _ in blocks] + [len(offsets)])
    step = max(1, CHUNK // (8 * widest))
    result = np.empty((solved.n_penalties, len(x)), np.int64)
    for start in range(0, len(x), step):
        part = slice(start, min(start + step, len(x)))
        decisions = xp.tile(xp.asarray(-offsets), (part.stop - part.start, 1))
        for rows, weights, targets in blocks:
            kernel = kernel_between(xp, x[part], sq_norms[part], loaded.x[rows], loaded.sq_norms[rows], gamma)
            decisions[:, targets] += kernel.astype(np.float64) @ weights
        result[:, part] = solved.labels(device.to_host(decisions))
    return result


@dataclass(frozen=True)
class CudaClassifier(Classifier):
    """A classifier of one C and gamma on a device; see `fit`."""

    loaded: Loaded

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Labels (n,) of samples (n, n_features)."""
        samples, xp = self.loaded.samples, self.loaded.device.xp
        centred = (x - samples.centre).astype(np.float32)
        sq_norms = xp.asarray(sq_lengths(centred))
        return samples.classes[_labels(self.loaded, self.solved, self.gamma, xp.asarray(centred), sq_norms)[0]]


def fit(loaded: Loaded, C: float, gamma: float, multiclass: str) -> CudaClassifier:
    """Fit one support vector classifier to all samples.

    Args:
        loaded: samples on the device.
        C: penalty, above 0.
        gamma: of the kernel, above 0.
        multiclass: "ovo" (one-vs-one) or "ovr" (one-vs-rest).

    Raises:
        ValueError: C or gamma is not above 0.
        MemoryError: the matrix does not fit.
        WrongResult: what the device computed is no solution.
    """
    everything = [np.arange(len(loaded.samples.row_of))]
    penalties = np.array([C], float)
    (solutions,) = solve(loaded, [gamma], penalties, everything, multiclass, tolerance=TOLERANCE, max_iter=MAX_ITER)
    return CudaClassifier(solutions[0], gamma, loaded)
