"""Sources of the solver's matrices, and of decision values: one class for each way to compute a kernel.

The solver wants K - u1' - 1u', where u is half the diagonal (see `solver/smo.py`). That shifts the threshold of a
binary problem by u'b, which `shift` is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Protocol

import numpy as np

from mpitune._jit import LANES
from mpitune._jit.simd import aligned_zeros
from mpitune.svm.decide.decisions import Support
from mpitune.svm.decide.multiclass import Solutions
from mpitune.svm.kernel.functions import KernelFunction
from mpitune.svm.kernel.rbf import STRIP, Samples, distances_between, expm1_scaled, kernel_minus_one, panels_of

CHUNK = 64 << 20  # bytes of the blocks in which decision values are computed
TAKEN = 8 << 20  # of those taken from a matrix in memory: the system clears new memory for larger ones
FINE_ROWS = 128  # of squared distances that are computed in double at a time: new memory costs more than the product
FINE = 64.0  # gamma times the largest squared length up to which float32 has squared distances fine enough
FAR = 16.0  # gamma times the mean squared distance from which on most of K is too small for K - 1 in float32 to hold


class KernelSource(Protocol):
    """A kernel over all samples."""

    function: KernelFunction

    def fill(self, out: np.ndarray, one: slice, other: slice) -> None:
        """Write the solver's matrix of two classes, given by the rows of their samples, to ``out``, float32 (m, m)."""

    def shift(self, rows: np.ndarray) -> np.ndarray | None:
        """u of some rows, float64 (len(rows),), or None where it is the same for all."""

    def decisions(self, solved: Solutions, rows: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Decision values of every distinct solution for samples of some rows, float64 (part, solutions) by part."""


class RbfSource:
    """K - 1 of the RBF kernel in float32.

    Args:
        distances, kernel: squared distances and K - 1 of all samples, if they are kept.
        double: given where samples are far from each other. Decision values are then computed from K in double: between
            classes of equal size, values of K like 1e-20 decide.
    """

    def __init__(
        self,
        samples: Samples,
        gamma: float,
        distances: np.ndarray | None = None,
        kernel: np.ndarray | None = None,
        double: DoubleSource | None = None,
    ) -> None:
        self.samples, self.gamma, self.distances, self.kernel, self.double = samples, gamma, distances, kernel, double
        self.function = KernelFunction.of("rbf", gamma, 0, 0.0)

    def fill(self, out: np.ndarray, one: slice, other: slice) -> None:
        fill_pair(self._block, out, one, other, STRIP)

    def _block(self, out: np.ndarray, rows: slice, columns: slice) -> None:
        kernel_minus_one(self.samples, self.gamma, distances=self.distances, out=out, rows=rows, columns=columns)

    def shift(self, rows: np.ndarray) -> np.ndarray | None:
        return None

    def decisions(self, solved: Solutions, rows: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        if self.double is not None:
            yield from self.double.decisions(solved, rows)
            return
        support = Support.of(solved)
        size = CHUNK if self.kernel is None and self.distances is None else TAKEN
        for part in parts(len(rows), max(len(support.rows), len(support.rhos)), size):
            values = support.values(self._panels(rows[part], support.rows))
            yield part, values[:, : part.stop - part.start].T

    def decisions_of_others(self, solved: Solutions, x: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """As `decisions`, for any samples (n, n_features), in float32."""
        support = Support.of(solved)
        for part in parts(len(x), max(len(support.rows), len(support.rhos))):
            panels = self._computed(self.samples.others(x[part]), support.rows)
            yield part, support.values(panels)[:, : part.stop - part.start].T

    def _computed(self, others: tuple[np.ndarray, np.ndarray], support: np.ndarray) -> np.ndarray:
        """K - 1 of samples as `Samples.some` has them, packed, with some others as features."""
        (x, sq_norms), (panels, norms) = others, self.samples.some(support)
        kernel = aligned_zeros((LANES * len(panels), LANES * len(x)))
        distances_between(panels, norms, x, sq_norms, np.full(len(kernel), -1), kernel)
        expm1_scaled(kernel, self.gamma, kernel)
        return panels_of(kernel, np.arange(len(support)), np.arange(kernel.shape[1]))

    def _panels(self, rows: np.ndarray, support: np.ndarray) -> np.ndarray:
        """K - 1 of some samples, packed, with others as features."""
        if self.kernel is not None:
            return panels_of(self.kernel, support, rows)
        if self.distances is None:
            return self._computed(self.samples.some(rows), support)
        panels = panels_of(self.distances, support, rows)
        flat = panels.reshape(len(panels), -1)
        expm1_scaled(flat, self.gamma, flat)
        return panels


def far(samples: Samples, gamma: float) -> bool:
    """Whether K - 1 of typical samples is -1 in float32, or nearly so."""
    return gamma * samples.spread > FAR


def fine_distances(samples: Samples, x: np.ndarray) -> np.ndarray:
    """Squared distances of all samples x, float64 (n, n_features), computed in double: float32 (width, width)."""
    centred = np.zeros((samples.width, x.shape[1]))
    centred[samples.row_of] = x - samples.centre
    sq_norms, ones = np.einsum("ij,ij->i", centred, centred)[:, None], np.ones((samples.width, 1))
    left, right = np.hstack([-2 * centred, sq_norms, ones]), np.hstack([centred, ones, sq_norms])
    out = aligned_zeros((samples.width, samples.width))
    for top in range(0, samples.width, FINE_ROWS):
        rows = slice(top, top + FINE_ROWS)
        np.maximum(left[rows] @ right.T, 0, out=out[rows], casting="same_kind")
    np.fill_diagonal(out, 0)
    return out


class DoubleSource:
    """Any kernel function of samples x, float64 (n, n_features), in double."""

    def __init__(self, samples: Samples, function: KernelFunction, x: np.ndarray) -> None:
        self.function, self._x = function, x
        self._order = np.full(samples.width, -1)
        self._order[samples.row_of] = np.arange(len(x))
        self._shift = np.zeros(samples.width)
        self._shift[samples.row_of] = function.diagonal(x) / 2

    def between(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Values of the kernel, float64 (len(rows), len(columns)), between samples by their rows in `Samples`."""
        return self.function(self._x[self._order[rows]], self._x[self._order[columns]])

    def fill(self, out: np.ndarray, one: slice, other: slice) -> None:
        fill_pair(self._block, out, one, other, len(out))

    def _block(self, out: np.ndarray, rows: slice, columns: slice) -> None:
        down, right = self._there(rows), self._there(columns)
        step = max(1, CHUNK // (8 * len(right)))
        out[:] = 0
        for top in range(0, len(down), step):
            part = down[top : top + step]
            values = self.between(part, right)
            values -= self._shift[part][:, None]
            values -= self._shift[right]
            out[top : top + len(part), : len(right)] = values

    def _there(self, rows: slice) -> np.ndarray:
        """Rows of a class that belong to samples: they come first."""
        return rows.start + np.flatnonzero(self._order[rows] >= 0)

    def shift(self, rows: np.ndarray) -> np.ndarray | None:
        return self._shift[rows]

    def decisions(self, solved: Solutions, rows: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        support = np.unique(np.concatenate(solved.rows))
        cuts = np.searchsorted(support, solved.samples.class_start).tolist()
        # Of each class: the solutions that its samples support, and their weights.
        classes: list[tuple[list[np.ndarray], list[np.ndarray]]] = [([], []) for _ in cuts[1:]]
        at = 0
        for own, weights in zip(solved.rows, solved.weights, strict=True):
            where, numbers = np.searchsorted(support, own), np.arange(at, at := at + weights.shape[1])
            ends = np.searchsorted(where, cuts)
            for kind in np.flatnonzero(np.diff(ends)).tolist():
                some = slice(ends[kind], ends[kind + 1])
                block = np.zeros((cuts[kind + 1] - cuts[kind], len(numbers)))
                block[where[some] - cuts[kind]] = weights[some]
                classes[kind][0].append(numbers)
                classes[kind][1].append(block)
        each = zip(pairwise(cuts), classes, strict=True)
        products = [(slice(*cut), np.concatenate(n), np.hstack(blocks)) for cut, (n, blocks) in each if blocks]
        rhos = np.concatenate(solved.rhos)
        for part in parts(len(rows), max(len(support), len(rhos))):
            kernel, values = self.between(rows[part], support), np.tile(-rhos, (part.stop - part.start, 1))
            for cut, numbers, weights in products:
                values[:, numbers] += kernel[:, cut] @ weights
            yield part, values


def fill_pair(
    block: Callable[[np.ndarray, slice, slice], None], out: np.ndarray, one: slice, other: slice, strip: int
) -> None:
    """Write the symmetric matrix of two classes, given by their rows, to ``out``, float32 (m, m).

    ``block`` is called with parts of ``out`` and their rows and columns. What both classes have in common is written
    by so many rows at a time as a ``strip`` has: their mirror image follows while they are in the cache.
    """
    border = one.stop - one.start
    block(out[:border, :border], one, one)
    block(out[border:, border:], other, other)
    for top in range(0, border, strip):
        end = min(top + strip, border)
        block(out[top:end, border:], slice(one.start + top, one.start + end), other)
        out[border:, top:end] = out[top:end, border:].T


def parts(count: int, widest: int, size: int = CHUNK) -> Iterator[slice]:
    """Parts of ``count`` samples, so that matrices of ``widest`` columns, to decision values, fit in ``size`` bytes."""
    step = max(LANES, size // (8 * widest) // LANES * LANES)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
