"""The joblib backend to which scikit-learn's `fit` gives the tasks of a search, one for each candidate and fold.

scikit-learn's callbacks (since version 1.9) stay in this process, which tells those of the search when a fit has ended.
Callbacks that hear of what a fit does would have to be in the workers: there scikit-learn makes all fits by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from joblib.parallel import ParallelBackendBase
from sklearn.base import BaseEstimator

from mpitune.sklearn.fits.task import Task


class SearchBackend(ParallelBackendBase):
    """Collects all tasks of a search, and has them evaluated together.

    A splitter may call joblib before the search does: such calls are made here, one after the other.

    Args:
        evaluate: returns the results of the tasks, in their order.
    """

    supports_retrieve_callback = True
    supports_sharedmem = True  # so a user's `require="sharedmem"` is not answered with threads

    def __init__(self, evaluate: Callable[[list[Task]], Sequence[Any]]):
        super().__init__()
        self._evaluate = evaluate
        self._submitted: list[tuple[Any, Callable[[Any], None]]] = []

    def effective_n_jobs(self, n_jobs: int) -> int:
        """More than one, since joblib itself makes the calls where there is one job."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        return 2

    def configure(self, n_jobs: int = 1, parallel: Any = None, **options: Any) -> int:
        parallel.pre_dispatch = "all"  # whatever the search has: it limits the memory of joblib's own queue
        return self.effective_n_jobs(n_jobs)

    def submit(self, func: Any, callback: Callable[[Any], None]) -> None:
        self._submitted.append((func, callback))

    def retrieve_result_callback(self, out: Any) -> Any:
        return out

    @contextmanager
    def retrieval_context(self) -> Iterator[None]:
        """Joblib enters it once, when all calls were submitted."""
        submitted, self._submitted = self._submitted, []
        calls = [call for func, _ in submitted for call in func.items]
        if all("candidate_progress" in kwargs for _, _, kwargs in calls):
            # One copy of the estimator is enough for all. No task prints by itself, see `cv_line`.
            first = calls[0][1][0] if calls else None
            tasks = [Task(first, args[1:], {**kwargs, "verbose": 0}) for _, args, kwargs in calls]
            results = [[result] for result in self._evaluate(tasks)] if calls else []
        else:
            results = [func() for func, _ in submitted]
        for (_, callback), result in zip(submitted, results, strict=True):
            callback(result)
        yield


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
    parts = [part for one in (search.estimator, *searched) if isinstance(one, BaseEstimator) for part in _parts(one)]
    return any(getattr(part, "_skl_callbacks", ()) or (handed_on and hasattr(part, "set_callbacks")) for part in parts)


def _parts(estimator: BaseEstimator) -> list[Any]:
    return [estimator, *estimator.get_params(deep=True).values()]
