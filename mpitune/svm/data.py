"""Samples, training sets of them, and the binary problems that these make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mpitune._jit.limits import free_memory
from mpitune._jit.simd import aligned_zeros
from mpitune.svm.decide.multiclass import binary_problems
from mpitune.svm.decide.sources import CHUNK, FINE, DoubleSource, KernelSource, RbfSource, far, fine_distances
from mpitune.svm.kernel.functions import KernelFunction
from mpitune.svm.kernel.rbf import Samples, kernel_minus_one, prepare, squared_distances
from mpitune.svm.matrices.plan import choose_plan

LEAST_MEMORY = 5 * CHUNK  # bytes: plans count four blocks, which small problems do not fill


@dataclass(frozen=True)
class TrainingSet:
    """Samples to train on.

    Attributes:
        indices: (m,), of samples, none twice.
        sample_weight: float64 (m,), above 0.
        class_weight: float64 (n_classes,), above 0, of all classes of the samples.
    """

    indices: np.ndarray
    sample_weight: np.ndarray
    class_weight: np.ndarray

    @classmethod
    def without_weights(cls, indices: np.ndarray, n_classes: int) -> TrainingSet:
        """All samples and classes weigh 1."""
        return cls(indices, np.ones(len(indices)), np.ones(n_classes))


# A binary problem of several training sets: the numbers of those that have both sides of it, and for each of these its
# signs, int8 (n, width), 0 where a sample is not in it, and weights, float64 (n, width).
Part = tuple[list[int], np.ndarray, np.ndarray]
# Classes of a binary problem, its matrix, the row of each column.
Matrix = tuple[tuple[int, int], np.ndarray, np.ndarray]


class Data:
    """Samples and what all kernels have in common on them.

    Args:
        x: float64 or float32 (n, n_features).
        y: (n,), classes.
        kernel: its name, "rbf", "linear" or "poly".
        memory: bytes that may be used; half of what is free by default.
        multiclass: "ovo" (one-vs-one) or "ovr" (one-vs-rest, for which `matrices.plan.keep` makes sources).
        folds: as for `prepare`.
        once: only one kernel function will be asked for: of two classes its matrix is made without keeping distances.
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        kernel: str,
        memory: int | None = None,
        *,
        multiclass: str = "ovo",
        folds: np.ndarray | None = None,
        once: bool = False,
    ) -> None:
        self.x, self.multiclass, self._once = x, multiclass, once
        features = x if kernel == "rbf" else x[:, :0]
        self.samples: Samples = prepare(features, y, folds)
        self.memory = max(LEAST_MEMORY, free_memory() // 2) if memory is None else memory
        self._distances: np.ndarray | None = None
        self._fine = False
        self._products: dict[tuple[int, int], np.ndarray] = {}

    def matrices(self, source: KernelSource) -> Iterator[Matrix]:
        """The matrix of each binary problem, in the order of `parts_of`; those of pairs use the same memory in turn."""
        samples = self.samples
        every, start = np.arange(samples.width), samples.class_start.tolist()
        if self.multiclass == "ovr":
            assert isinstance(source, RbfSource)
            matrix = source.kernel
            if matrix is None:
                matrix = kernel_minus_one(samples, source.gamma, distances=source.distances)
            yield from ((problem, matrix, every) for problem in binary_problems(len(samples.classes), "ovr"))
            return
        sizes = np.diff(start)
        buffer = aligned_zeros((int(np.sort(sizes)[-2:].sum()) ** 2,))
        for a, b in binary_problems(len(sizes), "ovo"):
            width = int(sizes[a] + sizes[b])
            pair = buffer[: width * width].reshape(width, width)
            first, second = slice(start[a], start[a + 1]), slice(start[b], start[b + 1])
            source.fill(pair, first, second)
            yield (a, b), pair, np.concatenate([every[first], every[second]])

    def source(self, function: KernelFunction, n_penalties: int, n_trainings: int) -> KernelSource:
        """The kernel in float32, or in double where that is needed, for one-vs-one.

        Raises:
            MemoryError: it does not fit.
        """
        plan = choose_plan(self.samples, "ovo", n_points=n_penalties * n_trainings, memory=self.memory)
        if function.name != "rbf":
            return DoubleSource(self.samples, function, self.x)
        if function.gamma * float(self.samples.sq_norms.max()) > FINE:
            if not plan.distances:
                return DoubleSource(self.samples, function, self.x)
            if not self._fine:
                self._distances, self._fine = fine_distances(self.samples, self.x), True
        elif self._once and len(self.samples.classes) == 2 and not far(self.samples, function.gamma):
            return RbfSource(self.samples, function.gamma)
        elif self._distances is None and plan.distances:
            self._distances = squared_distances(self.samples)
        double = DoubleSource(self.samples, function, self.x) if far(self.samples, function.gamma) else None
        return RbfSource(self.samples, function.gamma, self._distances, None, double)

    def products(self, members: np.ndarray, problem: tuple[int, int]) -> np.ndarray | None:
        """Scalar products of the samples of two classes, kept where there is room; None where there is none for them.

        They take a quarter of the memory at most, beside a pair's kernel values.
        """
        from mpitune.svm.solver.replica import products_of  # and SciPy, which `mnist_svm` lacks

        size = 8 * len(members) ** 2
        if problem in self._products:
            return self._products[problem]
        if 3 * size > self.memory // 4:
            return None
        made = products_of(np.ascontiguousarray(self.x[members], np.float64))
        if 3 * size + sum(kept.nbytes for kept in self._products.values()) <= self.memory // 4:
            self._products[problem] = made
        return made


def parts_of(samples: Samples, trainings: Sequence[TrainingSet], multiclass: str) -> Iterator[Part]:
    """What training sets have of each binary problem."""
    weights = np.zeros((len(trainings), samples.width))
    for own, training in zip(weights, trainings, strict=True):
        weight = training.sample_weight * training.class_weight[samples.labels[training.indices]]
        own[samples.row_of[training.indices]] = weight
    by_class = np.split(weights, samples.class_start[1:-1], axis=1)
    has = np.array([(own > 0).any(axis=1) for own in by_class])  # (n_classes, n_trainings)
    for a, b in binary_problems(len(by_class), multiclass):
        others = has[b] if b >= 0 else np.delete(has, a, axis=0).any(axis=0)
        numbers = np.flatnonzero(has[a] & others).tolist()
        if b >= 0:
            first, second = by_class[a][numbers], by_class[b][numbers]
            yield numbers, np.hstack([first > 0, -1 * (second > 0)]).astype(np.int8), np.hstack([first, second])
        else:
            own = weights[numbers]
            signs = -(own > 0).astype(np.int8)
            signs[:, samples.class_start[a] : samples.class_start[a + 1]] *= -1
            yield numbers, signs, own
