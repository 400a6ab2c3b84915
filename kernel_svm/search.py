"""Every candidate of a search on every fold: candidates that differ in C alone are solved together, for all folds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import validate_parameter_constraints
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_X_y

from kernel_svm.functions import KernelFunction
from kernel_svm.solved import Data, KnownPart, TrainingSet, solve
from kernel_svm.svc import SVC, check_weights, dense
from kernel_svm.warm import warm_up


@dataclass(frozen=True)
class Fitted:
    """One candidate on one split.

    Attributes:
        candidate, split: their numbers.
        model: as after `fit` with the training samples, or None if there is an error. It knows the very array
            x_validation (float64), or both objects of `parts`: asked about them, it answers from the solver's matrices,
            and only from others does it compute kernels.
        error: what `fit` would have raised.
        seconds: the candidate's part of the time that solving took.
    """

    candidate: int
    split: int
    model: SVC | None
    error: Exception | None
    x_validation: Any
    seconds: float


def fit_grid(
    estimator: Any,
    candidates: Sequence[Mapping[str, Any]],
    X: Any,
    y: Any,
    splits: Sequence[tuple[np.ndarray, np.ndarray]],
    sample_weight: np.ndarray | None = None,
    parts: Sequence[tuple[Any, Any]] | None = None,
    memory: int | None = None,
) -> Iterator[Fitted]:
    """Fit every candidate on the training part of every split.

    Args:
        estimator: an unfitted SVC, scikit-learn's or this package's, with the parameters that no candidate sets.
        candidates: parameters of the SVC, as `set_params` takes them.
        X: samples (n, n_features), or their kernel matrix (n, n) for the precomputed kernel.
        y: labels (n,), of any kind.
        splits: per split, indices of training and of validation samples.
        sample_weight: (n,), as for `SVC.fit`.
        parts: for each split its training and validation samples, as the objects that will be passed to the models,
            such as data frames. Without them, arrays are made here.
        memory: bytes that may be used; half of what is free if not given.

    Yields:
        One `Fitted` per candidate and split, in no promised order. The candidates of one kernel function come together.
        A fit that reaches its limit of iterations warns, as `fit` does, and its model's ``fit_status_`` is 1. Where
        that is the solver's own limit (``max_iter=-1``), the model is of no use, and larger C are not tried.

    Raises:
        ValueError: for samples or labels that no candidate could be fitted to.
        MemoryError: says what is needed where the matrix of the two largest classes does not fit.
    """
    warm_up()
    x, y = check_X_y(dense(X), y, dtype=np.float64, order="C")
    check_classification_targets(y)
    weights = np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight, np.float64)
    folds = [_Fold(x, y, weights, train, validation) for train, validation in splits]
    for fold, own in zip(folds, parts or (), strict=parts is not None):
        fold.parts = own
    groups: dict[Any, list[tuple[int, SVC]]] = {}
    model_of = _Models(estimator)
    for number, candidate in enumerate(candidates):
        model = model_of(candidate)
        if isinstance(model, Exception):
            for split, fold in enumerate(folds):
                yield fold.failed(number, split, model)
        else:
            groups.setdefault(_shared(model), []).append((number, model))
    left_out = np.zeros(len(y), np.int64)  # in which fold
    for number, fold in enumerate(folds):
        left_out[fold.validation] = number
    work = _Work(x, np.unique(y, return_inverse=True), memory, left_out)
    for models in groups.values():
        yield from _group(work, models, folds)


class _Models:
    """Unfitted models of candidates. Values that candidates share are checked once, as that takes a millisecond."""

    def __init__(self, estimator: Any) -> None:
        self._estimator = clone(estimator)
        self._given = self._estimator.get_params()
        self._checked: dict[frozenset[str], Exception | None] = {}  # the rest of the values, by names of a candidate's

    def __call__(self, candidate: Mapping[str, Any]) -> SVC | Exception:
        """The model, or what is wrong with its parameters."""
        own, names = clone_all(candidate), frozenset(candidate)
        if names not in self._checked:
            self._checked[names] = self._wrong({name: v for name, v in self._given.items() if name not in names})
        wrong = self._checked[names] or self._wrong(own)
        return wrong or SVC(**{**self._given, **own})

    def _wrong(self, values: Mapping[str, Any]) -> Exception | None:
        try:
            if unknown := values.keys() - self._given.keys():
                self._estimator.set_params(**{name: values[name] for name in sorted(unknown)})
            validate_parameter_constraints(SVC._parameter_constraints, dict(values), caller_name="SVC")
            if callable(values.get("kernel")):
                raise ValueError("a kernel that is a Python function is not solved as a grid")
        except (TypeError, ValueError) as error:
            return error
        return None


def clone_all(candidate: Mapping[str, Any]) -> dict[str, Any]:
    """A candidate's parameters, each as scikit-learn's search copies it."""
    return {name: clone(value, safe=False) for name, value in candidate.items()}


def _shared(model: SVC) -> tuple[Any, ...]:
    """Properties that models must share to be solved together."""
    chance = repr(model.random_state) if model._wants_probability else None
    gamma = model.gamma if model.kernel in ("rbf", "poly", "sigmoid") else 0.0
    function = KernelFunction.of(model.kernel, 1.0, model.degree, model.coef0)
    return (function, gamma, repr(model.class_weight), model.tol, model.max_iter, model._wants_probability, chance)


class _Fold:
    """One split: its samples, and what scikit-learn computes from a training set."""

    def __init__(
        self, x: np.ndarray, y: np.ndarray, weights: np.ndarray, train: np.ndarray, validation: np.ndarray
    ) -> None:
        self.x, self.y, self.weights = x, y, weights
        self.train, self.validation = (
            np.flatnonzero(part) if np.asarray(part).dtype == bool else np.asarray(part) for part in (train, validation)
        )
        self.parts: tuple[Any, Any] | None = None
        self.variance: float | None = None
        self.trainings: dict[Any, tuple[TrainingSet, dict[str, Any]]] = {}

    def samples(self, part: np.ndarray, pairwise: bool) -> np.ndarray:
        return self.x[np.ix_(part, self.train)] if pairwise else self.x[part]

    def known(self, pairwise: bool) -> tuple[Any, Any]:
        """Training samples, if they were given, and validation samples, as the models are asked about them."""
        if self.parts is None:
            self.parts = None, self.samples(self.validation, pairwise)
        return self.parts

    def gamma(self, model: SVC) -> float:
        if model.kernel == "precomputed":
            return 0.0
        if model.gamma == "scale":
            if self.variance is None:
                self.variance = float(self.x[self.train].var())
            return 1.0 / (self.x.shape[1] * self.variance) if self.variance else 1.0
        return 1.0 / self.x.shape[1] if model.gamma == "auto" else float(model.gamma)

    def failed(self, candidate: int, split: int, error: Exception) -> Fitted:
        return Fitted(candidate, split, None, error, None, 0.0)


class _Work:
    """The samples as the solver has them, sorted once for all kernels that can use it."""

    def __init__(
        self, x: np.ndarray, coded: tuple[np.ndarray, np.ndarray], memory: int | None, left_out: np.ndarray
    ) -> None:
        self.x, (self.classes, self.labels), self.memory, self.left_out = x, coded, memory, left_out
        self._data: dict[bool, Data] = {}

    def data(self, kernel: str) -> Data:
        rbf = kernel == "rbf"
        if rbf not in self._data:
            self._data[rbf] = Data(self.x, self.labels, kernel, self.memory, self.left_out)
        return self._data[rbf]


def _group(work: _Work, models: Sequence[tuple[int, SVC]], folds: Sequence[_Fold]) -> Iterator[Fitted]:
    """Candidates that differ in C alone, on all folds."""
    first = models[0][1]
    together: dict[KernelFunction, list[tuple[int, TrainingSet, dict[str, Any]]]] = {}
    for split, fold in enumerate(folds):
        gamma = fold.gamma(first)
        try:
            training, facts = _training(work, fold, first)
        except ValueError as error:
            for number, _ in models:
                yield fold.failed(number, split, error)
            continue
        function = KernelFunction.of(first.kernel, gamma, first.degree, first.coef0)
        together.setdefault(function, []).append((split, training, {**facts, "_gamma": gamma}))
    penalties = np.unique([float(model.C) for _, model in models])
    for function, ready in together.items():
        begin = time.perf_counter()
        seeds = [check_random_state(first.random_state).randint(np.iinfo("i").max) for _ in ready]
        trainings = [training for _, training, _ in ready]
        solved = solve(
            work.data(first.kernel), function, penalties, trainings, first.tol, first.max_iter,
            seeds if first._wants_probability else None, give_up=first.max_iter == -1,
        )  # fmt: skip
        seconds = (time.perf_counter() - begin) / len(solved) / len(models)
        order = np.searchsorted(penalties, [float(model.C) for _, model in models]).tolist()
        for (split, _, facts), found in zip(ready, solved, strict=True):
            fold, pairwise = folds[split], first.kernel == "precomputed"
            x_train, x_validation = fold.known(pairwise)
            known = [(x_validation, KnownPart(found, fold.validation))]
            if x_train is not None:
                known.append((x_train, KnownPart(found, fold.train)))
            later = partial(fold.samples, fold.train, pairwise)
            for c, (number, unfitted) in zip(order, models, strict=True):
                model = SVC._of(unfitted, found, c, {**facts, "_known": (c, known)}, later)
                model._warn_from_fit_status()
                yield Fitted(number, split, model, None, x_validation, seconds)


def _training(work: _Work, fold: _Fold, model: SVC) -> tuple[TrainingSet, dict[str, Any]]:
    """The weighted training set of a fold, and attributes of models fitted to it. Raises what `fit` would."""
    key = repr(model.class_weight), model.kernel == "precomputed", model._wants_probability
    if key not in fold.trainings:
        fold.trainings[key] = _weighted(work, fold, model)
    return fold.trainings[key]


def _weighted(work: _Work, fold: _Fold, model: SVC) -> tuple[TrainingSet, dict[str, Any]]:
    labels = work.labels[fold.train]
    classes, coded = np.unique(labels, return_inverse=True)
    names = work.classes[classes]
    class_weight = compute_class_weight(model.class_weight, classes=names, y=fold.y[fold.train])
    if len(classes) < 2:
        raise ValueError(f"The number of classes has to be greater than one; got {len(classes)} class")
    weights = fold.weights[fold.train]
    check_weights(weights, labels)
    pairwise = model.kernel == "precomputed"
    n_features = len(fold.train) if pairwise else fold.x.shape[1]
    facts = {
        "classes_": names,
        "class_weight_": class_weight,
        "n_features_in_": n_features,
        "shape_fit_": (len(fold.train), n_features),
        "_effective_probability": model._wants_probability,
    }
    return TrainingSet(fold.train, weights * class_weight[coded]), facts
