"""Kernel ridge regression: one reduction of the kernel matrix for all penalties, one set of distances for all gammas.

Why the result is the single one. The coefficients c solve (K + alpha I) c = y. With an orthogonal Q that makes B = Q'
K Q a band matrix, c = Q (B + alpha I)^-1 Q' y: one reduction for all alphas, and a banded solve for each. The
reduction is a sequence of Householder reflections of blocks of columns (C. H. Bischof, B. Lang and X. Sun, "A
framework for symmetric band reduction", ACM TOMS 26, 2000), each with the compact form I - V T V' (T. Joffrain et al.,
"Accumulating Householder transformations, revisited", ACM TOMS 32, 2006). It is backward stable, as scikit-learn's
Cholesky factorisation is, so both differ by rounding times the condition number. Where alpha is less than 1e-8 of the
norm of K, and where there are few alphas, scikit-learn's own function solves with the shared K: to the bit.

The RBF kernel of each gamma is made from the same squared distances, by scikit-learn's own operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from numbers import Real
from typing import Any

import numpy as np
from scipy import linalg
from scipy.linalg import lapack
from sklearn.base import clone
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model._ridge import _solve_cholesky_kernel
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.utils.validation import _check_sample_weight, validate_data

from common.sklearn.sharing.family import Family, Settings, SplitPart, valid

_BAND = 32  # width of the band, and of the blocks
_FEW = 6  # so many factorisations cost about as much as a reduction
_ILL = 1e-8  # alpha over the norm of K below which the results of two stable methods may differ visibly


class Band:
    """A symmetric matrix reduced to a band.

    Args:
        A: float64 (n, n), symmetric; it is overwritten.
        right: float64 (n, n_targets), the right sides of the equations to solve.
    """

    def __init__(self, A: np.ndarray, right: np.ndarray):
        n = len(A)
        self._reflections: list[tuple[int, np.ndarray, np.ndarray]] = []
        right = right.copy()
        for begin in range(0, n - _BAND, _BAND):
            row = begin + _BAND
            packed, tau, _, _ = lapack.dgeqrf(A[row:, begin:row])
            width = min(packed.shape)
            V = np.tril(packed[:, :width], -1)
            V[np.arange(width), np.arange(width)] = 1.0
            V[:, tau == 0] = 0.0
            T = linalg.solve_triangular(
                np.triu(V.T @ V, 1) + np.diag(1.0 / np.where(tau == 0, 1.0, tau)), np.eye(width), check_finite=False
            )
            A[row:, begin:row] = np.triu(packed)
            rest = A[row:, row:]
            P = rest @ (V @ T)
            P -= V @ (0.5 * (T.T @ (V.T @ P)))
            rest -= np.hstack([P, V]) @ np.hstack([V, P]).T
            right[row:] -= V @ (T.T @ (V.T @ right[row:]))
            self._reflections.append((row, V, T))
        self._right = right
        self._lower = np.zeros((min(_BAND, n - 1) + 1, n))
        for d in range(len(self._lower)):
            self._lower[d, : n - d] = np.diagonal(A, -d)

    def solve(self, alpha: float) -> np.ndarray:
        """The solution (n, n_targets) for the matrix plus alpha times the identity.

        Raises:
            LinAlgError: that matrix is not positive definite.
        """
        shifted = self._lower.copy()
        shifted[0] += alpha
        solution = linalg.solveh_banded(shifted, self._right, lower=True, overwrite_ab=True, check_finite=False)
        for row, V, T in reversed(self._reflections):
            solution[row:] -= V @ (T @ (V.T @ solution[row:]))
        return np.asarray(solution)


class _Kernels:
    """Kernels between some samples X and the training samples, the last one kept."""

    def __init__(self, X: Any, X_fit: Any, asked: Any):
        self.asked, self._X, self._X_fit = asked, X, X_fit
        self._distances: np.ndarray | None = None
        self._last: tuple[tuple[Any, ...], np.ndarray] | None = None

    def of(self, model: KernelRidge) -> np.ndarray:
        key = _kernel_of(model)
        if self._last is None or self._last[0] != key:
            self._last = None
            self._last = key, self._made(model)
        return self._last[1]

    def _made(self, model: KernelRidge) -> np.ndarray:
        if model.kernel != "rbf":
            return np.asarray(model._get_kernel(self._X, self._X_fit))
        if self._distances is None:
            Y = self._X if self._X_fit is None else self._X_fit
            self._distances = euclidean_distances(self._X, Y, squared=True)
        K = self._distances * -(1.0 / self._X.shape[1] if model.gamma is None else model.gamma)
        return np.asarray(np.exp(K, K))


class KnownKernelRidge(KernelRidge):
    """A fitted model that answers for samples whose kernel with the training samples is known."""

    _known: tuple[_Kernels, ...] = ()

    def predict(self, X: Any) -> Any:
        for kernels in self._known:
            if kernels.asked is X:
                return np.dot(kernels.of(self), self.dual_coef_)
        return super().predict(X)


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
        asked = [validate_data(first, samples, accept_sparse=("csr", "csc"), reset=False) for samples in part.asked]
        known = tuple(_Kernels(x, X, samples) for x, samples in zip(asked, part.asked, strict=True))
        train = _Kernels(X, None, None)
        made: list[Any] = [None] * len(settings)
        groups: dict[tuple[Any, ...], list[int]] = {}
        for place, setting in enumerate(settings):
            if valid(model, setting) and isinstance(setting.get("alpha", model.alpha), Real):
                one = clone(model).set_params(**setting)
                one.__dict__.update(vars(first), **setting, X_fit_=X, _known=known)
                made[place] = one
                groups.setdefault(_kernel_of(one), []).append(place)
        for places in groups.values():
            members = [made[place] for place in places]
            for place, coef in zip(places, _coefficients(train.of(members[0]), y, weight, members), strict=True):
                made[place].dual_coef_ = coef
                made[place].__class__ = KnownKernelRidge
        return made


def _coefficients(K: np.ndarray, y: np.ndarray, weight: Any, models: list[Any]) -> list[np.ndarray]:
    """The dual coefficients of models with this kernel matrix, which differ in alpha."""
    targets = y.reshape(-1, 1) if y.ndim == 1 else y
    alphas = np.array([model.alpha for model in models], np.float64)
    tall = alphas > _ILL * np.abs(K).sum(1).max()
    band = None
    if len(np.unique(alphas[tall])) > _FEW and K.dtype == np.float64 and len(K) > 2 * _BAND:
        root = np.ones((len(K), 1)) if weight is None else np.sqrt(weight)[:, None]
        band = Band(K * root * root.T, targets * root)
    found: list[np.ndarray] = []
    solved: Mapping[float, np.ndarray] = {}
    for alpha, well in zip(alphas, tall, strict=True):
        if alpha not in solved:
            coef = None
            if band is not None and well:
                try:
                    coef = band.solve(alpha) * root
                except np.linalg.LinAlgError:  # scikit-learn says so, and has another way
                    coef = None
            if coef is None:
                coef = _solve_cholesky_kernel(K, targets, np.atleast_1d(alpha), weight, copy=True)
            solved = {**solved, alpha: coef.ravel() if y.ndim == 1 else coef}
        found.append(copy(solved[alpha]))
    return found


def _kernel_of(model: KernelRidge) -> tuple[Any, ...]:
    return (model.kernel, model.gamma, model.degree, model.coef0)


def _named(kernel: Any) -> bool:
    return isinstance(kernel, str) and kernel != "precomputed"


FAMILIES = {"KernelRidge": KernelPenalties()}
