"""What the winner of a search is worth, from `cv_results_`; and choices of a candidate that know it."""

from __future__ import annotations

import numbers
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mpitune.errors import UsageError
from mpitune.figures.winner import Winner

LEFT = "{} candidates without all folds are not corrected for"
FEWER = "these are the candidates of the last iteration: that others left earlier is not corrected"


def winner_of(
    results: Mapping[str, Any], metric: str = "score", *, repeats: int = 1, ratio: float | None = None
) -> Winner:
    """What the best candidate of any search of scikit-learn is worth, from its `cv_results_`.

    Args:
        results: `cv_results_`; of a halving search the candidates of the last iteration count.
        metric: the scorer's name where there are several.
        repeats: of the cross-validation.
        ratio: samples of a fold by those of its training, where splits are not all of a cross-validation.

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
        >>> print(winner_of(search.cv_results_))
        best of 5: {'max_depth': 4}: 0.9667; corrected for the choice 0.9545 (95 %: 0.8785 to 1.0305)
        as good on these 5 folds: 4 of 5
        the default: 0.9600; the winner is better by +0.0067 +- 0.0278: that is no more than chance
    """
    if f"mean_test_{metric}" not in results:
        known = ", ".join(name.removeprefix("mean_test_") for name in results if name.startswith("mean_test_"))
        raise UsageError(f"cv_results_ has no score {metric!r}, but {known}: name one of them")
    n_splits = sum(name.startswith("split") and name.endswith(f"_test_{metric}") for name in results)
    if repeats < 1 or n_splits % repeats:
        raise UsageError(f"repeats={repeats}: {n_splits} splits are not so many repeats of a cross-validation")
    columns = [results[f"split{n}_test_{metric}"] for n in range(n_splits)]
    scores: np.ndarray = np.column_stack([np.ma.filled(np.ma.asarray(column, float), np.nan) for column in columns])
    if "iter" in results:
        scores[np.asarray(results["iter"]) != max(results["iter"])] = np.nan
    found = Winner(scores, results["params"], repeats=repeats, ratio=ratio)
    found.notes += [FEWER] if "iter" in results else []
    return found


def winner_of_search(search: Any) -> Winner:
    """`winner_of` for a fitted search, which knows its score and its splits."""
    refit, results, (repeats, ratio) = getattr(search.refit, "metric", search.refit), search.cv_results_, search._splits
    found = winner_of(results, refit if isinstance(refit, str) else "score", repeats=repeats, ratio=ratio)
    n_left = int(np.sum(results.get("n_splits_evaluated", search.n_splits_) < search.n_splits_))
    if n_left and getattr(search, "race", None) is not None:
        found.notes.append(LEFT.format(n_left))
    chosen = getattr(search, "best_index_", found.candidate)
    if (mean := np.mean(found.scores[chosen])) != found.score:
        found.notes.append(f"refitted is candidate {chosen}: {dict(found.params[chosen])}: {mean:.4f}")
    return found


@dataclass(frozen=True)
class Careful:
    """A `refit` that takes the winner only where that is worth more than the default, or than a simpler candidate.

    `careful` is one: it returns the number of the winner, unless the default (the candidate without parameters, as
    `default=True` adds it) reaches the winner's corrected score. It works in scikit-learn's own searches, too, which
    then have no `best_score_`.

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
        self._ranks(candidates)

    def _ranks(self, candidates: Sequence[Mapping[str, Any]]) -> list[list[tuple[int, float]]]:
        """Of each candidate and name: a number, None, no value, in this order."""
        for name in self.order:
            if not any(name.removeprefix("-") in params for params in candidates):
                raise UsageError(f"careful.simplest: no candidate has a parameter {name.removeprefix('-')!r}")
        return [[_rank(params, name) for name in self.order] for params in candidates]

    def __call__(self, results: Mapping[str, Any], repeats: int = 1, ratio: float | None = None) -> int:
        """The number of the candidate to refit, from `cv_results_`. For the rest see `winner_of`."""
        winner = winner_of(results, self.metric, repeats=repeats, ratio=ratio)
        if self.order:
            return min(winner.as_good, key=self._ranks(results["params"]).__getitem__)
        default = winner.default_candidate
        return default if default is not None and winner.default_will_do else winner.candidate


def _rank(params: Mapping[str, Any], order: str) -> tuple[int, float]:
    value = params.get(name := order.removeprefix("-"))
    if value is None:
        return 1 + (name not in params), 0.0
    if not isinstance(value, numbers.Real):
        raise UsageError(f"careful.simplest: {name}={value!r} is no number, so it has no order")
    return 0, float(value) if name == order else -float(value)


careful = Careful()
