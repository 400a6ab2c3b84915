"""The joblib backend to which scikit-learn's `fit` gives the tasks of a search, one for each candidate and fold.

scikit-learn's callbacks (since version 1.9) stay in this process, which tells those of the search when a fit has ended.
Callbacks that hear of what a fit does would have to be in the workers: there scikit-learn makes all fits by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sklearn.base import BaseEstimator

from mpitune.processes.collecting import Collecting, Done
from mpitune.sklearn.fits.task import Task

_CLONE = "__sklearn_clone__"  # what `clone` calls in place of copying


class SearchBackend(Collecting):
    """Has all tasks of a search evaluated together.

    A splitter may call joblib before the search does: such calls are made here, one after the other.

    Args:
        evaluate: returns the results of the tasks, in their order.
    """

    supports_sharedmem = True  # so a user's `require="sharedmem"` is not answered with threads

    def __init__(self, evaluate: Callable[[list[Task]], Sequence[Any]]):
        super().__init__()
        self._evaluate = evaluate

    def effective_n_jobs(self, n_jobs: int) -> int:
        """More than one, since joblib itself makes the calls where there is one job."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        return 2

    def make(self, calls: Sequence[tuple[Any, Done]]) -> None:
        fits = [call for func, _ in calls for call in func.items]
        if all("candidate_progress" in kwargs for _, _, kwargs in fits):
            # One copy of the estimator is enough for all. No task prints by itself, see `cv_line`.
            getattr(fits[0][1][0], "__dict__", {}).pop(_CLONE, None)
            tasks = [Task(fits[0][1][0], args[1:], {**kwargs, "verbose": 0}) for _, args, kwargs in fits]
            results = [[result] for result in self._evaluate(tasks)]
        else:
            results = [func() for func, _ in calls]
        for (_, callback), result in zip(calls, results, strict=True):
            callback(result)


@contextmanager
def copied_once(estimator: Any) -> Iterator[None]:
    """Let scikit-learn give tasks this estimator, its own copy: to copy it for each takes a quarter of a small search.

    Once the backend has the tasks, it copies the estimator as any other.
    """
    own = getattr(estimator, "__dict__", {})
    own[_CLONE] = lambda: estimator
    try:
        yield
    finally:
        own.pop(_CLONE, None)


def hear_of_what_fits_do(search: BaseEstimator) -> bool:
    """Whether callbacks do: those of estimators, and others than a progress bar that searches hand on to these."""
    handed_on = [
        callback
        for callback in getattr(search, "_skl_callbacks", ())
        if getattr(callback, "max_propagation_depth", 0) != 0 and type(callback).__name__ != "ProgressBar"
    ]
    grid = getattr(search, "param_grid", getattr(search, "param_distributions", {}))
    lists = [values for part in (grid if isinstance(grid, list | tuple) else [grid]) for values in part.values()]
    searched = [value for values in lists if isinstance(values, list | tuple) for value in values]  # not of a range
    whole = [one for one in (search.estimator, *searched) if isinstance(one, BaseEstimator)]
    parts = [part for one in whole for part in (one, *one.get_params(deep=True).values())]
    return any(getattr(part, "_skl_callbacks", ()) or (handed_on and hasattr(part, "set_callbacks")) for part in parts)
