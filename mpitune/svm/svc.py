"""A support vector classifier with scikit-learn's interface."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.svm import SVC as ScikitSVC  # now, as `mpitune --sklearn` gives the name another meaning
from sklearn.utils import _safe_indexing

from mpitune.svm import libsvm
from mpitune.svm.compiling import warm_up
from mpitune.svm.data import Data, TrainingSet
from mpitune.svm.kernel.functions import KernelFunction
from mpitune.svm.solved import KnownPart, Solved, solve

log = logging.getLogger(__name__)


class SVC(ScikitSVC):
    """`sklearn.svm.SVC` with this package's solver.

    Parameters, attributes and methods are scikit-learn's; values agree within ``tol``. Differences: ``shrinking``,
    ``cache_size`` and ``verbose`` have no effect. What `libsvm` lists is fitted by LIBSVM, as in scikit-learn, and
    predictions are scikit-learn's own.

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
        for name in _OF_GRID:
            self.__dict__.pop(name, None)
        super().fit(X, y, sample_weight)
        return self

    def _dense_fit(self, X: Any, y: np.ndarray, sample_weight: np.ndarray, *rest: Any, random_seed: int) -> None:
        if not self._solve(X, y, sample_weight):
            super()._dense_fit(X, y, sample_weight, *rest, random_seed=random_seed)

    def _solve(self, X: np.ndarray, y: np.ndarray, sample_weight: np.ndarray) -> bool:
        """Solve the problem here, or return False where it is left to LIBSVM; arguments of `_dense_fit`."""
        if libsvm.by_parameters(self):
            return False
        labels = y.astype(np.int64)
        weights = sample_weight if len(sample_weight) else np.ones(len(labels))
        function = KernelFunction.of(self.kernel, self._gamma, self.degree, self.coef0)
        if libsvm.by_weights(weights) or libsvm.by_weights(weights * self.class_weight_[labels]):
            return False
        data = Data(X, labels, self.kernel, once=True)
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
        solved.complete(0)
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
        made._later = solved, c, later
        return made

    def __getattr__(self, name: str) -> Any:
        if name in _LATER and "_later" in vars(self):
            self._complete(every=False)
            return self.__dict__[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _complete(self, *, every: bool) -> None:
        """Have the attributes, with LIBSVM's own solutions of ``every`` pair of classes, or of those that need it."""
        solved, c, _ = self._later
        solved.complete(c, every=every)
        self.__dict__.update(self._arrays())

    def _arrays(self) -> dict[str, np.ndarray]:
        """Attributes, of the solutions that are there."""
        solved, c, samples = self._later
        arrays = solved.attributes(c)
        arrays["support_vectors_"] = samples()[arrays["support_"]]
        arrays["_dual_coef_"], arrays["_intercept_"] = arrays["dual_coef_"], arrays["intercept_"].copy()
        if len(self.classes_) == 2:
            arrays["dual_coef_"], arrays["intercept_"] = -arrays["dual_coef_"], -arrays["intercept_"]
        arrays["n_iter_"] = arrays["_num_iter"]
        return arrays

    def __getstate__(self) -> dict[str, Any]:
        if "_later" in vars(self):
            _ = self.support_
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name not in _OF_GRID}

    def _known_part(self, X: Any) -> tuple[KnownPart, int] | None:
        """What the solver of a grid knows of these very samples, and the number of this model's penalty there."""
        c, known = vars(self).get("_known", (0, ()))
        return next(((part, c) for samples, part in known if X is samples), None)

    def _decision_function(self, X: Any) -> np.ndarray:
        if "_later" in vars(self) and self._known_part(X):
            self._complete(every=True)  # as a rank among other samples may depend on the last bit
            del self._later
        return super()._decision_function(X)

    def predict(self, X: Any) -> np.ndarray:
        """Labels (n,) of samples; see `sklearn.svm.SVC.predict`."""
        if not self.break_ties and (known := self._known_part(X)):
            part, c = known
            labels = self.classes_[part.labels(c)]
            # Where rounding decides, LIBSVM's own code computes labels, from its own multipliers of pairs that matter.
            if (some := part.unsure.get(c)) is not None:
                kept = dict(vars(self))  # arrays that were read before may be of other solutions
                self.__dict__.update(self._arrays() if "_later" in kept else {})
                labels[some] = super().predict(_safe_indexing(X, some))
                self.__dict__ = kept
            return labels
        return super().predict(X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Mean accuracy; see `sklearn.svm.SVC.score`, whose checks of plain labels take longer than a grid's fit."""
        plain = sample_weight is None and isinstance(y, np.ndarray) and y.ndim == 1 and len(y)
        if plain and self._known_part(X):
            return int(np.count_nonzero(self.predict(X) == y)) / len(y)
        return float(super().score(X, y, sample_weight))


_OF_GRID = ("_later", "_known")  # attributes of a model that `fit_grid` made
_LATER = {
    "support_", "support_vectors_", "_n_support", "dual_coef_", "_dual_coef_", "intercept_", "_intercept_", "_probA",
    "_probB", "_num_iter", "n_iter_",
}  # fmt: skip


def as_sklearn(model: SVC) -> ScikitSVC:
    """A fitted model as scikit-learn's own class, with its attributes and the same decision values."""
    if "_later" in vars(model):
        _ = model.support_
    made = ScikitSVC(**model.get_params())
    made.__dict__.update({name: value for name, value in vars(model).items() if name not in _OF_GRID})
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
