"""`python -m mpitune --sklearn script.py`: what its names of scikit-learn mean, and a record of their use."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
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
# Names of scikit-learn that one may expect to be replaced, and why they are not.
OTHERS = {
    **dict.fromkeys(
        ("cross_val_score", "cross_validate", "cross_val_predict", "learning_curve", "validation_curve"),
        "one set of parameters is no search; an SVC in it is replaced",
    ),
    **dict.fromkeys(("NuSVC", "SVR", "NuSVR", "OneClassSVM"), "the solver has the problem of SVC only"),
    **dict.fromkeys(("LinearSVC", "LinearSVR"), "it has no kernel"),
}


@contextmanager
def replaced(code: CodeType, quiet: bool) -> Iterator[None]:
    """While the script of this code runs the names mean this package's; afterwards stderr says what was replaced."""
    record = _Record()
    try:
        yield
    finally:
        if not quiet:
            with outliving():
                record.report(code)


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

    def report(self, code: CodeType) -> None:
        """Say on stderr which names were replaced, or not, in the script that was compiled to `code`."""
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
        names = set(_names(code))
        lines += [f"{name} is scikit-learn's: {reason}" for name, reason in OTHERS.items() if name in names]
        for line in lines:
            print(f"mpitune: {line}", file=sys.stderr)


def _names(code: CodeType) -> Iterator[str]:
    """Names that some compiled code uses or imports."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
