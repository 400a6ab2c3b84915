"""Whether the solver computes what it should on this device, before any result depends on it.

`examine` needs no other solver for most of it: whether a path is optimal can be computed. It wants a process of its
own, since a wrong address poisons a CUDA context and a deadlock hangs.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from mpitune.svm.cuda.device import SCRATCH, ComputeDevice, Gpu
from mpitune.svm.cuda.grid import solve_gammas
from mpitune.svm.cuda.launch import Lanes, solve_paths
from mpitune.svm.cuda.matrices import kernels_minus_one
from mpitune.svm.cuda.plan import Loaded, plan
from mpitune.svm.cuda.verify import WrongResult, check_solution
from mpitune.svm.grid import TOLERANCE, Fold
from mpitune.svm.kernel.rbf import Samples, prepare
from mpitune.svm.solver.path import Path

FINDINGS = ("it runs", "kernel matrices", "solutions", "any block size", "state outside of the block", "twice the same",
            "memory is given back", "predictions")  # fmt: skip
GAMMAS, PENALTIES = (1e-4, 0.5), np.array([0.01, 1.0, 1e4])
LIMIT = 10**6  # iterations of a path and C; thousands are enough
NEEDED = 1 << 30  # bytes of the device


def examine(per_class: str = "70", most_threads: str = "512") -> Iterator[tuple[str, str]]:
    """Each of FINDINGS with "" or its fault.

    Args:
        per_class: samples of each of three classes; 70 cut a block of lanes.
        most_threads: of the largest thread block that is tried.

    Raises:
        MemoryError: too little of the device is free to tell.
    """
    device = Gpu()
    if (free := device.memory()) < NEEDED:
        raise MemoryError(f"the check needs {NEEDED / 1e9:.1f} GB of the GPU's memory, {free / 1e9:.1f} GB are free")
    case = _Case(int(per_class))
    few = _Layout(device, 64)
    yield FINDINGS[0], ""
    loaded = Loaded(few, case.samples)
    width = case.samples.width
    kernels = device.xp.empty((len(GAMMAS), width, width), np.float32)
    kernels_minus_one(device.xp, loaded.x, loaded.sq_norms, GAMMAS, kernels)
    yield FINDINGS[1], case.wrong_matrices(few.to_host(kernels))
    matrices, flat = few.to_host(kernels), kernels.ravel()
    lanes = {multiclass: case.lanes(loaded, multiclass) for multiclass in ("ovo", "ovr")}

    def walked(layout: ComputeDevice) -> list[Path]:
        places = [(number * width**2, width) for number in range(len(GAMMAS))]
        return [
            path
            for of_machines in lanes.values()
            for path in solve_paths(
                layout, flat, places, [(g, each) for g in range(len(GAMMAS)) for each in of_machines], PENALTIES,
                TOLERANCE, LIMIT,
            )
        ]  # fmt: skip

    expected = walked(few)
    problems = [(g, each) for of_machines in lanes.values() for g in range(len(GAMMAS)) for each in of_machines]
    yield FINDINGS[2], _wrong_solutions(matrices, problems, expected)
    others: dict[str, Callable[[], ComputeDevice]] = {
        FINDINGS[3]: lambda: _Layout(device, int(most_threads)),
        FINDINGS[4]: lambda: _Layout(device, 64, SCRATCH),
        FINDINGS[5]: lambda: few,
    }
    held = _held(device)
    for name, layout in others.items():
        same = sum(_same(a, b) for a, b in zip(expected, walked(layout()), strict=True))
        yield name, "" if same == len(expected) else f"{len(expected) - same} of {len(expected)} paths have other bits"
    kept = _held(device) - held
    yield FINDINGS[6], f"{kept} bytes of the GPU's memory are not given back" if kept > 0 else ""
    yield FINDINGS[7], "; ".join(filter(None, (case.wrong_predictions(loaded, name) for name in lanes)))


def _held(device: Gpu) -> int:
    """Bytes of the GPU's memory that arrays of this process have."""
    gc.collect()
    return int(device.xp.get_default_memory_pool().used_bytes())


class _Layout:
    """A device with blocks of so many threads, and so much memory of their own."""

    def __init__(self, device: Gpu, threads: int, own_memory: int | None = None) -> None:
        self.device, self.n_threads, self.xp = device, threads, device.xp
        self.shared_memory: int = device.shared_memory if own_memory is None else own_memory

    def threads(self, lanes: int) -> int:
        return self.n_threads

    def memory(self) -> int:
        return self.device.memory()

    def reserved(self, n_bytes: int) -> AbstractContextManager[int]:
        return self.device.reserved(n_bytes)

    def launch(self, blocks: int, threads: int, shared_memory: int, arguments: tuple[Any, ...]) -> None:
        self.device.launch(blocks, threads, shared_memory, arguments)

    def to_host(self, array: Any) -> np.ndarray:
        return self.device.to_host(array)


class _Case:
    """Three clouds that overlap, and two folds."""

    def __init__(self, per_class: int) -> None:
        n = 3 * per_class
        self.y = np.arange(n) % 3
        self.x = (np.random.default_rng(0).normal(size=(n, 6)) + np.eye(6)[self.y]).astype(np.float32)
        self.samples: Samples = prepare(self.x, self.y)
        halves = np.arange(n) // 3 % 2
        self.folds: list[Fold] = [(np.flatnonzero(halves != k), np.flatnonzero(halves == k)) for k in (0, 1)]

    def lanes(self, loaded: Loaded, multiclass: str) -> list[Lanes]:
        trainings = [train for train, _ in self.folds]
        memory = NEEDED + loaded.working
        launches = plan(
            loaded, len(GAMMAS), penalties=PENALTIES, trainings=trainings, multiclass=multiclass, memory=memory
        )
        return launches.views[0].lanes

    def wrong_matrices(self, kernels: np.ndarray) -> str:
        """Errors of K - 1 of GAMMAS, against float64."""
        x = self.samples.x(np.arange(self.samples.width)).astype(np.float64)
        distances = np.square(x[:, None] - x).sum(axis=2)
        for gamma, found in zip(GAMMAS, kernels, strict=True):
            exact = np.expm1(-gamma * distances)
            wrong = float((np.abs(found - exact) / (np.abs(exact) + gamma)).max())
            if not wrong <= 1e-5:
                return f"K - 1 of gamma {gamma:g} is wrong by {wrong:.1e} of itself, float32 allows 1e-5 (TF32?)"
            if not np.array_equal(found, found.T) or found.diagonal().any():
                return f"K - 1 of gamma {gamma:g} is not symmetric with a diagonal of zeros"
        return ""

    def wrong_predictions(self, loaded: Loaded, multiclass: str) -> str:
        """Differences from scikit-learn's answers on the held-out folds."""
        from sklearn.multiclass import OneVsRestClassifier
        from sklearn.svm import SVC

        try:
            everything = list(solve_gammas(loaded, GAMMAS, PENALTIES.tolist(), self.folds, multiclass, max_iter=LIMIT))
        except WrongResult as error:
            return str(error)
        for gamma, grid in zip(GAMMAS, everything, strict=True):
            for (train, validation), row in zip(self.folds, grid, strict=True):
                for penalty, point in zip(PENALTIES, row, strict=True):
                    if penalty * gamma < 0.1:
                        continue  # the classes' decision values differ by less than the tolerance
                    peer: Any = SVC(C=penalty, gamma=gamma)
                    peer = peer if multiclass == "ovo" else OneVsRestClassifier(peer)
                    answers = peer.fit(self.x[train], self.y[train]).predict(self.x[validation])
                    if (wrong := int((answers != point.predictions).sum())) > 1:
                        return f"{multiclass}, C {penalty:g}, gamma {gamma:g}: {wrong} answers are not scikit-learn's"
        return ""


def _wrong_solutions(matrices: np.ndarray, problems: list[tuple[int, Lanes]], paths: list[Path]) -> str:
    for (number, lanes), path in zip(problems, paths, strict=True):
        for c, bound in enumerate(PENALTIES):
            if not path.converged[c]:
                return f"a path for C = {bound:g} did not converge within {LIMIT} iterations"
            try:
                check_solution(
                    np, matrices[number].astype(np.float64), lanes, path, c=c, bound=float(bound), tolerance=TOLERANCE
                )
            except WrongResult as error:
                return str(error)
    return ""


def _same(a: Path, b: Path) -> bool:
    names = ("columns", "betas", "rhos", "iterations", "converged")
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)
