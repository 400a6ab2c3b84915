"""HalvingGridSearchCV and HalvingRandomSearchCV: scikit-learn's, each of their iterations a study."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from sklearn.experimental import enable_halving_search_cv  # noqa: F401 (without it scikit-learn has no such names)
from sklearn.model_selection import _search_successive_halving as theirs

from common.sklearn.searches import DOC, OnEngine


class HalvingGridSearchCV(theirs.HalvingGridSearchCV, OnEngine):  # noqa: D101 - made below
    __doc__ = DOC.format(first="sklearn.model_selection.HalvingGridSearchCV")

    _parameter_constraints = {**theirs.HalvingGridSearchCV._parameter_constraints, **OnEngine.added}

    def __init__(
        self,
        estimator: Any,
        param_grid: Any,
        *,
        factor: float = 3,
        resource: str = "n_samples",
        max_resources: Any = "auto",
        min_resources: Any = "exhaust",
        aggressive_elimination: bool = False,
        cv: Any = 5,
        scoring: Any = None,
        refit: Any = True,
        error_score: Any = np.nan,
        return_train_score: bool = True,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
        results: str | os.PathLike[str] | None = None,
        workers: int | None = None,
        gpu: str | None = None,
        trial_timeout: float | None = None,
        accelerate: bool = True,
        share: str | bool = "exact",
    ) -> None:
        super().__init__(
            estimator, param_grid, factor=factor, resource=resource, max_resources=max_resources,
            min_resources=min_resources, aggressive_elimination=aggressive_elimination, cv=cv, scoring=scoring,
            refit=refit, error_score=error_score, return_train_score=return_train_score, random_state=random_state,
            n_jobs=n_jobs, verbose=verbose,
        )  # fmt: skip
        self.results, self.workers, self.gpu = results, workers, gpu
        self.trial_timeout, self.accelerate, self.share = trial_timeout, accelerate, share


class HalvingRandomSearchCV(theirs.HalvingRandomSearchCV, OnEngine):  # noqa: D101 - made below
    __doc__ = DOC.format(first="sklearn.model_selection.HalvingRandomSearchCV")

    _parameter_constraints = {**theirs.HalvingRandomSearchCV._parameter_constraints, **OnEngine.added}

    def __init__(
        self,
        estimator: Any,
        param_distributions: Any,
        *,
        n_candidates: Any = "exhaust",
        factor: float = 3,
        resource: str = "n_samples",
        max_resources: Any = "auto",
        min_resources: Any = "smallest",
        aggressive_elimination: bool = False,
        cv: Any = 5,
        scoring: Any = None,
        refit: Any = True,
        error_score: Any = np.nan,
        return_train_score: bool = True,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
        results: str | os.PathLike[str] | None = None,
        workers: int | None = None,
        gpu: str | None = None,
        trial_timeout: float | None = None,
        accelerate: bool = True,
        share: str | bool = "exact",
    ) -> None:
        super().__init__(
            estimator, param_distributions, n_candidates=n_candidates, factor=factor, resource=resource,
            max_resources=max_resources, min_resources=min_resources, aggressive_elimination=aggressive_elimination,
            cv=cv, scoring=scoring, refit=refit, error_score=error_score, return_train_score=return_train_score,
            random_state=random_state, n_jobs=n_jobs, verbose=verbose,
        )  # fmt: skip
        self.results, self.workers, self.gpu = results, workers, gpu
        self.trial_timeout, self.accelerate, self.share = trial_timeout, accelerate, share
