"""Gaussian process regression with a fixed kernel: one kernel matrix, and one decomposition, for all noise levels.

Why the result is the single one. The coefficients solve (K + alpha I) c = y, and K does not depend on alpha. This is
the problem of kernel ridge, with the same decomposition (`kernel_ridge.py`, which gives its error). Where K + alpha I
is nearly singular, where K is float32, and where there are few alphas, it is solved by scikit-learn's Cholesky
factorisation: equal to the bit. A prediction is the product of c with the kernel between its samples and the
training samples, which is computed once too. The factor and the likelihood, which single fits compute for each alpha,
are computed where they are asked for.

A kernel whose parameters are fitted is another one for each alpha, so nothing is shared.
"""

from __future__ import annotations

from copy import copy
from numbers import Real
from types import FunctionType
from typing import Any

import numpy as np
from scipy.linalg import cho_solve, cholesky
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.utils.validation import validate_data

from mpitune.sklearn.sharing.family import Family, Settings, SplitPart, valid
from mpitune.sklearn.sharing.kernel_ridge import solved


class _Kernel:
    """The kernel between samples that scorers ask about and the training samples, computed when first asked for."""

    def __init__(self, model: Any, asked: Any):
        self.asked, self._model = asked, model
        self._values: np.ndarray | None = None

    def values(self) -> np.ndarray:
        if self._values is None:
            vectors = self._model.kernel_.requires_vector_input
            X = validate_data(
                self._model, self.asked, ensure_2d=vectors, dtype="numeric" if vectors else None, reset=False
            )
            self._values = self._model.kernel_(X, self._model.X_train_)
        return self._values


class KnownGaussianProcess(GaussianProcessRegressor):
    """A fitted model that answers for samples whose kernel with the training samples is known.

    What `fit` computes for other answers, it computes when it is first asked for.
    """

    _known: tuple[_Kernel, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name == "L_" and "X_train_" in vars(self):
            self.L_ = _factor(self.kernel_(self.X_train_), self.alpha)
        elif name == "log_marginal_likelihood_value_" and "alpha_" in vars(self):
            self.log_marginal_likelihood_value_ = self.log_marginal_likelihood(self.kernel_.theta, clone_kernel=False)
        return object.__getattribute__(self, name)

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        for kernel in self._known:
            if kernel.asked is X and not (return_std or return_cov):
                mean = self._y_train_std * (kernel.values() @ self.alpha_) + self._y_train_mean
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
        first._known = tuple(_Kernel(first, X) for X in part.asked)
        alphas = [setting.get("alpha", model.alpha) for setting in settings]
        fine = [valid(model, setting) and isinstance(a, Real) for setting, a in zip(settings, alphas, strict=True)]
        solutions = _coefficients(K, first.y_train_, [float(a) for a, use in zip(alphas, fine, strict=True) if use])
        made: list[Any] = []
        for alpha, use in zip(alphas, fine, strict=True):
            coefficients = solutions[float(alpha)] if use else None
            process = None if coefficients is None else copy(first)
            if process is not None:
                process.alpha, process.alpha_ = alpha, coefficients
            made.append(process)
        return made


def _coefficients(K: np.ndarray, y: np.ndarray, alphas: list[float]) -> dict[float, np.ndarray | None]:
    """The coefficients for each alpha; None where the matrix is not positive definite."""
    right = np.asarray(y, np.float64).reshape(len(K), -1)
    solutions: dict[float, np.ndarray | None] = {
        alpha: solution.reshape(np.shape(y)) for alpha, solution in solved(K, right, sorted({*alphas})).items()
    }
    for alpha in alphas:
        if alpha in solutions:
            continue
        try:
            solutions[alpha] = cho_solve((_factor(K.copy(), alpha), True), y, check_finite=False)
        except np.linalg.LinAlgError:
            solutions[alpha] = None
    return solutions


def _factor(K: np.ndarray, alpha: Any) -> np.ndarray:
    K[np.diag_indices_from(K)] += alpha
    return np.asarray(cholesky(K, lower=True, check_finite=False))


FAMILIES = {"GaussianProcessRegressor": NoiseLevels()}
