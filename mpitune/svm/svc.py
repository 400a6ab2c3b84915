"""A support vector classifier with scikit-learn's interface."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
import sklearn
from sklearn.svm import SVC as ScikitSVC  # now, as `mpitune --sklearn` gives the name another meaning
from sklearn.utils.validation import check_is_fitted

from mpitune.svm import libsvm
from mpitune.svm.compiling import warm_up
from mpitune.svm.data import Data, TrainingSet
from mpitune.svm.decide.multiclass import binary_problems, choose_class
from mpitune.svm.decide.sources import CHUNK, FINE, far, kernel_between, product
from mpitune.svm.kernel.functions import KernelFunction
from mpitune.svm.kernel.rbf import Samples, prepare
from mpitune.svm.solved import KnownPart, Solved, solve

log = logging.getLogger(__name__)

CACHED = 256 << 10  # elements of K of samples that are predicted at once and a class's support vectors
LARGE = 1 << 30  # bytes of a dense copy of sparse samples from which on there is a warning


def dense(x: Any) -> Any:
    """Sparse samples (n, n_features) made dense, with a warning if that takes much memory; anything else as it is."""
    if not scipy.sparse.issparse(x):
        return x
    size = 8 * x.shape[0] * x.shape[1]
    if size >= LARGE:
        warnings.warn(
            f"sparse samples of shape {x.shape} are made dense, which takes {size / 1e9:.1f} GB",
            UserWarning,
            stacklevel=3,
        )
    return x.toarray()


class SVC(ScikitSVC):
    """`sklearn.svm.SVC` with this package's solver.

    Parameters, attributes and methods are scikit-learn's; values agree within ``tol``. Differences: sparse samples are
    made dense, so ``support_vectors_`` and ``dual_coef_`` are dense; ``shrinking``, ``cache_size`` and ``verbose`` have
    no effect. What `libsvm` lists is fitted by LIBSVM, as in scikit-learn.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from mpitune.svm import SVC
        >>> X, y = load_iris(return_X_y=True)
        >>> model = SVC(C=10, gamma=0.1).fit(X[::2], y[::2])
        >>> model.predict(X[1::50]).tolist(), round(model.score(X[1::2], y[1::2]), 2)
        ([0, 1, 2], 0.97)
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> SVC:
        """Fit to samples (n, n_features), labels (n,) and weights (n,); see `sklearn.svm.SVC.fit`."""
        for name in ("_later", "_known"):
            self.__dict__.pop(name, None)
        self._vectors: list[Samples | None] = []  # made by the first prediction
        self._by_libsvm = False
        super().fit(X, y, sample_weight)
        return self

    def _dense_fit(self, X: Any, y: np.ndarray, sample_weight: np.ndarray, *rest: Any, random_seed: int) -> None:
        self._fit_here(super()._dense_fit, X, y, sample_weight, *rest, random_seed=random_seed)

    def _sparse_fit(self, X: Any, y: np.ndarray, sample_weight: np.ndarray, *rest: Any, random_seed: int) -> None:
        self._fit_here(super()._sparse_fit, X, y, sample_weight, *rest, random_seed=random_seed)

    def _fit_here(
        self, fit: Callable[..., None], X: Any, y: np.ndarray, weights: np.ndarray, *rest: Any, random_seed: int
    ) -> None:
        """Fit with this solver, or else with scikit-learn's ``fit``."""
        self._given_sparse = scipy.sparse.issparse(X) and not callable(self.kernel)
        self._by_libsvm = not self._solve(X, y, weights)
        if self._by_libsvm:
            fit(X, y, weights, *rest, random_seed=random_seed)
        else:
            self._sparse = False

    def _solve(self, X: Any, y: np.ndarray, sample_weight: np.ndarray) -> bool:
        """Solve the problem here, or return False where it is left to LIBSVM; arguments of `_dense_fit`."""
        if libsvm.by_parameters(self):
            return False
        labels = y.astype(np.int64)
        weights = sample_weight if len(sample_weight) else np.ones(len(labels))
        function = KernelFunction.of(self.kernel, self._gamma, self.degree, self.coef0)
        if libsvm.by_weights(weights) or libsvm.by_weights(weights * self.class_weight_[labels]):
            return False
        X = dense(X)
        data = Data(X, labels, self.kernel, once=True, sparse=self._given_sparse)
        if libsvm.by_samples(X, data.samples, function):
            return False
        warm_up()
        (solved,) = solve(
            data,
            data.source(function, 1, 1),
            np.array([self.C], np.float64),
            [TrainingSet(np.arange(len(labels)), weights, self.class_weight_)],
            self.tol,
            self.max_iter,
            shrinking=bool(self.shrinking),
        )
        if solved.left[0]:
            return False
        self.fit_status_ = int(not solved.solutions.converged[0])
        for name, value in solved.attributes(0).items():
            setattr(self, name, value)
        self.support_vectors_ = X[self.support_]
        self._warn_from_fit_status()
        return True

    @classmethod
    def _of(cls, model: SVC, solved: Solved, c: int, facts: dict[str, Any], later: Callable[[], np.ndarray]) -> SVC:
        """A copy of an unfitted ``model`` as `fit` would have left it; arrays follow when they are asked for.

        facts: attributes that are known now. later: gives the training samples.
        """
        made = cls.__new__(cls)
        made.__dict__.update(vars(model), **facts, fit_status_=int(not solved.solutions.converged[c]), _sparse=False)
        made._later, made._vectors, made._by_libsvm = (solved, c, later), [], False
        return made

    def __getattr__(self, name: str) -> Any:
        if name in _LATER and "_later" in vars(self):
            solved, c, samples = self.__dict__.pop("_later")
            arrays = solved.attributes(c)
            arrays["support_vectors_"] = samples()[arrays["support_"]]
            arrays["_dual_coef_"], arrays["_intercept_"] = arrays["dual_coef_"], arrays["intercept_"].copy()
            if len(self.classes_) == 2:
                arrays["dual_coef_"], arrays["intercept_"] = -arrays["dual_coef_"], -arrays["intercept_"]
            arrays["n_iter_"] = arrays["_num_iter"]
            self.__dict__.update(arrays)
            return arrays[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        if "_later" in vars(self):
            _ = self.support_
        state: dict[str, Any] = super().__getstate__()
        state.pop("_known", None)
        return {**state, "_vectors": []} if "_vectors" in state else state

    def _asked(self, X: Any) -> tuple[KnownPart, int] | None:
        """What the solver of a grid knows of these very samples, and the number of this model's penalty there."""
        c, known = vars(self).get("_known", (0, ()))
        return next(((part, c) for samples, part in known if X is samples), None)

    def _pair_decisions(self, X: Any) -> np.ndarray:
        """Decision values (n, n_pairs), positive for the first class of a pair."""
        if asked := self._asked(X):
            part, c = asked
            return part.decisions(c)
        check_is_fitted(self)
        X = self._validate_for_predict(dense(X))
        function = KernelFunction.of(self.kernel, self._gamma, self.degree, self.coef0)
        k, ends = len(self.classes_), np.cumsum(self._n_support)
        index = {pair: p for p, pair in enumerate(binary_problems(k, "ovo"))}
        result = np.repeat(self._intercept_[:, None], len(X), axis=1)
        step = max(16, min(CACHED // max(1, *self._n_support), CHUNK // (8 * max(1, len(self.support_)))))
        vectors = self._fine_vectors(function)
        for start in range(0, len(X), step):
            x = X[start : start + step]
            if vectors is not None:
                near = vectors.others(x)
            for c, (first, last) in enumerate(zip(ends - self._n_support, ends, strict=True)):
                if first == last:
                    continue
                weights = self._dual_coef_[:, first:last].T
                if vectors is not None:
                    support = vectors.run(int(vectors.row_of[first]), int(last - first))
                    values = product(kernel_between(*near, *support, function.gamma), weights)[:, : len(x)]
                else:
                    values = (function(x, self.support_vectors_[first:last]) @ weights).T
                others = [other for other in range(k) if other != c]
                targets = [index[min(c, other), max(c, other)] for other in others]
                result[targets, start : start + step] += values
        return result.T

    def _fine_vectors(self, function: KernelFunction) -> Samples | None:
        """The support vectors for float32, if that is fine enough for them."""
        if function.name != "rbf":
            return None
        if not self._vectors:
            labels = np.repeat(np.arange(len(self.classes_)), self._n_support)
            vectors = prepare(self.support_vectors_, labels)
            fine = function.gamma * vectors.sq_norms.max() <= FINE and not far(vectors, function.gamma)
            self._vectors.append(vectors if fine else None)
        return self._vectors[0]

    def _decision_function(self, X: Any) -> np.ndarray:
        if vars(self).get("_by_libsvm"):
            return super()._decision_function(X)
        values = self._pair_decisions(X)
        return -values.ravel() if len(self.classes_) == 2 else values

    def predict(self, X: Any) -> np.ndarray:
        """Labels (n,) of samples; see `sklearn.svm.SVC.predict`."""
        asked = self._asked(X)
        if asked is None:  # the check takes longer than a prediction of a grid
            check_is_fitted(self)
        if self.break_ties and self.decision_function_shape == "ovo":
            raise ValueError("break_ties must be False when decision_function_shape is 'ovo'")
        if vars(self).get("_by_libsvm"):
            return super().predict(X)
        k = len(self.classes_)
        if self.break_ties and k > 2:
            return self.classes_[np.argmax(self.decision_function(X), axis=1)]
        if asked:
            part, c = asked
            return self.classes_[part.labels(c)]
        return self.classes_[choose_class(self._pair_decisions(X), binary_problems(k, "ovo"), k)]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Mean accuracy; see `sklearn.svm.SVC.score`, whose checks of plain labels take longer than a grid's fit."""
        plain = sample_weight is None and isinstance(y, np.ndarray) and y.ndim == 1 and len(y)
        if plain and self._asked(X):
            return int(np.count_nonzero(self.predict(X) == y)) / len(y)
        return float(super().score(X, y, sample_weight))


_LATER = {
    "support_", "support_vectors_", "_n_support", "dual_coef_", "_dual_coef_", "intercept_", "_intercept_", "_probA",
    "_probB", "_num_iter", "n_iter_",
}  # fmt: skip


def as_sklearn(model: SVC) -> ScikitSVC:
    """A fitted model as scikit-learn's own class, with its attributes and the same decision values.

    A model that was fitted to sparse samples has sparse support vectors then, and takes sparse samples, as there.
    """
    if "_later" in vars(model):
        _ = model.support_
    made = ScikitSVC(**model.get_params())
    made.__dict__.update({name: value for name, value in vars(model).items() if name not in _OURS})
    if vars(model).get("_given_sparse") and not model._sparse:
        made._sparse = True
        made.support_vectors_ = _container(scipy.sparse.csr_array(model.support_vectors_))
        made._dual_coef_ = _full(model._dual_coef_)
        made.dual_coef_ = -made._dual_coef_ if len(model.classes_) == 2 else made._dual_coef_
    return made


class Refit(SVC):
    """An unfitted SVC of scikit-learn that this package's solver fits; it is of scikit-learn's class again then.

    Where the solver has not enough memory for all samples, LIBSVM makes the fit.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> ScikitSVC:
        try:
            super().fit(X, y, sample_weight)
        except MemoryError as error:
            log.warning("the best candidate is refitted by LIBSVM, not by the solver of the grid: %s", error)
            self.__class__ = ScikitSVC
            return self.fit(X, y, sample_weight)
        self.__dict__, self.__class__ = vars(as_sklearn(self)), ScikitSVC
        return self


Refit.__name__ = ScikitSVC.__name__  # in messages


_OURS = {"_vectors", "_known", "_given_sparse", "_by_libsvm"}


def _full(values: np.ndarray) -> Any:
    """A matrix as CSR that stores each element, also zeros, in the type of scikit-learn's matrices."""
    height, width = values.shape
    if not width:
        return _container(scipy.sparse.csr_array([[]]))
    columns, first = np.tile(np.arange(width), height), np.arange(0, values.size + 1, width)
    return _container(scipy.sparse.csr_array((values.ravel(), columns, first), (height, width)))


def _container(array: scipy.sparse.csr_array) -> Any:
    """An array of scipy in the type that scikit-learn is set to give; releases before 1.9 give matrices alone."""
    chosen = sklearn.get_config().get("sparse_interface", "spmatrix")
    return array if chosen == "sparray" else scipy.sparse.csr_matrix(array)
