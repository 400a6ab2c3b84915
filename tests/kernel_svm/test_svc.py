"""The estimator: scikit-learn's own checks, and agreement with `sklearn.svm.SVC`."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse
import sklearn.svm
from hypothesis import given
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

from kernel_svm import SVC
from kernel_svm.svc import LARGE, dense
from tests.kernel_svm.problems import problems

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


def test_attributes_have_the_shapes_types_and_signs_of_scikit_learn():
    x, y = load_iris(return_X_y=True)
    for classes in (2, 3):
        part = y < classes
        ours, theirs = SVC(tol=1e-6).fit(x[part], y[part]), sklearn.svm.SVC(tol=1e-6).fit(x[part], y[part])
        for name in (
            "support_",
            "support_vectors_",
            "n_support_",
            "dual_coef_",
            "intercept_",
            "classes_",
            "shape_fit_",
        ):
            expected, found = np.asarray(getattr(theirs, name)), np.asarray(getattr(ours, name))
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype), name
            np.testing.assert_allclose(found, expected, atol=1e-3, err_msg=name)
        assert ours.n_iter_.shape == theirs.n_iter_.shape and (ours.n_iter_ > 0).all()
        assert ours.decision_function(x).shape == theirs.decision_function(x).shape


def test_ties_are_broken_by_decision_values_on_demand():
    x, y = load_iris(return_X_y=True)
    ours, theirs = (cls(break_ties=True, tol=1e-6).fit(x, y) for cls in (SVC, sklearn.svm.SVC))
    grid = np.random.default_rng(0).uniform(x.min(), x.max(), (500, 4))
    assert (ours.predict(grid) == theirs.predict(grid)).mean() > 0.99
    with pytest.raises(ValueError, match="break_ties must be False"):
        SVC(break_ties=True, decision_function_shape="ovo").fit(x, y).predict(x)


@pytest.mark.filterwarnings("ignore:The `probability` parameter")
@pytest.mark.parametrize("classes", [(1, 2), (0, 1, 2)])
def test_probabilities_are_those_of_scikit_learn(classes):
    x, y = load_iris(return_X_y=True)
    x, y = x[np.isin(y, classes), :2], y[np.isin(y, classes)]
    parameters = {"probability": True, "random_state": 5, "tol": 1e-7}
    ours, theirs = SVC(**parameters).fit(x, y), sklearn.svm.SVC(**parameters).fit(x, y)
    np.testing.assert_allclose(ours.predict_proba(x), theirs.predict_proba(x), atol=1e-5)
    assert not hasattr(SVC(), "predict_proba")


def test_a_limit_of_iterations_warns():
    x, y = load_iris(return_X_y=True)
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        assert SVC(max_iter=2).fit(x, y).fit_status_ == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert SVC().fit(x, y).fit_status_ == 0


def test_sparse_samples_are_made_dense_with_a_warning_when_large():
    x, y = load_iris(return_X_y=True)
    sparse = scipy.sparse.csr_array(x)
    model = SVC().fit(sparse, y)
    assert np.array_equal(model.predict(sparse), SVC().fit(x, y).predict(x))

    class Large(scipy.sparse.csr_array):
        shape = (LARGE // 8, 1)
        toarray = None

    with pytest.warns(UserWarning, match=r"made dense, which takes 1\.1 GB"), pytest.raises(TypeError):
        dense(Large(x))


def test_a_kernel_that_is_a_function_is_left_to_libsvm():
    x, y = load_iris(return_X_y=True)
    ours = SVC(kernel=lambda a, b: a @ b.T).fit(x, y)
    assert np.array_equal(ours.predict(x), clone(ours).fit(x, y).predict(x)) and ours.score(x, y) > 0.9


def test_badly_scaled_samples_are_computed_in_double():
    x, y = load_iris(return_X_y=True)
    x = x + np.array([0.0, 0.0, 1e4, -1e4])[np.arange(len(y)) % 4][:, None]
    ours, theirs = (cls(gamma=1.0, tol=1e-6).fit(x, y) for cls in (SVC, sklearn.svm.SVC))
    np.testing.assert_allclose(ours.decision_function(x), theirs.decision_function(x), atol=1e-3)
