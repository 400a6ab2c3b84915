"""Matrices and solutions that lie on a device at a time."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from mpitune.svm.cuda.device import ComputeDevice
from mpitune.svm.cuda.launch import Lanes
from mpitune.svm.cuda.matrices import STRIP
from mpitune.svm.decide.multiclass import binary_problems
from mpitune.svm.kernel.rbf import Samples, training_mask

log = logging.getLogger(__name__)

CHUNK = 256 << 20  # bytes of the blocks in which decision values are computed


@dataclass(frozen=True)
class Loaded:
    """Samples on a device.

    Attributes:
        memory: bytes that may be used besides, by default what the device says.
    """

    device: ComputeDevice
    samples: Samples
    memory: int | None = None

    @cached_property
    def x(self) -> Any:
        """float32 (width, n_features), centred; rows of no sample are zero."""
        return self.device.xp.asarray(self.samples.x(np.arange(self.samples.width)))

    @cached_property
    def sq_norms(self) -> Any:
        return self.device.xp.asarray(self.samples.sq_norms)

    @property
    def working(self) -> int:
        """Bytes that the samples, the making of matrices and the decision values take."""
        return 4 * (self.samples.width * (3 * STRIP + self.samples.n_features)) + 4 * CHUNK


@dataclass(frozen=True)
class View:
    """A matrix K - 1 and the binary problems that read it.

    Attributes:
        rows: int64 (width,), the samples it is of.
        problems: classes, as in `Solutions`.
        lanes: of each problem and training set, the sets of one problem one after the other.
    """

    rows: np.ndarray
    problems: list[tuple[int, int]] = field(default_factory=list)
    lanes: list[Lanes] = field(default_factory=list)

    def bytes(self, n_penalties: int) -> int:
        return 4 * len(self.rows) ** 2 + sum(lanes.bytes(n_penalties) for lanes in self.lanes)


@dataclass(frozen=True)
class LaunchPlan:
    """The launches, and the memory of the largest.

    Attributes:
        views: of one gamma.
        groups: the parts of each launch, as (number of the gamma, number of the view).
        bytes: that the largest launch takes, with its samples and decision values.
    """

    views: list[View]
    groups: list[list[tuple[int, int]]]
    bytes: int


def plan(
    loaded: Loaded,
    n_gammas: int,
    *,
    penalties: np.ndarray,
    trainings: Sequence[np.ndarray],
    multiclass: str,
    memory: int,
) -> LaunchPlan:
    """One view of all samples if it fits the memory; otherwise, for one-vs-one, a view of each pair of classes.

    Args:
        loaded: samples on the device.
        n_gammas: matrices at most at the same time.
        penalties: float64 (n_penalties,), ascending.
        trainings: int64 indices of the samples of each training set.
        multiclass: "ovo" or "ovr".
        memory: bytes of the device that may be used.

    Raises:
        MemoryError: not even one matrix fits; the text names the memory needed.
    """
    samples, budget = loaded.samples, memory - loaded.working
    masks = [training_mask(samples, training, number) for number, training in enumerate(trainings)]
    classes = binary_problems(len(samples.classes), multiclass)
    runs = [np.arange(first, last) for first, last in zip(samples.class_start, samples.class_start[1:], strict=False)]
    views = [_view(np.arange(samples.width), classes, samples, masks)]
    if views[0].bytes(len(penalties)) > budget and multiclass == "ovo":
        views = [_view(np.concatenate([runs[a], runs[b]]), [(a, b)], samples, masks) for a, b in classes]
    sizes = [view.bytes(len(penalties)) for view in views]
    if max(sizes) > budget:
        raise MemoryError(
            f"{multiclass} over {len(samples.row_of)} samples needs {max(sizes) / 1e9:.2f} GB of the GPU's memory for "
            f"a kernel matrix and its solutions, {max(budget, 0) / 1e9:.2f} GB are free: give --solver cuml, a smaller "
            f"--train-size, or --gpu none for the CPU's solver"
        )
    groups: list[list[tuple[int, int]]] = [[]]
    taken = [0]
    for item in np.ndindex(n_gammas, len(views)):
        if taken[-1] + sizes[item[1]] > budget:
            groups.append([])
            taken.append(0)
        groups[-1].append((item[0], item[1]))
        taken[-1] += sizes[item[1]]
    of = "all samples" if len(views) == 1 else "a class pair"
    log.info(
        "%s: K of %s, %.2f GB each; %d gammas in %d launches", multiclass, of, max(sizes) / 1e9, n_gammas, len(groups)
    )
    return LaunchPlan(views, groups, max(taken) + loaded.working)


def _view(rows: np.ndarray, problems: list[tuple[int, int]], samples: Samples, masks: Sequence[np.ndarray]) -> View:
    label = np.searchsorted(samples.class_start, rows, side="right") - 1
    lanes = []
    for positive, negative in problems:
        sign = np.where(label == positive, 1, np.where((label == negative) | (negative < 0), -1, 0)).astype(np.int8)
        lanes += [Lanes.of(sign * mask[rows]) for mask in masks]
    return View(rows, problems, lanes)
