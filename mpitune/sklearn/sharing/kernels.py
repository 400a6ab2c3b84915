"""Kernel ridge and Gaussian processes: one decomposition for all penalties, one set of distances for all gammas.

Why the result is the single one. The coefficients c solve (K + alpha I) c = y. With the eigenvalues w and eigenvectors
V of K, c = V (W + alpha I)^-1 V' y: one decomposition for all alphas. It is backward stable, as scikit-learn's Cholesky
factorisation is, so both differ by rounding times the condition number. Where K + alpha I is nearly singular (the
smallest eigenvalue is below 1e-8 of the trace of K), and where there are few alphas, scikit-learn's own function solves
with the shared K: bitwise equal.

The RBF kernel of each gamma is made from the same squared distances, and the polynomial kernel of each from the same
scalar products, by scikit-learn's own operations: bitwise equal.

A Gaussian process with a fixed kernel solves (K + alpha I) c = y too. A prediction is the product of c with the kernel
between its samples and the training samples, which is computed once. The factor and the likelihood, which single fits
compute for each alpha, are computed where they are asked for. A kernel whose parameters are fitted is another one for
each alpha, so nothing is shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from numbers import Real
from types import FunctionType
from typing import Any

import numpy as np
from scipy import linalg
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model._ridge import _solve_cholesky_kernel
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import _check_sample_weight, validate_data

from mpitune.sklearn.sharing.family import Family, KnowsPredictions, Settings, SplitPart, valid

_ROWS = 128  # of a kernel matrix, which stay in the cache
_FEW = 10  # so many factorisations cost about as much as a decomposition
_ILL = 1e-8  # smallest eigenvalue over the trace below which the results of two stable methods may differ visibly


def solved(K: np.ndarray, right: np.ndarray, alphas: Sequence[float]) -> dict[float, np.ndarray]:
    """The solutions c of (K + alpha I) c = right by one decomposition, for the alphas with which that is sure.

    K is symmetric, (n, n); right and the solutions are (n, n_targets), float64; each alpha is there once. Few of them,
    and a K that is not float64, have no solution here.
    """
    if len(alphas) <= _FEW or K.dtype != np.float64:
        return {}
    values, vectors = linalg.eigh(K, driver="evd")
    sure = [alpha for alpha in alphas if values[0] + alpha > _ILL * np.trace(K)]
    if not sure:
        return {}
    projected = vectors.T @ right
    solutions = vectors @ np.hstack([projected / (values + alpha)[:, None] for alpha in sure])
    return dict(zip(sure, np.split(solutions, len(sure), axis=1), strict=True))


class _Kernels:
    """Kernels between some samples X and the training samples."""

    def __init__(self, X: Any, X_fit: Any):
        self._X, self._X_fit = X, X_fit
        self._common: np.ndarray | None = None  # what the kernels of all gammas are made of
        self._room: np.ndarray | None = None  # for one kernel at a time

    def of(self, model: KernelRidge) -> np.ndarray:
        """The kernel matrix with that model's parameters, which the next one may overwrite."""
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
        for begin in range(0, len(self._common), _ROWS):
            place = slice(begin, begin + _ROWS)
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
        named = isinstance(model.kernel, str) and model.kernel != "precomputed"
        return None if named else "its kernel is a function, or given"

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
                ridge = copy(first)
                vars(ridge).update(setting, X_fit_=X)
                made[place] = ridge
                groups.setdefault(_kernel_of(ridge), []).append(place)
        for places in groups.values():
            members = [made[place] for place in places]
            coefs, together = _coefficients(train, y, weight, members)
            known = [_predictions(samples.of(members[0]), coefs, together) for samples in asked]
            for place, ridge in enumerate(members):
                ridge.dual_coef_, ridge.__class__ = coefs[place], KnownKernelRidge
                ridge._known = tuple((X, predicted[place]) for X, predicted in zip(part.asked, known, strict=True))
        return made


def _predictions(K: np.ndarray, coefs: list[np.ndarray], together: list[bool]) -> list[np.ndarray]:
    """The products of K and each of the coefficients; of some in one product, which may round otherwise."""
    places = [place for place, in_product in enumerate(together) if in_product]
    predictions: list[Any] = [None if place in places else np.dot(K, coef) for place, coef in enumerate(coefs)]
    if places:
        columns = [coefs[place].reshape(K.shape[1], -1) for place in places]
        products = np.split(K @ np.hstack(columns), len(places), axis=1)
        for place, product in zip(places, products, strict=True):
            predictions[place] = product.reshape(len(K), *coefs[place].shape[1:])
    return predictions


def _coefficients(
    kernels: _Kernels, y: np.ndarray, weight: Any, models: list[Any]
) -> tuple[list[np.ndarray], list[bool]]:
    """The dual coefficients of models with the same kernel, which differ in alpha, and whether it was decomposed."""
    targets = y.reshape(-1, 1) if y.ndim == 1 else y
    alphas = [float(model.alpha) for model in models]
    K = kernels.of(models[0])
    root = np.ones((len(K), 1)) if weight is None else np.sqrt(weight)[:, None]
    weighted = K if weight is None else K * root * root.T
    decomposed = {alpha: root * c for alpha, c in solved(weighted, root * targets, sorted({*alphas})).items()}
    coefs = []
    for alpha in alphas:
        coef = decomposed.get(alpha)
        if coef is None:  # scikit-learn says so where the matrix is singular, and has another way
            coef = _solve_cholesky_kernel(K, targets, np.atleast_1d(alpha), weight, copy=True)
        coefs.append(coef.ravel() if y.ndim == 1 else coef)
    return coefs, [alpha in decomposed for alpha in alphas]


def _kernel_of(model: KernelRidge) -> tuple[Any, ...]:
    kind = type(model.gamma)  # a number of NumPy may have more digits than the samples
    return (model.kernel, kind, model.gamma, model.degree, model.coef0)


class _KnownKernel:
    """The kernel between samples that scorers ask about and the training samples, computed when first asked for."""

    def __init__(self, model: Any, asked: Any):
        self.asked, self._model = asked, model

    @cached_property
    def values(self) -> np.ndarray:
        model, vectors = self._model, self._model.kernel_.requires_vector_input
        dtype = "numeric" if vectors else None
        X = validate_data(model, self.asked, ensure_2d=vectors, dtype=dtype, reset=False)
        return np.asarray(model.kernel_(X, model.X_train_))


class KnownGaussianProcess(GaussianProcessRegressor):
    """A fitted model that answers for samples whose kernel with the training samples is known.

    What `fit` computes for other answers, it computes when it is first asked for.
    """

    _known: tuple[_KnownKernel, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name == "L_" and "X_train_" in vars(self):
            self.L_ = _factor(self.kernel_(self.X_train_), self.alpha)
        elif name == "log_marginal_likelihood_value_" and "alpha_" in vars(self):
            self.log_marginal_likelihood_value_ = self.log_marginal_likelihood(self.kernel_.theta, clone_kernel=False)
        return object.__getattribute__(self, name)

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        for kernel in self._known:
            if kernel.asked is X and not (return_std or return_cov):
                mean = self._y_train_std * (kernel.values @ self.alpha_) + self._y_train_mean
                return np.squeeze(mean, axis=1) if mean.ndim > 1 and mean.shape[1] == 1 else mean
        return super().predict(X, return_std, return_cov)


class NoiseLevels(Family):
    """Candidates that differ in alpha."""

    shared = frozenset({"alpha"})

    def why_not(self, model: Any) -> str | None:
        fixed = model.optimizer is None or (model.kernel is not None and model.kernel.n_dims == 0)
        return None if fixed else "its kernel is fitted again for each noise level"

    def fit(self, model: Any, settings: Settings, part: SplitPart) -> list[Any]:
        if part.weight is not None:
            raise TypeError("it takes no sample weights")
        first = clone(model).set_params(alpha=0.0)
        first.log_marginal_likelihood = lambda *_, **__: np.nan  # of no meaning so far
        fit: Any = GaussianProcessRegressor.fit
        fit = fit.__wrapped__
        # scikit-learn's own `fit`, whose factorisation is the kernel matrix itself
        names = {**fit.__globals__, "cholesky": lambda K, **_: K, "cho_solve": lambda *_, **__: None}
        FunctionType(fit.__code__, names, "fit", fit.__defaults__)(first, part.X, part.y)
        K = first.__dict__.pop("L_")
        del first.log_marginal_likelihood_value_, first.log_marginal_likelihood
        first.__class__ = KnownGaussianProcess
        first._known = tuple(_KnownKernel(first, X) for X in part.asked)
        alphas = [setting.get("alpha", model.alpha) for setting in settings]
        fine = [valid(model, setting) and isinstance(a, Real) for setting, a in zip(settings, alphas, strict=True)]
        solutions = _noise_coefficients(
            K, first.y_train_, [float(a) for a, use in zip(alphas, fine, strict=True) if use]
        )
        made: list[Any] = []
        for alpha, use in zip(alphas, fine, strict=True):
            coefficients = solutions[float(alpha)] if use else None
            process = None if coefficients is None else copy(first)
            if process is not None:
                process.alpha, process.alpha_ = alpha, coefficients
            made.append(process)
        return made


def _noise_coefficients(K: np.ndarray, y: np.ndarray, alphas: list[float]) -> dict[float, np.ndarray | None]:
    """The coefficients for each alpha; None where the matrix is not positive definite."""
    right = np.asarray(y, np.float64).reshape(len(K), -1)
    solutions: dict[float, np.ndarray | None] = {
        alpha: solution.reshape(np.shape(y)) for alpha, solution in solved(K, right, sorted({*alphas})).items()
    }
    for alpha in alphas:
        if alpha in solutions:
            continue
        try:
            solutions[alpha] = linalg.cho_solve((_factor(K.copy(), alpha), True), y, check_finite=False)
        except np.linalg.LinAlgError:
            solutions[alpha] = None
    return solutions


def _factor(K: np.ndarray, alpha: Any) -> np.ndarray:
    K[np.diag_indices_from(K)] += alpha
    return np.asarray(linalg.cholesky(K, lower=True, check_finite=False))


FAMILIES: dict[str, Family] = {"KernelRidge": KernelPenalties(), "GaussianProcessRegressor": NoiseLevels()}
