"""Prefixes of ensembles that know what they say of validation samples, beside what they compute for a copy of these."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from common.sklearn.sharing import family_of
from common.sklearn.sharing.family import SplitPart

drawn = settings(max_examples=3, deadline=None, derandomize=True)


def fitted(model: Any, number: str, seed: int, n_classes: int) -> tuple[list[Any], Any]:
    """Models of several sizes, fitted together, and the validation samples that they know."""
    rng = np.random.default_rng(seed)
    X, y = rng.integers(0, 4, (120, 3)).astype(float), np.arange(120) % n_classes
    X[:, 0] += y
    part = SplitPart(X[:80], y[:80], None, X[80:], y[80:], X[:80])
    family = family_of(type(model), "exact")
    assert family is not None
    return family.fit(model, [{number: n} for n in (4, 1, 12, 12)], part), part.X_test


@drawn
@given(seed=st.integers(0, 2**31), n_classes=st.sampled_from([2, 3]), stop=st.booleans())
def test_histograms(seed: int, n_classes: int, stop: bool) -> None:
    """To the bit; the answer is the caller's own, who may change it."""
    shared = {"min_samples_leaf": 3, "early_stopping": stop, "n_iter_no_change": 2, "random_state": 0}
    models, X = fitted(HistGradientBoostingClassifier(**shared), "max_iter", seed, n_classes)
    for one in models:
        assert any(known.X is X for known in one._known)
        for ask in (one.predict_proba, one.decision_function, one.predict):
            ask(X)[:] = 0
            np.testing.assert_array_equal(ask(X), ask(X.copy()))
    models, X = fitted(HistGradientBoostingRegressor(**shared), "max_iter", seed, n_classes)
    for one in models:
        np.testing.assert_array_equal(one.predict(X), one.predict(X.copy()))


@drawn
@given(seed=st.integers(0, 2**31), n_classes=st.sampled_from([2, 3]), gain=st.sampled_from([0.0, 5.0, 1e9]))
@pytest.mark.parametrize("close", [1e-9, 0.3])
def test_lightgbm(close: float, gain: float, n_classes: int, seed: int) -> None:
    """Also where training ends early, as no split gains enough, and where scores are close, so that it is asked."""
    pytest.importorskip("lightgbm", reason="lightgbm is not installed")
    from lightgbm import LGBMClassifier

    from common.sklearn.sharing import lightgbm_trees

    model = LGBMClassifier(verbose=-1, n_jobs=1, min_split_gain=gain).set_params(min_child_samples=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lightgbm_trees, "_CLOSE", close)
        models, X = fitted(model, "n_estimators", seed, n_classes)
        for one in models:
            assert any(known.X is X for known in one._known)
            np.testing.assert_array_equal(one.predict(X), one.predict(X.copy()))
            np.testing.assert_array_equal(one.predict_proba(X), one.predict_proba(X.copy()))
            y = np.arange(80, 120) % n_classes
            assert one.score(X, y) == one.score(X.copy(), y) == one.score(X, y.tolist())


def test_lightgbm_with_a_parameter_that_changes_predictions_is_asked_itself() -> None:
    lightgbm = pytest.importorskip("lightgbm", reason="lightgbm is not installed")
    models, _ = fitted(lightgbm.LGBMClassifier(verbose=-1, n_jobs=1, pred_early_stop=True), "n_estimators", 0, 3)
    assert all(not one._known for one in models)
