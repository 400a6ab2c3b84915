"""`python -m mpitune --sklearn script.py`: what its names of scikit-learn mean, and a record of their use."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sklearn.model_selection
import sklearn.svm
from sklearn.model_selection import _search, _search_successive_halving

import mpitune.sklearn
from mpitune import svm
from mpitune.processes.output import outliving
from mpitune.sklearn import searches
from mpitune.sklearn.where import SHARED

SEARCHES = {
    "GridSearchCV": _search,
    "RandomizedSearchCV": _search,
    "HalvingGridSearchCV": _search_successive_halving,
    "HalvingRandomSearchCV": _search_successive_halving,
}


@contextmanager
def replaced(quiet: bool) -> Iterator[None]:
    """While a script runs the names mean this package's; afterwards stderr says what was replaced."""
    record = _Record()
    try:
        yield
    finally:
        if not quiet:
            with outliving():
                record.report()


class _Record:
    """Replaces the names when it is made, and counts their uses."""

    def __init__(self) -> None:
        self._fits: Counter[tuple[str, str | None]] = Counter()  # by search and why they were no part of a grid
        self._svc = 0
        for name, home in SEARCHES.items():
            ours = getattr(mpitune.sklearn, name)
            setattr(sklearn.model_selection, name, ours)
            setattr(home, name, ours)
        sklearn.svm.SVC = svm.SVC
        searches.watchers.append(self._searched)
        fit = svm.SVC.fit

        @functools.wraps(fit)
        def counted(model: svm.SVC, *args: Any, **kwargs: Any) -> svm.SVC:
            self._svc += 1
            return fit(model, *args, **kwargs)

        setattr(svm.SVC, "fit", counted)  # noqa: B010 - a type checker would not see it as an attribute

    def _searched(self, search: searches.OnEngine, reasons: Counter[str | None]) -> None:
        name = type(search).__name__
        for reason, number in reasons.items():
            self._fits[name, reason] += number

    def report(self) -> None:
        """Say on stderr what was replaced."""
        lines = []
        for (name, reason), number in self._fits.items():
            if reason is None:
                how = "by the shared SVM solver"
            elif reason == SHARED:
                how = "that share fits with other candidates, on all devices"
            else:
                how = f"evaluated one by one on all devices: {reason}"
            lines.append(f"{name}: {number} fits {how}")
        if self._svc:
            lines.append(f"SVC: {self._svc} single fits by the same solver")
        if not lines:
            lines.append("nothing was replaced: the script made no search and fitted no SVC")
        for line in lines:
            print(f"mpitune: {line}", file=sys.stderr)
