"""What the winner of a search is worth; and a choice of the candidate that knows it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import is_classifier, is_regressor
from sklearn.pipeline import Pipeline

from mpitune.errors import UsageError
from mpitune.figures.winner import Winner

ACCURACY = "sklearn.base", "sklearn.dummy", "sklearn.neighbors._classification"  # whose `score` it is, or r2


def winner_of(search: Any) -> Winner:
    """What the best candidate of a fitted search is worth; of one that halves, of the last iteration.

    Raises:
        UsageError: there is no such score, or no candidate has all scores, or scikit-learn has made the fits.
    """
    results, refit = search.cv_results_, getattr(search.refit, "metric", search.refit)
    if not search._splits:
        raise UsageError("scikit-learn has made all fits, and does not say how it has split the samples")
    metric = refit if isinstance(refit, str) and f"mean_test_{refit}" in results else "score"
    how = {"name": score_name(search, metric), **search._splits}
    winner = _of_results(results, metric, raced=search.race is not None, **how)
    winner.refitted = getattr(search, "best_index_", winner.candidate)
    return winner


def _of_results(results: Mapping[str, Any], metric: str, raced: bool = False, **how: Any) -> Winner:
    if f"mean_test_{metric}" not in results:
        known = [name.removeprefix("mean_test_") for name in results if name.startswith("mean_test_")]
        raise UsageError(f"there is no score {metric!r}, but {', '.join(known)}: give refit= the name of one")
    n_splits = sum(name.startswith("split") and name.endswith(f"_test_{metric}") for name in results)
    columns = [results[f"split{n}_test_{metric}"] for n in range(n_splits)]
    scores: np.ndarray = np.column_stack([np.ma.filled(np.ma.asarray(column, float), np.nan) for column in columns])
    last = np.asarray(results.get("iter", np.zeros(len(scores))))
    scores[last != last.max()] = np.nan
    known = np.isfinite(scores).sum(axis=1)
    evaluated = results.get("n_splits_evaluated", n_splits)
    how = {"name": metric if metric != "score" else "", "halving": "iter" in results, **how}
    how["left"] = int(np.sum((known < n_splits) & (known == evaluated))) if raced else 0
    winner = Winner(scores, results["params"], **how)
    winner.n_candidates = int(np.sum(last == last.max()))
    return winner


def score_name(search: Any, metric: str | None = None) -> str:
    """What the score is called, in scikit-learn's words where it is one of its; "" where that is not known."""
    scoring, metric = search.scoring, "" if metric in (None, "score") else str(metric)
    if isinstance(scoring, Mapping):
        scoring, metric = scoring.get(metric, ""), ""  # the scorer's, not what a user calls it
    if isinstance(scoring, str):
        return scoring
    if isinstance(scoring, list | tuple | set) or (scoring is not None and metric):
        return metric
    if scoring is None:
        estimator = search.estimator.steps[-1][1] if isinstance(search.estimator, Pipeline) else search.estimator
        own = getattr(getattr(estimator, "score", None), "__module__", "")
        usual = own in ACCURACY or own.startswith("mpitune.")
        return "" if not usual else "accuracy" if is_classifier(estimator) else "r2" if is_regressor(estimator) else ""
    name = getattr(getattr(scoring, "_score_func", scoring), "__name__", "")
    return "neg_" * (getattr(scoring, "_sign", 1) < 0) + name.removesuffix("_score") if name.isidentifier() else ""


@dataclass(frozen=True)
class Careful:
    """A `refit` that takes the winner only where that is worth more than the default.

    `careful` is one: it returns the number of the winner, unless the default (the candidate without parameters, as
    `default=True` adds it) is as good once the choice is corrected for. It works in scikit-learn's own searches, too,
    which then have no `best_score_`.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.tree import DecisionTreeClassifier
        >>> from mpitune.sklearn import GridSearchCV, careful
        >>> X, y = load_iris(return_X_y=True)
        >>> tree, grid = DecisionTreeClassifier(random_state=0), {"max_depth": [1, 2, 3, 4, 5]}
        >>> GridSearchCV(tree, grid, cv=5, default=True, refit=careful).fit(X, y).best_params_
        {}
    """

    metric: str = "score"

    def on(self, metric: str) -> Careful:
        """The same for one of several scorers, by its name."""
        return replace(self, metric=metric)

    def check(self, scorers: Collection[str]) -> None:
        """Raise UsageError where it is of none of several scorers."""
        if scorers and self.metric not in scorers:
            raise UsageError(f"careful: name one of the scorers, such as careful.on({next(iter(scorers))!r})")

    def __call__(self, results: Mapping[str, Any], **how: Any) -> int:
        """The number of the candidate to refit, from `cv_results_`. For the rest see `Winner`."""
        return _of_results(results, self.metric, careful=True, **how).refitted


careful = Careful()
