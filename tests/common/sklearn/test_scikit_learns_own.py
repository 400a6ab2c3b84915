"""scikit-learn's own tests of its searches, from the installed package, with this package's searches in their place.

All of them hold. They run in this process, since many look at what an estimator of the test has counted there.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
import sklearn.model_selection
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.utils.estimator_checks import parametrize_with_checks

from common.sklearn import GridSearchCV, HalvingGridSearchCV, HalvingRandomSearchCV, RandomizedSearchCV
from common.sklearn.searches import OnEngine

pytestmark = pytest.mark.slow


def _their_tests(name: str) -> ModuleType:
    """scikit-learn's test module, executed while the names of its searches mean ours."""
    found = importlib.util.find_spec(f"sklearn.model_selection.tests.{name}")
    assert found is not None and found.origin is not None
    spec = importlib.util.spec_from_file_location(f"scikit_learns_{name}", Path(found.origin))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for what they pickle
    ours = (GridSearchCV, RandomizedSearchCV, HalvingGridSearchCV, HalvingRandomSearchCV)
    with patch.multiple(sklearn.model_selection, **{search.__name__: search for search in ours}):
        spec.loader.exec_module(module)
    return module


for _name in ("test_search", "test_successive_halving"):
    globals().update(
        {
            name: thing
            for name, thing in vars(_their_tests(_name)).items()
            if name.startswith("test_") or hasattr(thing, "_pytestfixturefunction")
        }
    )


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OnEngine, "_in_this_process", lambda self: True)


@parametrize_with_checks(
    [
        GridSearchCV(Ridge(), {"alpha": [0.1, 1.0]}, cv=2, workers=0),
        GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=2, workers=0),
        RandomizedSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, n_iter=2, cv=2, random_state=0, workers=0),
    ],
    # Ridge has several targets where y has two dimensions; scikit-learn's own search fails this check with it too.
    expected_failed_checks=lambda search: (
        {"check_supervised_y_2d": "Ridge does not warn"} if isinstance(search.estimator, Ridge) else {}
    ),
)
def test_the_checks_that_every_estimator_passes(estimator: Any, check: Any) -> None:
    check(estimator)
