"""The arguments that searches have beside scikit-learn's: in signatures and texts."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, cleandoc, signature
from numbers import Integral, Real
from typing import Any, TypeVar

from sklearn.utils._param_validation import Interval

T = TypeVar("T")

THEIRS = "scikit-learn's own text:"  # docs/conf.py leaves out what follows, as its marks lead to pages of scikit-learn
DOC = """{first} on the engine: the same line under python, mpirun and srun.

    The arguments and attributes are scikit-learn's; these arguments are added, and the attributes `plan_`: what the
    candidates share (of a halving search, those of the last iteration); and `winner_`: what the best one is
    worth, a `mpitune.figures.winner.Winner`, to be printed. The time of a fit is divided by the number of candidates
    that use it.

    Args:
        results: Folder that keeps the study, so that the same call continues it; None keeps nothing. A fit to other
            data, as in `cross_val_score`, has a folder data-DIGEST in it.
        workers: Worker processes of each node, by default one per core, `n_jobs` at most; 0 evaluates in this process,
            for a debugger. A search of few samples in one process without any of these arguments begins in this
            process, too, and so does a grid of SVC with `workers`. Workers do what is left after two CPU seconds:
            they start meanwhile.
        gpu: GPUs of each node ("0,1", "all") for estimators that compute there; by default none is used.
        trial_timeout: Seconds after which a fold's worker is killed; its score is `error_score`, and the rest goes on.
        share: Whether candidates share fits where the result is that of single fits, up to rounding (see
            `mpitune.sklearn.sharing`), and grids are solved as one (`mpitune.sklearn.fits.grids`).
        timeout: Seconds of `fit`, after which no fit begins any more. What was not evaluated is masked in
            `cv_results_`, whose column n_splits_evaluated says how much was; the refit is of the best candidate with
            all splits.
        default: Whether the estimator as it is, without parameters, is candidate 0; not for halving searches.
        race: The probability, such as 0.95, with which the winner of all folds is found by a race: after some folds
            candidates that would hardly win are left, which spares an eighth of the fits with 5 folds, a quarter with
            10. What the race did not want is masked, as with `timeout`. None evaluates all.
        changed: Functions and classes that were changed since the study began, by name, whose known results still
            count.

    Example:
        Seven values of k have one search of neighbours on each of five splits.

        >>> from sklearn.datasets import load_iris
        >>> from sklearn.neighbors import KNeighborsClassifier
        >>> from mpitune.sklearn import GridSearchCV
        >>> X, y = load_iris(return_X_y=True)
        >>> search = GridSearchCV(KNeighborsClassifier(), {{"n_neighbors": [1, 3, 5, 7, 9, 11, 13]}}, cv=5)
        >>> search.fit(X, y).best_params_
        {{'n_neighbors': 7}}
        >>> print(search.plan_)
        5 step fits instead of 35
            KNeighborsClassifier, one fit for n_neighbors 1, 3 ... 13 (7 values): 7 candidates
    """


# Of each its default, and what scikit-learn checks it by.
OWN_ARGUMENTS: dict[str, tuple[Any, list[Any]]] = {
    "results": (None, [str, os.PathLike, None]),
    "workers": (None, [Interval(Integral, 0, None, closed="left"), None]),
    "gpu": (None, [str, Interval(Integral, 0, None, closed="left"), None]),
    "trial_timeout": (None, [Interval(Real, 0, None, closed="neither"), None]),
    "changed": ((), [str, "array-like"]),
    "timeout": (None, [Interval(Real, 0, None, closed="neither"), None]),
    "share": (True, ["boolean"]),
    "default": (False, ["boolean"]),
    "race": (None, [Interval(Real, 0, 1, closed="neither"), None]),
}


def documented(kind: type[T]) -> type[T]:
    """A class with the added arguments beside those of its last base, scikit-learn's, and what is said of both."""
    parent: Any = kind.__bases__[-1]
    text = DOC.format(first=f"sklearn.model_selection.{parent.__name__}")
    kind.__doc__ = f"{cleandoc(text)}\n\n{THEIRS}\n\n{cleandoc(parent.__doc__ or '')}\n"
    setattr(kind, "__init__", _constructor(parent.__init__))  # noqa: B010 - of scikit-learn's class, as it is typed
    checks = {name: check for name, (_, check) in OWN_ARGUMENTS.items()}
    setattr(kind, "_parameter_constraints", {**parent._parameter_constraints, **checks})  # noqa: B010
    return kind


def _constructor(init: Callable[..., None]) -> Callable[..., None]:
    """The constructor of a class of scikit-learn, with the added arguments: in its signature, which `clone` reads."""

    @wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        for name, (default, _) in OWN_ARGUMENTS.items():
            setattr(self, name, kwargs.pop(name, default))
        init(self, *args, **kwargs)

    known = signature(init).parameters.values()
    added = [Parameter(name, Parameter.KEYWORD_ONLY, default=default) for name, (default, _) in OWN_ARGUMENTS.items()]
    __init__.__signature__ = Signature([*known, *added])  # type: ignore[attr-defined]
    return __init__
