"""Components whose number is searched: all are computed by one fit, each candidate keeps its part.

Why the result is the single one. PCA with the solvers "full" and "covariance_eigh" decomposes the whole of the samples,
or of their covariance, for any `n_components`. The size only says how many of the sorted components are kept. So all
components are computed once and cut by the same rules: bitwise equal. The solver "auto" is shared where it chooses
one of these two for each size. The randomised solver and NMF compute other vectors for each size. ARPACK's are the same
up to rounding, but not where singular values are equal. These are not shared, nor is truncated SVD, which uses these
two solvers.
"""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse
from sklearn import config_context
from sklearn.base import clone
from sklearn.utils._set_output import _wrap_data_with_container
from sklearn.utils.validation import _num_samples

from mpitune.sklearn.sharing.family import Family, Settings, SplitPart, Transformed, valid

_OUTPUT = "_sklearn_output_config"  # what `set_output` sets


class Components(Family):
    """PCAs that differ in the number of components."""

    shared = frozenset({"n_components"})

    def why_not(self, model: Any) -> str | None:
        if model.svd_solver not in ("auto", "full", "covariance_eigh"):
            return f"the solver {model.svd_solver} computes other components for each size"
        return None

    def fit_transform(self, model: Any, settings: Settings, part: SplitPart) -> list[Transformed | None]:
        sizes = [setting.get("n_components", model.n_components) for setting in settings]
        solver = self._solver(model, sizes, part.X)
        whole = clone(model).set_params(n_components=None, svd_solver=solver)
        output = vars(whole).pop(_OUTPUT, None)  # for DataFrames: they are made of the columns that are kept
        with config_context(transform_output="default"):
            X = whole.fit_transform(part.X)
        if output is not None:
            setattr(whole, _OUTPUT, output)
        made: list[Transformed | None] = []
        for size, setting in zip(sizes, settings, strict=True):
            n = len(whole.components_)
            if not valid(model, setting) or (size is not None and (isinstance(size, str) or not 1 <= size <= n)):
                made.append(None)
                continue
            pca = copy(whole)
            pca.n_components, pca.svd_solver = size, model.svd_solver
            n = n if size is None else int(size)
            for name in ("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_"):
                setattr(pca, name, np.array(getattr(whole, name)[:n]))
            pca.n_components_ = n
            rest = whole.explained_variance_[n:]
            pca.noise_variance_ = np.mean(rest) if len(rest) else 0.0
            # "full" gives U S, column by column; the other solver multiplies, and a smaller product rounds otherwise.
            if solver == "full":
                made.append((pca, partial(_first_columns, X, n, part.X, pca)))
            else:
                made.append((pca, partial(pca.transform, part.X)))
        return made

    def _solver(self, model: Any, sizes: list[Any], X: Any) -> str:
        """What scikit-learn takes for each of the sizes. Raises ValueError where that is not one and the same."""
        if scipy.sparse.issparse(X):
            raise ValueError("the full solver takes no sparse samples")
        if model.svd_solver != "auto":
            return str(model.svd_solver)
        n, p = _num_samples(X), np.shape(X)[1]
        if p <= 1000 and n >= 10 * p:
            return "covariance_eigh"
        large = [size is None or size >= 0.8 * min(n, p) for size in sizes if not isinstance(size, str)]
        if max(n, p) <= 500 or all(large):
            return "full"
        raise ValueError("the randomised solver computes other components for each size")


def _first_columns(X: np.ndarray, n: int, samples: Any, model: Any) -> Any:
    return _wrap_data_with_container("transform", X[:, :n], samples, model)


FAMILIES: dict[str, Family] = {"PCA": Components()}
