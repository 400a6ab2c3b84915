"""Formulas of the seconds that one step is expected to take, from the numbers of samples and features.

They count the operations of scikit-learn's algorithms, at the rates of one core of 2026. They are guesses, rarely wrong
by more than a few times. The queue allows for such errors (`Costs.surprise` in mpitune/engine/queue.py). No result
depends on them. `costs` adds them up over the fits of a search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sklearn.pipeline import Pipeline

FLOPS = 2e10  # of products and factorisations of matrices, a second
OPS = 4e8  # of all else
CALL = 5e-4  # seconds of a fit or a score of nothing
FEATURES = ("n_components", "k", "max_features")  # parameters that say how many features come out of a step


@dataclass(frozen=True)
class Shape:
    """Samples to learn from and to be asked about, their features, and classes (1 for numbers).

    Attributes:
        values: how many different values a feature has, 256 where these are many.
        whole: whether they are whole numbers.
    """

    n: int
    n_asked: int
    p: int
    classes: int = 1
    values: float = 256
    whole: bool = False


@dataclass(frozen=True)
class Cost:
    """Seconds of a step for one setting.

    Attributes:
        alone: of a fit by itself, with its answers for the samples asked about.
        once: of the work of one fit for all settings.
        part: of its work for each of the family's parts.
        each: of its work for each setting. By default all work is for each.
    """

    alone: float
    once: float = 0.0
    part: float = 0.0
    each: float | None = None

    @property
    def own(self) -> float:
        return self.alone if self.each is None else self.each


def known(estimator: Any) -> bool:
    """Whether the formulas are made for this estimator, or for all steps of this Pipeline, and so to be relied on."""
    *before, last = (step for _, step in estimator.steps) if isinstance(estimator, Pipeline) else (estimator,)
    return _has_formula(last) and all(
        _has_formula(step) or type(step).__module__.startswith("sklearn.preprocessing.") for step in before
    )


def _has_formula(model: Any) -> bool:
    return type(model).__name__ in _FORMULAS and type(model).__module__.partition(".")[0] in ("sklearn", "mpitune")


def after(model: Any, values: Mapping[str, Any], shape: Shape) -> Shape:
    """The samples as the next step sees them."""
    if model is not None and type(model).__name__ not in _FILTERS:
        shape = replace(shape, values=256, whole=False)
    for name in FEATURES:
        size = values.get(name, getattr(model, name, None))
        if isinstance(size, int) and not isinstance(size, bool) and size > 0:
            return replace(shape, p=size)
    return shape


def cost_of(model: Any, values: Mapping[str, Any], shape: Shape) -> Cost:
    """The cost of a step with these values of its parameters; of a class without a formula that of a scaler."""
    if model is None:
        return Cost(0.0)
    formula = _FORMULAS.get(type(model).__name__, _of_any)
    return formula(Get(model, values), shape)


class Get:
    """The parameters of a candidate."""

    def __init__(self, model: Any, values: Mapping[str, Any]):
        self._model, self._values = model, values

    def value(self, name: str) -> Any:
        """A parameter as it is; None where there is none of that name."""
        return self._values.get(name, getattr(self._model, name, None))

    def __call__(self, name: str, default: float) -> float:
        """A parameter as a number, or the default if it is no number."""
        value = self.value(name)
        good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
        return float(value) if good else default


def _of_any(get: Get, s: Shape) -> Cost:
    """Something that looks at each number a few times, as scalers do."""
    return Cost(6 * CALL + 10 * (s.n + s.n_asked) * s.p / OPS)


def _neighbours(get: Get, s: Shape) -> Cost:
    plain = get.value("metric") in ("euclidean", "sqeuclidean", "cosine") or (
        get.value("metric") == "minkowski" and get("p", 2.0) == 2.0
    )
    pairs = s.n * s.n_asked
    search = found = CALL + pairs * (s.p / (FLOPS if plain else 4 * OPS) + 2 / OPS)
    if s.whole and s.values < 32 and (get.value("metric") == "manhattan" or get("p", 2.0) == 1.0):
        found = CALL + pairs * (s.p / (16 * OPS) + 2 / OPS)  # sums of small types, see sharing/whole_numbers.py
    each = CALL / 4 + s.n_asked * get("n_neighbors", 5.0) * 4 / OPS
    return Cost(search + CALL + each, once=found + 4 * CALL, each=each)


def _trees(features: Callable[[float], float]) -> Callable[[Get, Shape], Cost]:
    """An ensemble of deep trees. features: the number, of so many, that each division looks at."""

    def formula(get: Get, s: Shape) -> Cost:
        trees, depth = get("n_estimators", 100.0), min(get("max_depth", 50.0), math.log2(max(s.n, 2)))
        grown = trees * (2 * CALL + s.n * depth * features(s.p) * 20 / OPS)
        asked = trees * (CALL / 5 + s.n_asked * depth * 2 / OPS)
        return Cost(grown + asked, once=grown + asked, each=CALL)

    return formula


def _sorted(s: Shape) -> float:
    """Seconds of a level of a tree that sorts the values of all samples."""
    return 3 * s.n * s.p * math.log2(s.values + 1) / OPS


def _boosting(get: Get, s: Shape) -> Cost:
    members, trees = get("n_estimators", 100.0), s.classes if s.classes > 2 else 1
    grown = members * trees * (3 * CALL + min(get("max_depth", 3.0), 20.0) * _sorted(s))
    asked = members * trees * (CALL / 50 + s.n_asked * 3 / OPS)
    return Cost(grown + asked, once=grown, each=CALL + asked)


def _stumps(get: Get, s: Shape) -> Cost:
    members = get("n_estimators", 50.0)
    grown = members * (6 * CALL + 2 * _sorted(s))
    asked = members * (CALL / 2 + s.n_asked * 3 / OPS)
    return Cost(grown + asked, once=grown, each=CALL + asked)


def _histograms(number: str, tree: float, node: Callable[[Get, Shape], float]) -> Callable[[Get, Shape], Cost]:
    """tree: seconds of a tree of nothing. node: operations for the nodes of a tree, of each feature."""

    def formula(get: Get, s: Shape) -> Cost:
        trees = get(number, 100.0) * (s.classes if s.classes > 2 else 1)
        grown = s.n * s.p * 20 / OPS + trees * (tree + s.p * (s.n + node(get, s)) / OPS)
        asked = trees * (CALL / 10 + s.n_asked * 5 / OPS)
        return Cost(grown + asked, once=grown, each=CALL + asked)

    return formula


def _leaves(get: Get, s: Shape, number: str, least: str) -> float:
    return min(get(number, 31.0), s.n / max(get(least, 20.0), 1.0))


def _of_hist(get: Get, s: Shape) -> float:
    return _leaves(get, s, "max_leaf_nodes", "min_samples_leaf") * (5 * s.values + 300)


def _of_lightgbm(get: Get, s: Shape) -> float:
    return _leaves(get, s, "num_leaves", "min_child_samples") * 5 * s.values


def _of_xgboost(get: Get, s: Shape) -> float:
    """Of balanced trees; many nodes are pure before the largest depth."""
    return min(2.0 ** (min(get("max_depth", 6.0), 60.0) + 1), 2 * math.sqrt(s.n)) * 4 * s.values


def _penalties(calls_each: int, calls_alone: int) -> Callable[[Get, Shape], Cost]:
    """The calls are those of nothing, for each penalty and for a fit by itself."""

    def formula(get: Get, s: Shape) -> Cost:
        small = min(s.n, s.p)
        product = s.n * s.p * (2 * small / FLOPS + 5 / OPS)
        each = small**3 / FLOPS + s.n_asked * s.p * s.classes / OPS
        return Cost(calls_alone * CALL + product + each, once=2 * CALL + product, each=calls_each * CALL + each)

    return formula


def _kernels(get: Get, s: Shape) -> Cost:
    matrix = s.n * (s.n + s.n_asked) * (2 * s.p / FLOPS + 4 / OPS)
    each = CALL + s.n * (30 * s.n / FLOPS + s.n_asked / OPS / 4)
    part = matrix / 2 + 1.5 * s.n**3 / FLOPS
    return Cost(matrix + 0.4 * s.n**3 / FLOPS + each, once=matrix, part=part, each=each)


def _once_and_each(once: float, each: float) -> Cost:
    """Of settings that one fit serves exactly: a fit by itself is that fit and one setting."""
    return Cost(once + each, once=once, each=each)


def _components(get: Get, s: Shape) -> Cost:
    small = min(s.n, s.p)
    transformed = (s.n + s.n_asked) * s.p * (2 * get("n_components", small) / FLOPS + 2 / OPS)
    return _once_and_each(2 * CALL + s.n * s.p * 8 * small / FLOPS, CALL + transformed)


def _filtered(s: Shape) -> float:
    """Seconds that a filter takes to leave features out."""
    return CALL + (s.n + s.n_asked) * s.p / OPS


def _filters(get: Get, s: Shape) -> Cost:
    return _once_and_each(2 * CALL + 20 * s.n * s.p / OPS, _filtered(s))


def _variances(get: Get, s: Shape) -> Cost:
    return _once_and_each(CALL + 4 * s.n * s.p / OPS, _filtered(s))


def _model_within(get: Get, s: Shape) -> Cost:
    return _once_and_each(cost_of(get.value("estimator"), {}, s).alone, _filtered(s))


def _discriminants(get: Get, s: Shape) -> Cost:
    return _once_and_each(4 * CALL + 4 * s.n * s.p**2 / FLOPS, 8 * CALL + 30 * s.p**3 / FLOPS)


def _descent(passes: int) -> Callable[[Get, Shape], Cost]:
    """Coordinate descent, or Newton's and related steps; warm starts save about half."""

    def formula(get: Get, s: Shape) -> Cost:
        alone = 4 * CALL + passes * s.n * s.p * s.classes / OPS
        return Cost(alone, once=alone / 2, each=alone / 2)

    return formula


def _vectors(get: Get, s: Shape) -> Cost:
    pairs = s.n * (s.n + s.n_asked)
    solved = CALL + pairs * (s.p / 5 + 26) / OPS
    return Cost(solved, once=pairs * 2 * s.p / FLOPS, each=CALL + pairs * 2 / OPS)


def _root_of_few(p: float) -> float:
    return math.sqrt(p) / 2


_FORMULAS: dict[str, Callable[[Get, Shape], Cost]] = {}
for _kind in ("Classifier", "Regressor"):
    _FORMULAS |= {
        f"KNeighbors{_kind}": _neighbours,
        f"RandomForest{_kind}": _trees(math.sqrt if _kind == "Classifier" else float),
        f"ExtraTrees{_kind}": _trees(_root_of_few if _kind == "Classifier" else float),
        f"Bagging{_kind}": _trees(float),
        f"AdaBoost{_kind}": _stumps,
        f"GradientBoosting{_kind}": _boosting,
        f"HistGradientBoosting{_kind}": _histograms("max_iter", 3 * CALL, _of_hist),
        f"LGBM{_kind}": _histograms("n_estimators", CALL / 2, _of_lightgbm),
        f"XGB{_kind}": _histograms("n_estimators", CALL / 2, _of_xgboost),
    }
_FORMULAS |= {
    "Ridge": _penalties(1, 3),
    "RidgeClassifier": _penalties(4, 16),
    "KernelRidge": _kernels,
    "GaussianProcessRegressor": _kernels,
    "LinearDiscriminantAnalysis": _discriminants,
    "VarianceThreshold": _variances,
    "SelectFromModel": _model_within,
    "PCA": _components,
    "Lasso": _descent(12),
    "ElasticNet": _descent(12),
    "LogisticRegression": _descent(50),
    "SVC": _vectors,
}
_FORMULAS |= dict.fromkeys(("SelectKBest", "SelectPercentile", "SelectFpr", "SelectFdr", "SelectFwe"), _filters)
_FILTERS = [name for name in _FORMULAS if name.startswith("Select")] + ["VarianceThreshold"]  # values pass unchanged
