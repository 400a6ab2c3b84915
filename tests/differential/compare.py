"""What differs between two runs of a search, and which differences have an explanation in the documentation."""

from __future__ import annotations

import dataclasses
import functools
import random
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import sklearn.model_selection as theirs
from sklearn.model_selection import check_cv

from tests.differential.case import Case
from tests.differential.ways import Result, classes, reference, silence

RTOL, ATOL = 1e-7, 1e-9  # of scores
PREDICTIONS = 1e-6  # of what a refitted model says, relative to the largest of it
REPEATS = 20  # of a search by scikit-learn that is looked at for scores that change
TOLERANCES = (1e-4, 1e-5, 1e-6, 1e-8, 1e-12)  # of SVC, beside that of 1e-3
LABELS = 2  # of a split, that two solutions within the tolerance of SVC may decide otherwise
ATTRIBUTES = (
    "best_estimator_", "best_params_", "best_score_", "best_index_", "n_splits_", "scorer_", "multimetric_",
    "refit_time_",
    "n_features_in_", "feature_names_in_", "classes_", "n_resources_", "n_candidates_", "n_iterations_",
)  # fmt: skip
METHODS = ("predict", "predict_proba", "decision_function")


@dataclass(frozen=True)
class Difference:
    """One thing that differs.

    Attributes:
        kind: "error", "attribute", "columns", "params", "score", "rank", "best" or "refit".
        where: a column, an attribute, a method.
        right, ours: the two values.
        rows: of `cv_results_`, where the kind is "score" or "rank".
    """

    kind: str
    where: str
    right: Any = None
    ours: Any = None
    rows: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.rows:
            row, n = self.rows[0], len(self.rows)
            return f"{self.where} of {n} candidates, first {row}: {self.right[row]} right, {self.ours[row]} ours"
        return f"{self.kind} {self.where}: {_short(self.right)} right, {_short(self.ours)} ours"


def differences(case: Case, right: Result, ours: Result) -> list[Difference]:
    """All that differs, the cause of the others first."""
    if right.error is not None or ours.error is not None:
        return _errors(right.error, ours.error, texts="raise" not in case.options.get("error_score", ""))
    a, b = right.search, ours.search
    found = [
        Difference("attribute", name, hasattr(a, name), hasattr(b, name))
        for name in ATTRIBUTES
        if hasattr(a, name) != hasattr(b, name)
    ]
    found += _tables(a.cv_results_, b.cv_results_)
    if found and found[-1].kind in ("columns", "params"):
        return found
    for name in ("n_splits_", "multimetric_", "best_index_", "best_params_", "best_score_"):
        u, v = getattr(a, name, None), getattr(b, name, None)
        if not (_close(u, v) if name == "best_score_" else _text(u) == _text(v)):
            found.append(Difference("best" if name.startswith("best") else "attribute", name, u, v))
    if hasattr(a, "best_estimator_") and hasattr(b, "best_estimator_") and a.best_index_ == b.best_index_:
        found += _refits(a, b, right.names["X"], ours.names["X"])
    return found


def _errors(right: Exception | None, ours: Exception | None, texts: bool) -> list[Difference]:
    """Where any candidate's error is raised, which one comes first is not determined: then only types are compared."""
    said = ["fits" if error is None else f"{type(error).__name__}: {_line(error)}" for error in (right, ours)]
    # NumPy says in which array an index is wrong, and there are several.
    same = type(right) is type(ours) and (not texts or type(right) is IndexError)
    return [] if same or said[0] == said[1] else [Difference("error", "fit", *said)]


def _line(error: Exception) -> str:
    """The first line of its text, without what differs from run to run."""
    return re.sub(r"\s+", " ", re.sub(r" at 0x[0-9A-Fa-f]+", "", str(error)).strip().split("\n")[0])[:200]


def _tables(right: Mapping[str, Any], ours: Mapping[str, Any]) -> list[Difference]:
    names = [set(right), set(ours)]
    if names[0] != names[1]:
        return [Difference("columns", "cv_results_", sorted(names[0] - names[1]), sorted(names[1] - names[0]))]
    if _text(right["params"]) != _text(ours["params"]):
        return [Difference("params", "cv_results_", right["params"], ours["params"])]
    found = []
    for name in right:
        u, v = right[name], ours[name]
        if name.startswith("param_"):
            if _text(u) != _text(v):
                found.append(Difference("columns", name, u, v))
        elif not name.endswith("_time") and name != "params":
            same = u == v if name.startswith("rank_") else np.isclose(u, v, rtol=RTOL, atol=ATOL, equal_nan=True)
            if not np.all(same):
                kind = "rank" if name.startswith("rank_") else "score"
                found.append(Difference(kind, name, u, v, tuple(int(row) for row in np.flatnonzero(~np.asarray(same)))))
    return found


def _refits(a: Any, b: Any, X: Any, own: Any) -> list[Difference]:
    """The refitted models of the same candidate, each asked about the very object it was fitted to.

    scikit-learn computes kernels of an object with itself in another way than those of equal ones.
    """
    found = []
    if type(a.best_estimator_).__name__ != type(b.best_estimator_).__name__:
        found.append(Difference("refit", "class", type(a.best_estimator_), type(b.best_estimator_)))
    for method in METHODS:
        said = []
        for model, samples in ((a.best_estimator_, X), (b.best_estimator_, own)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    said.append(np.asarray(getattr(model, method)(samples)))
                except Exception as error:
                    said.append(type(error).__name__)
        if not _same(*said):
            found.append(Difference("refit", method, *said))
    return found


def _same(right: Any, ours: Any) -> bool:
    if isinstance(right, str) or isinstance(ours, str):
        return bool(np.all(right == ours)) and type(right) is type(ours)
    if right.shape != ours.shape or right.dtype != ours.dtype:
        return False
    if right.dtype.kind != "f":
        return bool(np.array_equal(right, ours))
    size = np.nanmax(np.abs(right), initial=0.0)
    return bool(np.allclose(right, ours, rtol=PREDICTIONS, atol=PREDICTIONS * size, equal_nan=True))


def _close(u: Any, v: Any) -> bool:
    if isinstance(u, str) or isinstance(v, str) or u is None or v is None:
        return u is v or bool(np.all(u == v))
    return bool(np.isclose(u, v, rtol=RTOL, atol=ATOL, equal_nan=True))


def _text(thing: Any) -> str:
    """Of parameters; a callable or a generator is known by its kind."""
    return re.sub(r" at 0x[0-9A-Fa-f]+", "", repr(thing))


def _short(value: Any) -> str:
    text = re.sub(r"\s+", " ", str(value))
    return text if len(text) < 200 else text[:200] + "..."


# What the documentation allows. Nothing else is forgiven.


def explained(case: Case, found: Difference, right: Result, ours: Result) -> str | None:
    """The explanation of a difference, None where it has none."""
    return next((words for words, allows in EXPLANATIONS.items() if allows(case, found, right, ours)), None)


def _ties(case: Case, found: Difference, right: Result, ours: Result) -> bool:
    """1. Two candidates whose mean scores agree to rounding may change places."""
    if found.kind not in ("rank", "best", "params"):
        return False
    return _order(case, found, right, ours, lambda means: RTOL * np.abs(means) + ATOL)


def _labels(case: Case, found: Difference, right: Result, ours: Result) -> bool:
    """2. A grid of SVC is solved to a tolerance, so 2 labels of a split may be others; see docs/sklearn.md."""
    return svc(case) and _within(case, found, right, ours)


def _equal_samples(case: Case, found: Difference, right: Result, ours: Result) -> bool:
    """2. Samples that are equal have one label: scikit-learn's own search says what ours does, at another `tol`.

    Of a refit the samples are seen: those whose labels change have few decision values.
    """
    if not svc(case):
        return False
    if (found.kind, found.where) == ("refit", "predict") and hasattr(right.search, "decision_function"):
        changed = np.ravel(found.right) != np.ravel(found.ours)
        values = np.reshape(right.search.decision_function(right.names["X"]), (len(changed), -1))
        return len(np.unique(values[changed].round(2), axis=0)) <= LABELS
    if "tol=" in repr(case):
        return False
    for tol in TOLERANCES:
        at = functools.partial(re.sub, r"\bSVC\(", f"SVC(tol={tol}, ")
        grids = tuple({name: tuple(map(at, values)) for name, values in grid.items()} for grid in case.grids)
        other = reference(dataclasses.replace(case, model=at(case.model), grids=grids))
        if all((of.kind, of.where) != (found.kind, found.where) for of in differences(case, other, ours)):
            return True
    return False


def _within(case: Case, found: Difference, right: Result, ours: Result) -> bool:
    """Whether a difference is within what solutions to a tolerance may decide."""
    if found.kind in ("rank", "best", "params"):
        worth = max(worth_of_labels(case, _samples(right, 0)))
        return _order(case, found, right, ours, lambda means: np.full(len(means), worth))
    if found.kind == "score":
        if found.where.startswith("std_"):
            return True  # the scores of its splits are looked at themselves
        number = re.match(r"split(\d+)_", found.where)
        for row in found.rows:
            worth = worth_of_labels(case, _samples(right, row))
            most = worth[int(number[1])] if number and int(number[1]) < len(worth) else max(worth)
            if not abs(found.right[row] - found.ours[row]) <= most + 1e-9:  # nor where one is NaN
                return False
        return True
    if found.kind == "refit":
        if _nested_choice(case, right, ours):
            return True
        if isinstance(found.right, str) or isinstance(found.ours, str) or found.where == "class":
            return False
        if found.where == "predict":
            return int((np.ravel(found.right) != np.ravel(found.ours)).sum()) <= LABELS
        apart = np.abs(found.right - found.ours) > 0.02 * max(1.0, float(np.abs(found.right).max()))
        # With more than two classes a pair's decision near 0 is a vote, which decision_function counts as 1.
        votes = LABELS if found.where == "decision_function" and apart.ndim == 2 else 0
        return int(apart.reshape(len(apart), -1).any(axis=1).sum()) <= votes
    return False


def _first_error(case: Case, found: Difference, right: Result, ours: Result) -> bool:
    """4. Where an error is raised, it is that of any fit: scikit-learn is asked for all of them."""
    if found.kind != "error" or "raise" not in case.options.get("error_score", "") or right.error is None:
        return False
    said: list[Any] = []
    with warnings.catch_warnings(record=True) as seen, silence():
        warnings.simplefilter("always")
        with_nan = dataclasses.replace(case, options={**case.options, "error_score": "np.nan"})
        names = with_nan.made(classes(theirs), {})
        try:
            eval(f"search.fit({case.fit})", names)
        except ValueError as error:  # all fits have failed
            said.append(error)
    said += [warning.message for warning in seen]
    return any(str(found.ours) in re.sub(r"\s+", " ", str(text)) for text in said)


def _unsteady(case: Case, found: Difference, right: Result, ours: Result) -> bool:
    """5. Scores that scikit-learn does not repeat: noise over noise, which depends on where arrays lie in memory."""
    draw, elsewhere = random.Random(case.seed), []
    for _ in range(REPEATS):
        elsewhere.append(bytearray(draw.randrange(1, 4000)))
        if differences(case, right, reference(case)):
            return True
    return False


def _nested_choice(case: Case, right: Result, ours: Result) -> bool:
    """Whether the refitted models are searches that chose among candidates that such labels part."""
    a, b = right.search.best_estimator_, ours.search.best_estimator_
    if getattr(a, "best_index_", 0) == getattr(b, "best_index_", 0):
        return False
    means = a.cv_results_["mean_test_score"]
    labels = np.asarray(case.made(classes(theirs), {})["y"]).size / a.n_splits_  # of a split
    return bool(abs(means[a.best_index_] - means[b.best_index_]) <= LABELS / labels)


EXPLANATIONS: dict[str, Callable[[Case, Difference, Result, Result], bool]] = {
    "1: mean scores that agree to rounding change places": _ties,
    "2: labels that the tolerance of SVC decides": _labels,
    "2: labels of equal samples that the tolerance of SVC decides": _equal_samples,
    "4: the error of another fit is raised": _first_error,
    "5: scikit-learn does not repeat its own scores": _unsteady,
}


def svc(case: Case) -> bool:
    """Whether a grid of SVC may be solved by `mpitune.svm`."""
    texts = [case.model, *(value for grid in case.grids for values in grid.values() for value in values)]
    nested = any("SearchCV(" in text for text in texts)  # a search in a search has arguments of its own
    return (nested or case.ours.get("share") != "False") and any(re.search(r"\bSVC\(", text) for text in texts)


def _samples(right: Result, row: int) -> int | None:
    """How many samples the candidate of a row had in its iteration of a halving search; None: all."""
    halves = getattr(right.search, "resource", None) == "n_samples"
    return int(right.search.cv_results_["n_resources"][row]) if halves else None


def worth_of_labels(case: Case, n_samples: int | None) -> list[float]:
    """By how much the score of each split of so many samples may change if `LABELS` of its labels are others."""
    names = case.made(classes(theirs), {})
    search, y = names["search"], np.asarray(names["y"])
    y = y if y.ndim == 2 and y.shape[1] > 1 else np.ravel(y)  # of several outputs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = list(check_cv(search.cv, y, classifier=True).split(names["X"], y, names.get("groups")))
    scoring = case.options.get("scoring", "'accuracy'")
    worth = []
    for _, test in parts:
        labels = y[np.asarray(test)]
        if n_samples is not None:
            labels = labels[: -(-len(labels) * n_samples // len(y))]
        labels = np.ravel(labels)
        rarest = min(np.unique(labels, return_counts=True)[1], default=1)
        if scoring == "'accuracy'" or scoring.startswith("lambda m, X, y: float"):
            worth.append(LABELS / max(len(labels), 1))
        elif "log_loss" in scoring or "brier" in scoring:
            worth.append(0.05)
        elif "'b': float(len" in scoring:
            worth.append(float(LABELS))
        else:
            worth.append(2 * LABELS / int(rarest))
    return worth or [0.0]


def _order(
    case: Case, found: Difference, right: Result, ours: Result, within: Callable[[np.ndarray], np.ndarray]
) -> bool:
    """Whether an order differs among candidates only whose mean scores are that close."""
    a, b = right.search, ours.search
    name = found.where.replace("rank_", "mean_") if found.kind == "rank" else None
    metric = a.refit if a.multimetric_ and isinstance(a.refit, str) else "score"
    name = name or f"mean_test_{metric}"
    if name not in a.cv_results_:
        return False
    means = np.asarray(a.cv_results_[name], dtype=float)
    near = within(means)
    if found.kind == "params":
        return case.search.startswith("Halving") and _selected(a, b, means, near)
    if found.kind == "rank":
        low = np.array([1 + (means > mean + d).sum() for mean, d in zip(means, near, strict=True)])
        high = np.array([(means >= mean - d).sum() for mean, d in zip(means, near, strict=True)])
        return bool(np.all((low <= found.ours) & (found.ours <= high) | np.isnan(means)))
    i, j = a.best_index_, b.best_index_
    return bool(abs(means[i] - means[j]) <= near[i]) if i != j else abs(a.best_score_ - b.best_score_) <= near[i]


def _selected(a: Any, b: Any, means: np.ndarray, near: np.ndarray) -> bool:
    """Whether a halving search went on with other candidates only where their scores are that close."""
    rows = [
        [(_text(p), int(i)) for p, i in zip(s.cv_results_["params"], s.cv_results_["iter"], strict=True)]
        for s in (a, b)
    ]
    for number in sorted({i for _, i in rows[0]}):
        kept = [{text for text, i in part if i == number} for part in rows]
        if kept[0] != kept[1]:
            places = {text: place for place, (text, i) in enumerate(rows[0]) if i == number - 1}
            other = [places[text] for text in kept[0] ^ kept[1] if text in places]
            return bool(other) and np.ptp(means[other]) <= near[other].max()
    return True  # the same ones, in another order
