"""A model of a shared fit answers as a single one, whatever it is asked: each public method and attribute of its class.

So a method that a library adds is tested from then on.
"""

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from types import GeneratorType
from typing import Any

import numpy as np
import pytest
from scipy.sparse import issparse
from sklearn.base import clone
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.utils.validation import has_fit_parameter

from mpitune.sklearn.sharing import family_of
from mpitune.sklearn.sharing.family import SplitPart
from tests.mpitune.sklearn.sharing.beside import ENSEMBLES, number_of

SOME: list[tuple[Any, dict[str, list[Any]]]] = [
    *((model, {number_of(model): [3, 1, 8]}) for model in ENSEMBLES),  # some stop early, before the largest
    (KNeighborsClassifier(), {"n_neighbors": [1, 5], "weights": ["uniform", "distance"]}),
    (KNeighborsRegressor(), {"n_neighbors": [1, 5]}),
]
for _library, _name, _own in (("lightgbm", "LGBM", {"verbose": -1, "min_child_samples": 3}), ("xgboost", "XGB", {})):
    if find_spec(_library) is not None:
        for _kind in ("Classifier", "Regressor"):
            _class: Any = getattr(import_module(_library), _name + _kind)
            SOME.append((_class(n_jobs=1, subsample=0.7, **_own), {"n_estimators": [2, 5]}))

_OTHER = ("fit", "fit_predict", "fit_transform", "partial_fit", "densify", "sparsify")  # they change the model
_BEGIN = ("_", "set_", "get_", "save_", "load_")


def answers(model: Any, kind: type, X: Any, y: Any) -> Iterator[tuple[str, Any]]:
    """Name and answer of each public method that takes samples alone, and of each attribute."""
    for name in dir(kind):
        if name.startswith(_BEGIN) or name in _OTHER:
            continue
        try:
            found = getattr(model, name)
            if callable(found):
                found = found(X, y) if "score" in name else found(X)
            yield name, list(found) if isinstance(found, GeneratorType) else found
        except Exception as error:  # it takes something else
            yield name, type(error)
    yield from ((name, value) for name, value in vars(model).items() if name.endswith("_") and name[0] != "_")


def same(ours: Any, theirs: Any, name: str) -> None:
    if issparse(theirs):
        ours, theirs = ours.toarray(), theirs.toarray()
    if isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs), name
        for one, other in zip(ours, theirs, strict=True):
            same(one, other, name)
    elif isinstance(theirs, np.ndarray | float | int) and np.asarray(theirs).dtype.kind in "fiub":
        np.testing.assert_array_equal(ours, theirs, err_msg=name)
    elif isinstance(theirs, type | str):
        assert ours == theirs, name


WEIGHTED = [
    *((*one, False) for one in SOME),
    *((*one, True) for one in SOME if has_fit_parameter(one[0], "sample_weight")),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("model", "grid", "weighted"), WEIGHTED, ids=lambda value: type(value).__name__)
def test_a_shared_model_answers_as_a_single_one(model: Any, grid: dict[str, list[Any]], weighted: bool) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 4))
    y = np.digitize(X[:, 0] + 0.5 * rng.normal(size=120), [-0.5, 0.5])
    weights = {"sample_weight": rng.uniform(0.5, 2.0, 80)} if weighted else {}
    part = SplitPart(X[:80], y[:80], weights.get("sample_weight"), X[80:], y[80:])
    settings: list[dict[str, Any]] = [{}]
    for name, values in grid.items():
        settings = [{**setting, name: value} for setting in settings for value in values]
    family = family_of(type(model))
    assert family is not None and family.why_not(model) is None
    for one, setting in zip(family.fit(model, settings, part), settings, strict=True):
        single = clone(model).set_params(**setting).fit(part.X, part.y, **weights)
        assert all(hasattr(one, name) for name in vars(single) if name.endswith("_"))
        theirs = dict(answers(single, type(single), part.X_test, part.y_test))
        assert len(theirs) > 4
        for X_test in (part.X_test, part.X_test.copy()):
            ours = dict(answers(one, type(single), X_test, part.y_test))
            for name, said in theirs.items():
                same(ours[name] if name in ours else getattr(one, name), said, name)
