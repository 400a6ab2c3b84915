"""Samples in the order the solver wants them, their squared distances, and K - 1 of the RBF kernel.

Samples are sorted by class, and every class begins at a multiple of 16 rows, so that any class or pair of
classes is one or two runs of whole vectors in a row of the matrix. In between lie rows of zeros that belong
to no sample. Distances are |a|^2 + |b|^2 - 2 a.b, after a centre of all samples was subtracted, which changes no
distance and keeps the terms small. They are exactly symmetric, and the same bits in whatever part they are computed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpitune._jit import LANES, WIDE, padded
from mpitune._jit.simd import (
    add,
    aligned_zeros,
    choose,
    compiled,
    fma,
    less,
    load,
    mul,
    power_of_two,
    prefetch,
    splat,
    store,
    sub,
)
from mpitune.svm.kernel.gemm import multiply, packed

STRIP = 128  # rows of distances computed at once: finished while they are in the cache
SEEN = 100  # samples whose median may be the value that most samples have
AHEAD = 8  # rows: so much earlier those that are packed are asked for


@dataclass(frozen=True)
class Samples:
    """Training samples, sorted by class.

    Attributes:
        panels: float32 (width / LANES, n_features, LANES), the centred samples by row; rows of no sample are zero.
        sq_norms: float32 (width,), squared lengths.
        row_of: int64 (n,), the row of each sample in the order given.
        labels: (n,), index of each sample's class in ``classes``.
        classes: (n_classes,), ascending.
        class_start: int64 (n_classes + 1,), row at which each class begins; the last is ``width``.
        centre: float64 (n_features,), what was subtracted.
        spread: mean squared distance of two samples.
    """

    panels: np.ndarray
    sq_norms: np.ndarray
    row_of: np.ndarray
    labels: np.ndarray
    classes: np.ndarray
    class_start: np.ndarray
    centre: np.ndarray
    spread: float

    @property
    def width(self) -> int:
        """Rows and columns of the matrices made from the samples."""
        return len(self.sq_norms)

    def x(self, rows: np.ndarray) -> np.ndarray:
        """Centred samples of some rows, float32 (len(rows), n_features)."""
        return self.panels[rows // LANES, :, rows % LANES]

    def some(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Samples of some rows, packed, and the squared lengths of these and of what fills the last panels: float32."""
        panels = packed(self.x(rows))
        return panels, np.resize(self.sq_norms[rows], LANES * len(panels))

    def others(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `some`, of other samples (n, n_features)."""
        centred = (x - self.centre).astype(np.float32)
        panels = packed(centred)
        return panels, np.resize(sq_lengths(centred), LANES * len(panels))


def prepare(x: np.ndarray, y: np.ndarray, folds: np.ndarray | None = None) -> Samples:
    """Sort samples by class.

    Args:
        x: (n, n_features), finite.
        y: (n,), labels of at least two classes.
        folds: (n,), by which samples of a class are sorted: a fold that is left out then leaves out whole blocks of a
            row, and solving has less to read.

    Raises:
        ValueError: x or y is anything else.
    """
    if x.ndim != 2 or len(x) != len(y):
        raise ValueError(f"x has shape {x.shape} and y {y.shape}: (n, n_features) and (n,) are needed")
    if not np.isfinite(x).all():
        raise ValueError("x holds values that are not finite")
    classes, labels = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"the {len(y)} labels are of fewer than two classes")
    sizes = np.bincount(labels)
    first = np.concatenate([[0], np.cumsum([padded(int(size)) for size in sizes])])
    order = np.argsort(labels, kind="stable") if folds is None else np.lexsort((folds, labels))
    place = np.empty(len(y), np.int64)
    place[order] = np.arange(len(y)) + np.repeat(first[:-1] - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes)
    mean = x.mean(axis=0, dtype=np.float64)
    centre = _centre(x, mean)
    rows = np.zeros((int(first[-1]), x.shape[1]), np.float32)
    for start in range(0, len(x), 1024):  # the difference is in double: no copy of all samples is
        rows[place[start : start + 1024]] = x[start : start + 1024] - centre
    sq_norms = sq_lengths(rows)
    spread = 2 * (float(sq_norms.sum()) / len(x) - float(((mean - centre) ** 2).sum()))
    return Samples(packed(rows), sq_norms, place, labels, classes, first, centre, spread)


def _centre(x: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Of each feature the value that most samples have, its mean if there is none, float64 (n_features,).

    Most features of images or of counts are then zero, and `multiply` leaves them out. As a median, such a value is no
    more than a standard deviation from the mean: squared lengths are at most twice as large on average.
    """
    some = np.sort(x[:: -(-len(x) // SEEN)], axis=0)
    middle = some[len(some) // 2]
    return np.where(2 * np.count_nonzero(x == middle, axis=0) > len(x), middle, mean)


def sq_lengths(x: np.ndarray) -> np.ndarray:
    """float32 (n,) from float32 (n, n_features), summed in double."""
    return np.einsum("ij,ij->i", x, x, dtype=np.float64).astype(np.float32)


@compiled
def _finish(products, norms_rows, norms_columns, same):
    """Products to squared distances, in place; ``same[i]`` is the column of row i itself or -1."""
    zero, minus_two = splat(np.float32(0)), splat(np.float32(-2))
    stride = products.strides[0] // 4
    for i in range(products.shape[0]):
        norm = splat(norms_rows[i])
        for j in range(0, products.shape[1], LANES):
            value = fma(minus_two, load(products, i * stride + j), add(norm, load(norms_columns, j)))
            store(products, i * stride + j, choose(less(zero, value), value, zero))
        if 0 <= same[i] < products.shape[1]:
            products[i, same[i]] = 0


def distances_between(
    a: np.ndarray, a_norms: np.ndarray, b: np.ndarray, b_norms: np.ndarray, same: np.ndarray, out: np.ndarray
) -> None:
    """Write squared distances of samples ``a`` from samples ``b``, both as by `packed`, with their squared lengths.

    ``out`` is float32 (LANES x panels of a, LANES x panels of b); ``same``, int64, has for each of its rows the column
    of the very same sample, whose distance is exactly zero, or -1.
    """
    for top in range(0, len(a), STRIP // LANES):
        panels, rows = slice(top, top + STRIP // LANES), slice(top * LANES, top * LANES + STRIP)
        multiply(a[panels], b, out[rows])
        _finish(out[rows], a_norms[rows], b_norms, same[rows])


def squared_distances(
    samples: Samples,
    *,
    out: np.ndarray | None = None,
    rows: slice = slice(None),
    columns: slice = slice(None),
    gamma: float | None = None,
) -> np.ndarray:
    """Squared distances of all samples, or of a part that begins and ends at multiples of 16; with ``gamma``, K - 1.

    Returns float32 (width, width), or the part's shape, written to ``out`` if given, whose columns must be contiguous.
    """
    first_row, last_row, _ = rows.indices(samples.width)
    first, last, _ = columns.indices(samples.width)
    out = aligned_zeros((last_row - first_row, last - first)) if out is None else out
    if (first_row, last_row) == (first, last):
        for number in range(n_strips(len(out))):
            distances_strip(samples, number, out, gamma, first)
        return out
    a, b = samples.panels[first_row // LANES : last_row // LANES], samples.panels[first // LANES : last // LANES]
    same = np.arange(first_row, last_row) - first
    distances_between(a, samples.sq_norms[rows], b, samples.sq_norms[columns], same, out)
    if gamma is not None:
        expm1_scaled(out, gamma, out)
    return out


def n_strips(width: int) -> int:
    """Strips that make a whole matrix: each may be computed by another process."""
    return -(-width // STRIP)


def distances_strip(samples: Samples, number: int, out: np.ndarray, gamma: float | None = None, first: int = 0) -> None:
    """Squared distances from the diagonal to the right in one strip of rows of ``out``, and their mirror image.

    ``out`` is of the samples from row ``first`` on. With ``gamma``, K - 1 in place of the distances.
    """
    top, last = STRIP * number, first + len(out)
    rows, right = slice(top, top + STRIP), slice(top, None)
    panels, sq_norms = samples.panels[(first + top) // LANES : last // LANES], samples.sq_norms[first:last]
    part = out[rows, right]
    distances_between(panels[: STRIP // LANES], sq_norms[rows], panels, sq_norms[right], np.arange(len(part)), part)
    if gamma is not None:
        expm1_scaled(part, gamma, part)
    out[top + STRIP :, rows] = out[rows, top + STRIP :].T


def kernel_strip(samples: Samples, gamma: float, distances: np.ndarray | None, number: int, out: np.ndarray) -> None:
    """One strip of K - 1 of all samples: from the whole matrix of squared distances, or without it."""
    if distances is None:
        distances_strip(samples, number, out, gamma)
    else:
        rows = slice(STRIP * number, STRIP * (number + 1))
        expm1_scaled(distances[rows], gamma, out[rows])


@compiled
def expm1_scaled(distances, gamma, out):
    """``out = expm1(-gamma * distances)``, float32 (m, multiple of 16), to one unit in the last place.

    Cody and Waite's reduction to |r| <= ln(2) / 2 and the Taylor polynomial.
    """
    factor, least, unit = splat(np.float32(-gamma)), splat(np.float32(-30)), splat(np.float32(1))
    magic = splat(np.float32(12582912))  # 1.5 * 2**23: adding it rounds to an integer, left in the low bits
    log2_e = splat(np.float32(1.44269504))
    ln2_high, ln2_low = splat(np.float32(-0.693359375)), splat(np.float32(2.12194440e-4))
    source_stride, stride = distances.strides[0] // 4, out.strides[0] // 4
    for i in range(distances.shape[0]):
        for j in range(0, distances.shape[1], LANES):
            prefetch(distances, (i + AHEAD) * source_stride + j)  # of a block of a matrix only rows are contiguous
            x = mul(factor, load(distances, i * source_stride + j))
            x = choose(less(x, least), least, x)
            # exp(x) = 2**n * exp(r)
            shifted = fma(x, log2_e, magic)
            n = sub(shifted, magic)
            r = fma(n, ln2_low, fma(n, ln2_high, x))
            # expm1(r), then expm1(x) = 2**n * expm1(r) + (2**n - 1)
            p = fma(splat(np.float32(1 / 5040)), r, splat(np.float32(1 / 720)))
            p = fma(p, r, splat(np.float32(1 / 120)))
            p = fma(p, r, splat(np.float32(1 / 24)))
            p = fma(p, r, splat(np.float32(1 / 6)))
            p = fma(p, r, splat(np.float32(0.5)))
            p = fma(mul(p, r), r, r)
            power = power_of_two(shifted)
            store(out, i * stride + j, fma(power, p, sub(power, unit)))


@compiled
def panels_of(matrix, rows, columns):
    """Some columns of float32 ``matrix``, packed, with some rows as features: (n_panels, len(rows), LANES).

    Lanes without a column get the last one.
    """
    n, depth, stride = columns.size, rows.size, matrix.strides[0] // 4
    size = -(-n // LANES) * LANES
    raw = np.empty(size * depth + WIDE, np.float32)
    start = (-raw.ctypes.data // 4) % WIDE
    panels = raw[start : start + size * depth]
    # Runs of columns, none of which goes beyond its panel: where they begin in a row, and in the panels.
    first, place, length, runs = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64), 0
    for c in range(size):
        if c % LANES == 0 or c >= n or columns[c] != columns[c - 1] + 1:
            first[runs], length[runs] = columns[min(c, n - 1)], 0
            place[runs] = c // LANES * depth * LANES + c % LANES
            runs += 1
        length[runs - 1] += 1
    for k in range(depth):
        row, later = rows[k] * stride, rows[min(k + AHEAD, depth - 1)] * stride
        if k + 1 < depth and row + stride + LANES <= matrix.shape[0] * stride:
            for r in range(runs):  # what a vector has too much is overwritten by the next run, or the next row
                prefetch(matrix, later + first[r])
                store(panels, place[r] + k * LANES, load(matrix, row + first[r]))
        else:
            for r in range(runs):
                for c in range(length[r]):
                    panels[place[r] + k * LANES + c] = matrix[rows[k], first[r] + c]
    return panels.reshape(size // LANES, depth, LANES)


def kernel_minus_one(
    samples: Samples,
    gamma: float,
    *,
    distances: np.ndarray | None = None,
    out: np.ndarray | None = None,
    rows: slice = slice(None),
    columns: slice = slice(None),
) -> np.ndarray:
    """K - 1 = expm1(-gamma * D2) of all samples, or of a part that begins and ends at multiples of 16.

    K - 1 rather than K because float32 keeps its relative precision where gamma is tiny and K nearly 1. It is computed
    from ``distances``, those of all samples, if they are given; without them to the same bits. ``out``, of the part's
    shape and with contiguous columns, is overwritten and returned if it is given.
    """
    if distances is None:
        return squared_distances(samples, out=out, rows=rows, columns=columns, gamma=gamma)
    part = distances[rows, columns]
    out = aligned_zeros(part.shape) if out is None else out
    expm1_scaled(part, gamma, out)
    return out
