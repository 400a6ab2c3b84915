"""What the winner of a search is worth; and choices of a candidate that know it."""

from __future__ import annotations

import numbers
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import is_classifier, is_regressor
from sklearn.metrics import get_scorer_names
from sklearn.model_selection import BaseShuffleSplit, LeavePGroupsOut, LeavePOut, PredefinedSplit, TimeSeriesSplit
from sklearn.pipeline import Pipeline

from mpitune.errors import UsageError
from mpitune.figures.statistics import LEVEL
from mpitune.figures.winner import Winner
from mpitune.sklearn.fits.task import splits_of

NO_TABLE = "{} has no cv_results_: give a fitted search, or these, of a table its to_dict('list')"
UNKNOWN = "the splits of {} are not known: give ratio=, the samples of a fold by those of its training, or repeats="
NAMELESS = "which score it is, is not known: r2 would not be corrected, and intervals end at no bounds"
ACCURACY = "sklearn.base", "sklearn.dummy", "sklearn.neighbors._classification"  # whose `score` it is, or r2
ONE_VALIDATION = "taken for one cross-validation of {} folds: give the fitted search, or repeats= of a repeated one"


def winner_of(
    search: Any,
    metric: str | None = None,
    *,
    repeats: int | None = None,
    ratio: float | None = None,
    level: float = LEVEL,
) -> Winner:
    """What the best candidate of any search of scikit-learn is worth.

    Args:
        search: the fitted search, or its `cv_results_`, which does not say how samples were split; of a halving search
            the candidates of the last iteration count.
        metric: the scorer's name where there are several; None for that of the refit.
        repeats: of the cross-validation, where `search` does not know.
        ratio: samples of a fold by those of its training, where splits are random and `search` does not know.
        level: of the intervals.

    Raises:
        UsageError: there is no such score, or no candidate has all scores.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.model_selection import GridSearchCV
        >>> from sklearn.tree import DecisionTreeClassifier
        >>> from mpitune.sklearn import winner_of
        >>> X, y = load_iris(return_X_y=True)
        >>> tree = DecisionTreeClassifier(random_state=0)
        >>> search = GridSearchCV(tree, [{}, {"max_depth": [1, 2, 3, 4]}], cv=5).fit(X, y)
        >>> print(winner_of(search))
        best of 5 by accuracy: {'max_depth': 4}: 0.9667; corrected for the choice 0.9545 (95 %: 0.8785 to 1.0000)
        as good on these 5 folds: 4 of 5
        the default: 0.9600; the winner is better by +0.0067, corrected for the choice -0.0055 +- 0.0439: not shown to \
be more than chance
    """
    folds: dict[str, Any] = {} if repeats is None else {"repeats": repeats}
    folds |= {} if ratio is None else {"ratio": ratio}
    if isinstance(search, Mapping):
        winner = _of_results(search, metric or "score", level=level, **folds)
        if not folds and any(winner.n_folds % n == 0 for n in range(2, winner.n_folds // 2 + 1)):
            winner.notes.append(ONE_VALIDATION.format(winner.n_folds))
        winner.notes += [NAMELESS] * (metric not in get_scorer_names())
        return winner
    if not hasattr(search, "cv_results_"):
        raise UsageError(NO_TABLE.format(type(search).__name__))
    results, refit = search.cv_results_, getattr(search.refit, "metric", search.refit)
    metric = metric or (refit if isinstance(refit, str) and f"mean_test_{refit}" in results else "score")
    how = {"name": score_name(search, metric), **splits_known(search, folds), **folds}
    winner = _of_results(results, metric, level=level, raced=getattr(search, "race", None) is not None, **how)
    winner.refitted = getattr(search, "best_index_", winner.candidate)
    return winner


def _of_results(results: Mapping[str, Any], metric: str, raced: bool = False, **how: Any) -> Winner:
    if f"mean_test_{metric}" not in results:
        known = [name.removeprefix("mean_test_") for name in results if name.startswith("mean_test_")]
        how_to = f"name one of them, as winner_of(search, {known[0]!r})" if known else "give those of a search"
        raise UsageError(f"cv_results_ has no score {metric!r}, but {', '.join(known) or 'none'}: {how_to}")
    n_splits = sum(name.startswith("split") and name.endswith(f"_test_{metric}") for name in results)
    if not isinstance(repeats := how.get("repeats", 1), numbers.Integral) or repeats < 1 or n_splits % repeats:
        raise UsageError(f"repeats={repeats!r}: {n_splits} splits are not so many repeats of a cross-validation")
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


def splits_known(search: Any, folds: Collection[str] = ()) -> dict[str, Any]:
    """How a fitted search has split its samples, see `splits_of`. UsageError if it does not know, but what is given."""
    if own := getattr(search, "_splits", None):
        return dict(own)
    cv, n = search.cv, 100 * (1 + search.n_splits_)  # samples that stand for those that it had
    if isinstance(cv, list | tuple):
        return splits_of(cv, 1 + max(int(np.max(part)) for pair in cv for part in pair))
    if isinstance(cv, PredefinedSplit):
        return splits_of(list(cv.split()), len(cv.test_fold))
    of_sklearn = cv is None or isinstance(cv, numbers.Integral) or type(cv).__module__.startswith("sklearn.")
    if of_sklearn and not isinstance(cv, BaseShuffleSplit | TimeSeriesSplit | LeavePOut | LeavePGroupsOut):
        return {"repeats": getattr(cv, "n_repeats", 1)}
    how = {"kind": "windows" if isinstance(cv, TimeSeriesSplit) else ""}
    if "ratio" not in folds and "repeats" not in folds:
        sizes = [getattr(cv, name, None) for name in ("test_size", "train_size", "max_train_size", "p", "n_groups")]
        if not of_sklearn or any(isinstance(size, numbers.Integral) for size in sizes):
            raise UsageError(UNKNOWN.format(cv))
        how["ratio"] = splits_of(list(cv.split(np.zeros(n), np.zeros(n), np.arange(n))), n)["ratio"]
    return how


@dataclass(frozen=True)
class Careful:
    """A `refit` that takes the winner only where that is worth more than the default, or than a simpler candidate.

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
        >>> GridSearchCV(tree, grid, cv=5, refit=careful.simplest("max_depth")).fit(X, y).best_params_
        {'max_depth': 2}
    """

    metric: str = "score"
    order: tuple[str, ...] = ()

    def on(self, metric: str) -> Careful:
        """The same for one of several scorers, by its name."""
        return replace(self, metric=metric)

    def simplest(self, *names: str) -> Careful:
        """Takes the simplest of those that are as good as the winner.

        Args:
            names: of parameters, the first counts most: less is simpler, or more, if "-" is before the name. None is
                the least simple value, as a depth without limit, and a candidate without the parameter comes after all.
        """
        if not names:
            raise UsageError('careful.simplest needs names of parameters, such as "max_depth", "-min_samples_leaf"')
        return replace(self, order=names)

    def check(self, candidates: Sequence[Mapping[str, Any]], scorers: Collection[str] = ()) -> None:
        """Raise UsageError where it cannot choose among these candidates, by these scorers if they are several."""
        if scorers and self.metric not in scorers:
            raise UsageError(f"careful: name one of the scorers, such as careful.on({next(iter(scorers))!r})")
        for name in (name.removeprefix("-") for name in self.order):
            values = [params[name] for params in candidates if name in params]
            if not values:
                raise UsageError(f"careful.simplest: no candidate has a parameter {name!r}")
            for value in values:
                if value is not None and not isinstance(value, numbers.Real):
                    raise UsageError(f"careful.simplest: {name}={value!r} is no number, so it has no order")

    def __call__(self, results: Mapping[str, Any], **how: Any) -> int:
        """The number of the candidate to refit, from `cv_results_`. For the rest see `Winner`."""
        self.check(results["params"])
        return _of_results(results, self.metric, careful=self.order, **how).refitted


careful = Careful()
