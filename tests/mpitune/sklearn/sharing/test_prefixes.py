"""Prefixes of ensembles: what they answer, and when they share nothing."""

from typing import Any

import numpy as np
import pytest
from sklearn._config import _get_threadlocal_config
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.tree import DecisionTreeClassifier

from mpitune.sklearn.sharing import family_of
from mpitune.sklearn.sharing.family import SplitPart

RNG = np.random.default_rng(0)
X, Y = RNG.integers(0, 4, (120, 3)).astype(float), np.arange(120) % 2
X[:, 0] += Y
PART = SplitPart(X[:80], Y[:80], None, X[80:], Y[80:], X[:80])


def fitted(model: Any, number: str) -> list[Any]:
    """Models of several sizes, fitted together."""
    family = family_of(type(model))
    assert family is not None
    return family.fit(model, [{number: n} for n in (4, 1, 12, 12)], PART)


def test_rounds_of_lightgbm_without_a_split_are_dropped_so_nothing_is_shared() -> None:
    lightgbm = pytest.importorskip("lightgbm", reason="lightgbm is not installed")
    model = lightgbm.LGBMClassifier(verbose=-1, n_jobs=1, min_split_gain=5.0, colsample_bytree=0.4, min_child_samples=3)
    with pytest.raises(ValueError, match="of 12 iterations made a split, the others were dropped"):
        fitted(model, "n_estimators")


@pytest.mark.parametrize(
    ("library", "kind", "parameters", "reason"),
    [
        ("lightgbm", "LGBMClassifier", {"boosting": "dart"}, "what boosting does to the first trees is not known"),
        ("lightgbm", "LGBMRegressor", {"num_rounds": 4}, "what num_rounds does to the first trees is not known"),
        ("lightgbm", "LGBMRegressor", {"boosting_type": "rf"}, "boosting_type=rf has no prefixes"),
        ("lightgbm", "LGBMRegressor", {"objective": np.subtract}, "its objective is a function"),
        ("lightgbm", "LGBMRegressor", {"random_state": np.random.RandomState(0)}, "random_state is no integer"),
        ("xgboost", "XGBRegressor", {"process_type": "update"}, "what process_type does to the first trees"),
        ("xgboost", "XGBRegressor", {"booster": "dart"}, "booster=dart has no prefixes"),
        ("xgboost", "XGBRegressor", {"device": "cuda"}, "rounds on device=cuda may add up in another order"),
        ("xgboost", "XGBRegressor", {"objective": np.subtract}, "its objective is a function"),
    ],
)
def test_parameters_that_are_not_known_to_leave_the_first_trees_alone(
    library: str, kind: str, parameters: dict[str, Any], reason: str
) -> None:
    model = getattr(pytest.importorskip(library, reason=f"{library} is not installed"), kind)
    family = family_of(model)
    assert family is not None and family.why_not(model(n_jobs=1, subsample=0.5, verbosity=-1)) is None
    assert str(family.why_not(model(**parameters))).startswith(reason)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (GradientBoostingClassifier(init=DecisionTreeClassifier(), random_state=0), "init is a model"),
        (HistGradientBoostingClassifier(scoring=lambda *_: 0.0, random_state=0), "scoring is a model"),
        (RandomForestClassifier(random_state=np.random.RandomState(0)), "random_state is no integer"),
        (RandomForestClassifier(random_state=0, bootstrap=True, oob_score=True), "its out-of-bag score"),
        (RandomForestClassifier(random_state=np.int64(0)), "None"),
    ],
)
def test_models_whose_fits_may_differ_share_nothing(model: Any, reason: str) -> None:
    family = family_of(type(model))
    assert family is not None and str(family.why_not(model)).startswith(reason)


def test_an_attribute_that_is_not_known_is_not_carried_over() -> None:
    """A method of the class, bound to the large ensemble, is left out; anything else ends the sharing."""
    family: Any = family_of(HistGradientBoostingClassifier)
    whole = HistGradientBoostingClassifier(max_iter=3, random_state=0, min_samples_leaf=3).fit(X, Y)
    whole._raw_predict = whole._raw_predict
    assert "_raw_predict" not in vars(family.smaller(whole, 1))
    whole.predictions_of_training_ = whole.predict(X)
    with pytest.raises(TypeError, match="nobody knows what predictions_of_training_ should be"):
        family.smaller(whole, 1)


def test_other_ways_of_scikit_learn_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert family_of(RandomForestClassifier) is not None
    with monkeypatch.context() as patch:
        patch.setitem(_get_threadlocal_config(), "array_api_dispatch", True)  # which needs an environment to be set
        assert family_of(RandomForestClassifier) is None
