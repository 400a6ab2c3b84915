"""Every candidate of a search on every fold: candidates that differ in C alone are solved together, for all folds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.base import clone
from sklearn.svm import SVC as ScikitSVC  # now, as `mpitune --sklearn` gives the name another meaning
from sklearn.utils._param_validation import validate_parameter_constraints
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _get_feature_names, check_X_y

from mpitune.svm import libsvm
from mpitune.svm.compiling import warm_up
from mpitune.svm.data import Data, TrainingSet
from mpitune.svm.kernel.functions import KernelFunction
from mpitune.svm.solved import KnownPart, solve
from mpitune.svm.svc import SVC


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
    model: ScikitSVC | None
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
    kept: dict[str, Any] | None = None,
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
        kept: what calls with the very same X, y, splits and weights have in common; empty before the first.

    Yields:
        One `Fitted` per candidate and split, in no promised order. The candidates of one kernel function come together.
        What `libsvm` lists as whole fits, and splits whose training samples repeat, are scikit-learn's, one by one. A
        fit that reaches its limit of iterations warns, as `fit` does, and its model's ``fit_status_`` is 1. Where that
        is the solver's own limit (``max_iter=-1``), the model is of no use, and larger C are not tried.

    Raises:
        ValueError: for samples or labels that no candidate could be fitted to.
        MemoryError: says what is needed where the matrix of the two largest classes does not fit.
    """
    warm_up()
    work, folds = _prepared(X, y, splits, sample_weight, memory, {} if kept is None else kept)
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
    for models in groups.values():
        yield from _group(work, models, folds)


def _prepared(
    X: Any, y: Any, splits: Sequence[tuple[np.ndarray, np.ndarray]], sample_weight: Any, memory: int | None, kept: Any
) -> tuple[_Work, list[_Fold]]:
    """Samples and splits, checked and sorted, as they are kept where they are the same."""
    inputs = X, y, sample_weight
    same = kept and all(one is other for one, other in zip(inputs, kept["inputs"], strict=True))
    if same and len(splits) == len(kept["splits"]) and all(map(np.array_equal, chain(*splits), chain(*kept["splits"]))):
        return kept["work"], kept["folds"]
    facts = {} if (names := _get_feature_names(X)) is None else {"feature_names_in_": names}
    x, y = check_X_y(X, y, dtype=np.float64, order="C", accept_sparse="csr")
    check_classification_targets(y)
    weights = None if sample_weight is None else np.asarray(sample_weight, np.float64)
    work = _Work(x, y, weights, memory, facts)
    folds = [_Fold(work, train, validation) for train, validation in splits]
    for number, fold in enumerate(folds):
        work.left_out[fold.validation] = number
    kept.update(inputs=inputs, splits=splits, work=work, folds=folds)
    return work, folds


class _Models:
    """Unfitted models of candidates. Values that candidates share are checked once, as that takes a millisecond."""

    def __init__(self, estimator: Any) -> None:
        self._estimator, self._params = estimator, estimator.get_params()
        self._checked: dict[frozenset[str], Exception | None] = {}  # the rest of the values, by names of a candidate's

    def __call__(self, candidate: Mapping[str, Any]) -> SVC | Exception:
        """The model, or what is wrong with its parameters."""
        own, names = clone_all(candidate), frozenset(candidate)
        if names not in self._checked:
            self._checked[names] = self._wrong({name: v for name, v in self._params.items() if name not in names})
        wrong = self._checked[names] or self._wrong(own)
        return wrong or SVC(**{**self._params, **own})

    def _wrong(self, values: Mapping[str, Any]) -> Exception | None:
        try:
            if unknown := values.keys() - self._params.keys():
                clone(self._estimator).set_params(**{name: values[name] for name in sorted(unknown)})
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
    gamma = model.gamma if model.kernel in ("rbf", "poly", "sigmoid") else 0.0
    function = KernelFunction.of(model.kernel, 1.0, model.degree, model.coef0)
    return (
        function, gamma, repr(model.class_weight), model.tol, model.max_iter, bool(model.shrinking),
        libsvm.by_parameters(model),
    )  # fmt: skip


class _Fold:
    """One split: its samples, and what scikit-learn computes from a training set."""

    def __init__(self, work: _Work, train: np.ndarray, validation: np.ndarray) -> None:
        self._work = work
        self.train, self.validation = (
            np.flatnonzero(part) if np.asarray(part).dtype == bool else np.asarray(part) for part in (train, validation)
        )
        self.repeats = len(np.unique(self.train)) < len(self.train)
        self.parts: tuple[Any, Any] | None = None
        self.variance: Any = None
        self.trainings: dict[Any, tuple[TrainingSet, dict[str, Any]] | None] = {}

    def samples(self, part: np.ndarray, pairwise: bool) -> Any:
        """A part of the samples; of a matrix of kernel values those with the training samples."""
        return self._work.x[np.ix_(part, self.train) if pairwise else part]

    def known(self, pairwise: bool = False) -> tuple[Any, Any]:
        """Training samples, if they were given, and validation samples, as the models are asked about them."""
        if self.parts is None:
            self.parts = None, self.samples(self.validation, pairwise)
        return self.parts

    def gamma(self, model: SVC) -> float:
        n_features = self._work.x.shape[1]
        if model.gamma == "scale":
            if self.variance is None:
                self.variance = self._work.x[self.train].var()
            return 1.0 / (n_features * self.variance) if self.variance != 0 else 1.0
        return 1.0 / n_features if model.gamma == "auto" else float(model.gamma)

    def alone(self, candidate: int, split: int, unfitted: SVC) -> Fitted:
        """A fit by scikit-learn's own class, as a search of single fits makes it."""
        work, begin = self._work, time.perf_counter()
        model = clone(ScikitSVC(**unfitted.get_params()))
        x_train, x_validation = self.known(pairwise := model.kernel == "precomputed")
        if x_train is None:
            x_train = self.samples(self.train, pairwise)
        try:
            model.fit(x_train, work.y[self.train], None if work.weights is None else work.weights[self.train])
        except Exception as error:
            return self.failed(candidate, split, error)
        return Fitted(candidate, split, model, None, x_validation, time.perf_counter() - begin)

    def failed(self, candidate: int, split: int, error: Exception) -> Fitted:
        return Fitted(candidate, split, None, error, None, 0.0)


class _Work:
    """The samples as the solver has them, sorted once for all kernels that can use it.

    ``facts`` are attributes of all models.
    """

    def __init__(
        self, x: Any, y: np.ndarray, weights: np.ndarray | None, memory: int | None, facts: dict[str, Any]
    ) -> None:
        self.x, self.y, self.weights, self.memory, self.facts = x, y, weights, memory, facts
        self.classes, self.labels = np.unique(y, return_inverse=True)
        self.left_out = np.zeros(len(y), np.int64)  # in which fold
        self._data: dict[bool, Data] = {}
        self._left: dict[KernelFunction, bool] = {}

    def data(self, kernel: str) -> Data:
        rbf = kernel == "rbf"
        if rbf not in self._data:
            self._data[rbf] = Data(self.x, self.labels, kernel, self.memory, folds=self.left_out)
        return self._data[rbf]

    def left(self, function: KernelFunction) -> bool:
        """Whether fits to these samples are left to LIBSVM."""
        if function not in self._left:
            self._left[function] = libsvm.by_samples(self.x, self.data(function.name).samples, function)
        return self._left[function]


def _group(work: _Work, models: Sequence[tuple[int, SVC]], folds: Sequence[_Fold]) -> Iterator[Fitted]:
    """Candidates that differ in C alone, on all folds."""
    first = models[0][1]
    left = scipy.sparse.issparse(work.x) or libsvm.by_parameters(first)
    together: dict[KernelFunction, list[tuple[int, TrainingSet, dict[str, Any]]]] = {}
    for split, fold in enumerate(folds):
        training_facts = None if left or fold.repeats else _training(work, fold, first)
        if training_facts is not None:
            gamma = fold.gamma(first)
            function = KernelFunction.of(first.kernel, gamma, first.degree, first.coef0)
            if not work.left(function):
                training, facts = training_facts
                together.setdefault(function, []).append((split, training, {**facts, "_gamma": gamma}))
                continue
        for number, model in models:
            yield fold.alone(number, split, model)
    penalties = np.unique([float(model.C) for _, model in models])
    for function, ready in together.items():
        begin = time.perf_counter()
        trainings = [training for _, training, _ in ready]
        data = work.data(first.kernel)
        solved = solve(
            data, data.source(function, len(penalties), len(trainings)), penalties, trainings, first.tol,
            first.max_iter, shrinking=bool(first.shrinking), give_up=True,
            scored=[folds[split].validation for split, _, _ in ready],
        )  # fmt: skip
        seconds = (time.perf_counter() - begin) / len(solved) / len(models)
        order = np.searchsorted(penalties, [float(model.C) for _, model in models]).tolist()
        for (split, _, facts), answer in zip(ready, solved, strict=True):
            fold = folds[split]
            x_train, x_validation = fold.known()
            known = [(x_validation, answer.scored)]
            if x_train is not None:
                known.append((x_train, KnownPart(answer, fold.train)))
            later = partial(work.x.__getitem__, fold.train)
            for c, (number, unfitted) in zip(order, models, strict=True):
                begin, coarse = time.perf_counter(), answer.left[c]
                if coarse and not answer.solutions.converged[c]:
                    yield fold.alone(number, split, unfitted)
                    continue
                if coarse:  # LIBSVM's own solution of each pair is that of its whole fit
                    answer.complete(c, every=True)
                model = SVC._of(unfitted, answer, c, {**facts, "_known": (c, () if coarse else known)}, later)
                model._warn_from_fit_status()
                yield Fitted(number, split, model, None, x_validation, seconds + time.perf_counter() - begin)


def _training(work: _Work, fold: _Fold, model: SVC) -> tuple[TrainingSet, dict[str, Any]] | None:
    """The weighted training set of a fold, and attributes of models fitted to it; None where it is not solved."""
    key = repr(model.class_weight)
    if key not in fold.trainings:
        fold.trainings[key] = _weighted(work, fold, model)
    return fold.trainings[key]


def _weighted(work: _Work, fold: _Fold, model: SVC) -> tuple[TrainingSet, dict[str, Any]] | None:
    labels = work.labels[fold.train]
    classes = np.flatnonzero(np.bincount(labels))
    names = work.classes[classes]
    try:
        class_weight = compute_class_weight(model.class_weight, classes=names, y=work.y[fold.train])
    except ValueError:
        return None  # as `fit` will say
    weights, of_class = np.ones(len(labels)), np.ones(len(work.classes))
    if work.weights is not None:
        weights = work.weights[fold.train]
    of_class[classes] = class_weight
    if len(classes) < 2 or libsvm.by_weights(weights) or libsvm.by_weights(weights * of_class[labels]):
        return None
    n_features = work.x.shape[1]
    facts = {
        **work.facts,
        "classes_": names,
        "class_weight_": class_weight,
        "n_features_in_": n_features,
        "shape_fit_": (len(fold.train), n_features),
        "_effective_probability": False,
    }
    return TrainingSet(fold.train, weights, of_class), facts
