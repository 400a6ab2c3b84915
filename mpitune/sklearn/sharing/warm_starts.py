"""Estimators that begin from the solution of the candidate before: equal within `tol`, so only with "tolerance".

What holds of the result. Each candidate is fitted by scikit-learn's own `fit` with `warm_start=True`, and stops by the
same criterion as a single fit; one that reaches `max_iter` first is fitted alone. Penalties are taken from the
strongest to the weakest, as in a path (J. Friedman, T. Hastie and R. Tibshirani, "Regularization paths for generalized
linear models via coordinate descent", J. Stat. Software 33, 2010).

- Lasso and elastic net stop where the duality gap is below `tol` times y'y. Half the squared distance of the
  predictions for the training samples from the best ones is at most the gap. So they differ from those of a single fit
  by at most sqrt(8 tol) times the deviation of y (root mean squares): 0.03 times with the default tol.
- Logistic regression stops where no component of the gradient of the mean loss exceeds `tol`. How far probabilities
  differ then depends on the samples, as their problem may be ill conditioned.
"""

from __future__ import annotations

import warnings
from copy import copy
from numbers import Real
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from mpitune.sklearn.sharing.family import Family, Settings, SplitPart, valid


class WarmStarts(Family):
    """Candidates along one penalty. rising: whether a larger value penalises more."""

    exact = False

    def __init__(self, penalty: str, rising: bool):
        self.penalty, self.rising = penalty, rising

    def shares(self, name: str) -> bool:
        return name == self.penalty

    def why_not(self, model: Any) -> str | None:
        solver = getattr(model, "solver", "")
        if solver in ("liblinear", "newton-cholesky"):
            return f"the solver {solver} takes no beginning"
        if getattr(model, "selection", "") == "random" or solver in ("sag", "saga"):
            return "it goes through samples or features at random"
        return None

    def fit(self, model: Any, settings: Settings, part: SplitPart) -> list[Any]:
        values = [setting[self.penalty] for setting in settings]
        right = [p for p, s in enumerate(settings) if isinstance(values[p], Real) and valid(model, s)]
        going = clone(model).set_params(warm_start=True)
        made: list[Any] = [None] * len(settings)
        for place in sorted(right, key=lambda place: float(values[place]), reverse=self.rising):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # a fit alone says it again
                going.set_params(**settings[place]).fit(part.X, part.y, **part.weights)
            if np.max(going.n_iter_) >= going.max_iter:
                continue
            fitted = copy(going)
            for name in ("coef_", "intercept_"):  # the next fit writes to them
                setattr(fitted, name, copy(getattr(going, name)))
            fitted.warm_start = model.warm_start
            made[place] = fitted
        return made


FAMILIES = {
    "Lasso": WarmStarts("alpha", rising=True),
    "ElasticNet": WarmStarts("alpha", rising=True),
    "LogisticRegression": WarmStarts("C", rising=False),
}
