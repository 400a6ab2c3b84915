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
from sklearn import get_config
from sklearn.base import clone
from sklearn.utils.validation import _num_samples

from mpitune.sklearn.sharing.family import Family, Settings, SplitPart, Transformed, valid


class Components(Family):
    """PCAs that differ in the number of components."""

    shared = frozenset({"n_components"})

    def why_not(self, model: Any) -> str | None:
        if model.svd_solver not in ("auto", "full", "covariance_eigh"):
            return f"the solver {model.svd_solver} computes other components for each size"
        frames = hasattr(model, "_sklearn_output_config") or get_config()["transform_output"] != "default"
        return "its samples become DataFrames" if frames else None

    def fit_transform(self, model: Any, settings: Settings, part: SplitPart) -> list[Transformed | None]:
        sizes = [setting.get("n_components", model.n_components) for setting in settings]
        solver = self._solver(model, sizes, part.X)
        whole = clone(model).set_params(n_components=None, svd_solver=solver)
        X = whole.fit_transform(part.X)
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
                made.append((pca, partial(X.__getitem__, (slice(None), slice(n)))))
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


FAMILIES: dict[str, Family] = {"PCA": Components()}
