"""The estimator: scikit-learn's own checks, and agreement with `sklearn.svm.SVC`."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import sklearn.svm
from hypothesis import given
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.utils.estimator_checks import parametrize_with_checks

from mpitune.svm import SVC, fit_grid
from mpitune.svm.svc import as_sklearn
from tests.mpitune.svm.problems import problems

# Two solutions to the tolerance differ by it, as scikit-learn's do, which fails the same two checks.
DIFFER = {
    f"check_sample_weight_equivalence_on_{kind}_data": "equal to the tolerance only" for kind in ("dense", "sparse")
}


@parametrize_with_checks([SVC(), SVC(kernel="linear")], expected_failed_checks=lambda estimator: DIFFER)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@given(problems())
def test_models_are_those_of_scikit_learn(problem):
    x, y, weights, parameters = problem
    ours, theirs = SVC(**parameters).fit(x, y, weights), sklearn.svm.SVC(**parameters).fit(x, y, weights)
    expected = theirs._decision_function(x)
    difference = (ours._decision_function(x) - expected).reshape(len(x), -1)
    # Where no multiplier is free, any threshold between two limits is optimal: values may differ by one number.
    assert np.ptp(difference, axis=0).max() < 4e-3 * max(1.0, np.abs(expected).max())
    assert np.array_equal(ours.classes_, theirs.classes_) and ours._gamma == theirs._gamma
    clear = np.abs(expected).reshape(len(x), -1).min(axis=1) > 2 * np.abs(difference).max()
    assert np.array_equal(ours.predict(x)[clear], theirs.predict(x)[clear])
    assert np.abs(ours.dual_coef_).sum() == pytest.approx(np.abs(theirs.dual_coef_).sum(), rel=1e-2)
    np.testing.assert_allclose(ours.class_weight_, theirs.class_weight_)


def test_ties_are_broken_by_decision_values_on_demand():
    x, y = load_iris(return_X_y=True)
    ours, theirs = (cls(break_ties=True, tol=1e-6).fit(x, y) for cls in (SVC, sklearn.svm.SVC))
    grid = np.random.default_rng(0).uniform(x.min(), x.max(), (500, 4))
    assert (ours.predict(grid) == theirs.predict(grid)).mean() > 0.99
    with pytest.raises(ValueError, match="break_ties must be False"):
        SVC(break_ties=True, decision_function_shape="ovo").fit(x, y).predict(x)


def test_a_kernel_that_is_a_function_is_left_to_libsvm():
    x, y = load_iris(return_X_y=True)
    ours = SVC(kernel=lambda a, b: a @ b.T).fit(x, y)
    assert np.array_equal(ours.predict(x), clone(ours).fit(x, y).predict(x)) and ours.score(x, y) > 0.9


def test_badly_scaled_samples_are_computed_in_double():
    x, y = load_iris(return_X_y=True)
    x = x + np.array([0.0, 0.0, 1e4, -1e4])[np.arange(len(y)) % 4][:, None]
    ours, theirs = (cls(gamma=1.0, tol=1e-6).fit(x, y) for cls in (SVC, sklearn.svm.SVC))
    np.testing.assert_allclose(ours.decision_function(x), theirs.decision_function(x), atol=1e-3)


@pytest.mark.filterwarnings("ignore:The `probability` parameter")
@pytest.mark.parametrize("kind", [np.asarray, pd.DataFrame])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("options", [{}, {"kernel": "linear"}, {"kernel": "precomputed"}, {"probability": True}])
@pytest.mark.parametrize("whole_grid", [False, True])
def test_a_model_becomes_one_of_scikit_learn(kind, classes, options, whole_grid):
    x, y = load_iris(return_X_y=True)
    x, y = x[y < classes], np.array(["b", "a", "c"])[y[y < classes]]
    given = x @ x.T if options.get("kernel") == "precomputed" else x
    given, parameters = kind(given), {"tol": 1e-7, "C": 0.7, "random_state": 1, **options}
    if isinstance(given, pd.DataFrame):
        given.columns = [f"f{number}" for number in given.columns]
    theirs = sklearn.svm.SVC(**parameters).fit(given, y)
    if whole_grid:
        every = np.arange(len(y))
        found = fit_grid(SVC(**parameters), [{}], given, y, [(every, every)], parts=[(given, given)])
        ours = as_sklearn(next(found).model)
    else:
        ours = as_sklearn(SVC(**parameters).fit(given, y))
    assert type(ours) is sklearn.svm.SVC and set(vars(ours)) - {"_effective_probability"} <= set(
        vars(theirs)
    )  # before 1.8
    for name, expected in vars(theirs).items():
        _same(name, vars(ours)[name], expected)
    copy = pickle.loads(pickle.dumps(ours))
    for model in (ours, copy):
        np.testing.assert_allclose(model.decision_function(given), theirs.decision_function(given), atol=1e-5)
        assert np.array_equal(model.predict(given), theirs.predict(given))
    if "probability" in options:
        np.testing.assert_allclose(copy.predict_proba(given), theirs.predict_proba(given), atol=1e-4)
    assert np.array_equal(clone(ours).fit(given, y).support_, theirs.support_)


def _same(name, found, expected):
    """Of one type, shape and layout, and equal where that is not left to the tolerance."""
    assert type(found) is type(expected), name
    if isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), name
        assert found.flags.c_contiguous == expected.flags.c_contiguous, name
        assert found.flags.writeable == expected.flags.writeable, name
        if expected.dtype != np.float64:
            assert name in ("n_iter_", "_num_iter") or np.array_equal(found, expected), name
        elif "prob" not in name:
            np.testing.assert_allclose(found, expected, atol=1e-3, err_msg=name)
    else:
        assert found == (pytest.approx(expected) if isinstance(expected, float) else expected), name
