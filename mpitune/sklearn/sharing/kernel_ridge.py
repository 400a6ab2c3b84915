"""Kernel ridge regression: one reduction of the kernel matrix for all penalties, one set of distances for all gammas.

Why the result is the single one. The coefficients c solve (K + alpha I) c = y. An orthogonal Q makes B = Q' K Q a band
matrix. Then c = Q (B + alpha I)^-1 Q' y: one reduction for all alphas, and a banded solve for each. The reduction is a
sequence of Householder reflections of blocks of columns (C. H. Bischof, B. Lang and X. Sun, "A framework for symmetric
band reduction", ACM TOMS 26, 2000), each with the compact form I - V T V' (T. Joffrain et al., "Accumulating
Householder transformations, revisited", ACM TOMS 32, 2006). It is backward stable, as scikit-learn's Cholesky
factorisation is, so both differ by rounding times the condition number. Where alpha is less than 1e-8 of the trace of
K, which is at least its norm for a K without negative eigenvalues, and where there are few alphas, scikit-learn's own
function solves with the shared K: to the bit.

The RBF kernel of each gamma is made from the same squared distances, and the polynomial kernel of each from the same
scalar products, by scikit-learn's own operations: to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from numbers import Real
from typing import Any

import numpy as np
from scipy.linalg import lapack
from scipy.linalg.blas import dgemm
from sklearn.base import clone
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model._ridge import _solve_cholesky_kernel
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import _check_sample_weight, validate_data

from mpitune.sklearn.sharing.family import Family, Settings, SplitPart, valid
from mpitune.sklearn.sharing.known_samples import KnowsPredictions

_BAND = 32  # width of the band, and of the blocks
_PANEL = 128  # columns of the matrix that are worked on at a time, a multiple of it
_FEW = 6  # so many factorisations cost about as much as a reduction
_ILL = 1e-8  # alpha over the trace of K below which the results of two stable methods may differ visibly


class Band:
    """A symmetric matrix reduced to a band.

    Only the lower triangle of the matrix is kept, in panels of columns. A panel takes the reflections of a block, and
    is multiplied by those of the next block while it is still in the cache.

    Args:
        A: float64 (n, n), symmetric; of each _PANEL rows only the columns from the first of them on are read.
        right: float64 (n, n_targets), the right sides of the equations to solve.
    """

    def __init__(self, A: np.ndarray, right: np.ndarray):
        n = len(A)
        edges = [*range(0, n, _PANEL), n]
        self._panels = [A[first:last, first:].copy().T for first, last in pairwise(edges)]
        self._right = right.copy()
        self._reflections: list[tuple[int, np.ndarray, np.ndarray]] = []
        room = np.zeros((2, n, 2 * _BAND))
        left, other, row = *room, 0  # left @ other.T is what the block before takes off the rest of the matrix
        for begin in range(0, n - _BAND, _BAND):
            first, row = begin - begin % _PANEL, begin + _BAND
            block = self._panels[begin // _PANEL][:, begin - first : row - first]
            dgemm(-1.0, left[first:].T, other[begin:row].T, 1.0, block, trans_a=True, overwrite_c=True)
            R, V, T = _reflected(block[row - first :])
            block[row - first :][: len(R)] = R
            self._right[row:] -= V @ (T.T @ (V.T @ self._right[row:]))
            self._reflections.append((row, V, T))
            W = V @ T
            P = self._multiplied(row, left, other, W)
            P -= V @ (0.5 * (W.T @ P))
            width = V.shape[1]
            left, other = room[:, :, : 2 * width]
            left[row:, :width] = other[row:, width:] = P
            left[row:, width:] = other[row:, :width] = V
        self._multiplied(row, left, other, np.zeros((n - row, 0)))
        self._lower = np.zeros((min(_BAND, n - 1) + 1, n), order="F")
        for first, panel in zip(edges, self._panels, strict=False):
            for d in range(len(self._lower)):
                diagonal = np.diagonal(panel, -d)
                self._lower[d, first : first + len(diagonal)] = diagonal
        self._panels = []

    def _multiplied(self, row: int, left: np.ndarray, other: np.ndarray, W: np.ndarray) -> np.ndarray:
        """Take left @ other.T off the rest of the matrix, which begins at that row, and multiply what is left by W.

        What is above the diagonal gets values without a meaning.
        """
        P = np.zeros((len(left), W.shape[1]))
        for number in range(row // _PANEL, len(self._panels)):
            first, panel = number * _PANEL, self._panels[number]
            begin, end = max(first, row), first + panel.shape[1]
            panel = panel[:, begin - first :]  # its columns before are done
            dgemm(-1.0, left[first:].T, other[begin:end].T, 1.0, panel, trans_a=True, overwrite_c=True)
            if W.shape[1]:
                dgemm(1.0, W[begin - row : end - row].T, panel, 1.0, P[first:].T, trans_b=True, overwrite_c=True)
                P[begin:end] += panel[end - first :].T @ W[end - row :]
        return P[row:]

    def solve(self, alphas: Sequence[float]) -> dict[float, np.ndarray]:
        """The solutions (n, n_targets) for the matrix plus alpha times one, where that is positive definite."""
        found = {}
        for alpha in alphas:
            shifted = self._lower.copy(order="F")
            shifted[0] += alpha
            _, solution, failed = lapack.dpbsv(shifted, self._right, lower=True, overwrite_ab=True)
            if not failed:
                found[alpha] = solution
        if not found:
            return {}
        n_targets = self._right.shape[1]
        whole = np.hstack(list(found.values()))
        for row, V, T in reversed(self._reflections):
            whole[row:] -= V @ (T @ (V.T @ whole[row:]))
        return {alpha: whole[:, place * n_targets :][:, :n_targets].copy() for place, alpha in enumerate(found)}


def _reflected(block: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of a block of columns R, V and T, for the product I - V T V' of the reflections that make it triangular.

    What is below the diagonal of R has no meaning.
    """
    packed, tau, _, _ = lapack.dgeqrf(block)
    width = min(packed.shape)
    R, V = packed[:width].copy(), packed[:, :width]
    V[:width][~np.tri(width, k=-1, dtype=np.bool_)] = 0.0
    V.flat[: width * width : width + 1] = 1.0
    V[:, tau == 0] = 0.0
    inverse = V.T @ V
    np.fill_diagonal(inverse, 1.0 / np.where(tau == 0, 1.0, tau))
    return R, V, np.triu(lapack.dtrtri(inverse)[0])


class _Kernels:
    """Kernels between some samples X and the training samples."""

    def __init__(self, X: Any, X_fit: Any):
        self._X, self._X_fit = X, X_fit
        self._common: np.ndarray | None = None  # what the kernels of all gammas are made of
        self._room: np.ndarray | None = None  # for one kernel at a time

    def of(self, model: KernelRidge, half: bool = False) -> np.ndarray:
        """The kernel matrix with that model's parameters, which the next one may overwrite.

        With half only what `Band` reads of it is sure to be right.
        """
        powers = model.kernel in ("polynomial", "poly") and self._X.dtype.kind == "f"
        if model.kernel != "rbf" and not powers:
            return np.asarray(model._get_kernel(self._X, self._X_fit))
        if self._common is None:
            Y = self._X if self._X_fit is None else self._X_fit
            if powers:
                self._common = safe_sparse_dot(self._X, Y.T, dense_output=True)
            else:
                self._common = euclidean_distances(self._X, Y, squared=True)
            self._room = np.zeros(self._common.shape, self._common.dtype)
        assert self._room is not None
        gamma = 1.0 / self._X.shape[1] if model.gamma is None else model.gamma
        for begin in range(0, len(self._common), _PANEL):  # rows that stay in the cache
            place = slice(begin, begin + _PANEL), slice(begin if half else 0, None)
            K = np.multiply(self._common[place], gamma if powers else -gamma, out=self._room[place])
            if powers:
                K += model.coef0
                K **= model.degree
            else:
                np.exp(K, K)
        return self._room


class KnownKernelRidge(KnowsPredictions, KernelRidge):
    """A fitted model that knows its predictions."""


class KernelPenalties(Family):
    """Candidates that differ in alpha and the kernel's gamma."""

    shared = frozenset({"alpha", "gamma"})

    def why_not(self, model: Any) -> str | None:
        return "its kernel is a function, or given" if not _named(model.kernel) else None

    def parts(self, model: Any, settings: Settings) -> list[list[int]]:
        """Those of one kernel: how they are solved depends on how many alphas there are."""
        groups: dict[Any, list[int]] = {}
        for place, setting in enumerate(settings):
            groups.setdefault(repr(setting.get("gamma")), []).append(place)
        return list(groups.values())

    def fit(self, model: Any, settings: Settings, part: SplitPart) -> list[Any]:
        first = clone(model)
        X, y = validate_data(
            first, part.X, part.y, accept_sparse=("csr", "csc"), multi_output=True, y_numeric=True
        )  # fmt: skip
        weight = None if part.weight is None else _check_sample_weight(part.weight, X)
        checked = [validate_data(first, samples, accept_sparse=("csr", "csc"), reset=False) for samples in part.asked]
        train, asked = _Kernels(X, None), [_Kernels(samples, X) for samples in checked]
        made: list[Any] = [None] * len(settings)
        groups: dict[tuple[Any, ...], list[int]] = {}
        for place, setting in enumerate(settings):
            if valid(model, setting) and isinstance(setting.get("alpha", model.alpha), Real):
                one = copy(first)
                vars(one).update(setting, X_fit_=X)
                made[place] = one
                groups.setdefault(_kernel_of(one), []).append(place)
        for places in groups.values():
            members = [made[place] for place in places]
            coefs, reduced = _coefficients(train, y, weight, members)
            known = [_predictions(samples.of(members[0]), coefs, reduced) for samples in asked]
            for place, one in enumerate(members):
                one.dual_coef_, one.__class__ = coefs[place], KnownKernelRidge
                one._known = tuple((X, found[place]) for X, found in zip(part.asked, known, strict=True))
        return made


def _predictions(K: np.ndarray, coefs: list[np.ndarray], together: list[bool]) -> list[np.ndarray]:
    """The products of K and each of the coefficients; of some in one product, which may round otherwise."""
    places = [place for place, one in enumerate(together) if one]
    found: list[Any] = [None if one else np.dot(K, coef) for one, coef in zip(together, coefs, strict=True)]
    if places:
        columns = [coefs[place].reshape(K.shape[1], -1) for place in places]
        products = np.split(K @ np.hstack(columns), len(places), axis=1)
        for place, product in zip(places, products, strict=True):
            found[place] = product.reshape(len(K), *coefs[place].shape[1:])
    return found


def _coefficients(
    kernels: _Kernels, y: np.ndarray, weight: Any, models: list[Any]
) -> tuple[list[np.ndarray], list[bool]]:
    """The dual coefficients of models with the same kernel, which differ in alpha, and whether it was reduced."""
    targets = y.reshape(-1, 1) if y.ndim == 1 else y
    alphas = np.array([model.alpha for model in models], np.float64)
    many = len(np.unique(alphas)) > _FEW
    K = kernels.of(models[0], half=many)
    tall, found = np.unique(alphas[alphas > _ILL * np.trace(K)]), {}
    if len(tall) > _FEW and K.dtype == np.float64 and len(K) > 2 * _BAND:
        root = np.ones((len(K), 1)) if weight is None else np.sqrt(weight)[:, None]
        band = Band(K if weight is None else K * root * root.T, targets * root)
        found = {alpha: coef * root for alpha, coef in band.solve(tall.tolist()).items()}
    solved = dict(found)
    if many and not found.keys() >= set(alphas):
        K = kernels.of(models[0])
    for alpha in alphas:
        if alpha not in solved:  # scikit-learn says so where the matrix is singular, and has another way
            solved[alpha] = _solve_cholesky_kernel(K, targets, np.atleast_1d(alpha), weight, copy=True)
    coefs = [solved[alpha].ravel() if y.ndim == 1 else solved[alpha].copy() for alpha in alphas]
    return coefs, [alpha in found for alpha in alphas]


def _kernel_of(model: KernelRidge) -> tuple[Any, ...]:
    kind = type(model.gamma)  # a number of NumPy may have more digits than the samples
    return (model.kernel, kind, model.gamma, model.degree, model.coef0)


def _named(kernel: Any) -> bool:
    return isinstance(kernel, str) and kernel != "precomputed"


FAMILIES = {"KernelRidge": KernelPenalties()}
