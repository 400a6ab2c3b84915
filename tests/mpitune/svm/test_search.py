"""Whole grids of estimators on arbitrary data against scikit-learn."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.sparse
import sklearn.svm
from hypothesis import given, settings
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, make_classification, make_moons
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import ShuffleSplit, StratifiedKFold, StratifiedShuffleSplit
from sklearn.preprocessing import StandardScaler

from mpitune.svm import SVC, fit_grid
from mpitune.svm.svc import as_sklearn
from tests.mpitune.svm.problems import problems

# The solution is asked for tightly, so that both solvers must find the same one.
TIGHT = {"tol": 1e-6}


def data(load=load_iris):
    x, y = load(return_X_y=True)
    return StandardScaler().fit_transform(x), np.array(["a", "b", "c"])[y]


@pytest.mark.parametrize(
    "candidates",
    [
        [{"C": C, "gamma": gamma} for C in (0.1, 10.0) for gamma in ("scale", "auto", 0.3)],
        [{"C": C, "kernel": "linear"} for C in (10.0, 0.1)],
        [{"C": C, "kernel": "poly", "degree": degree, "coef0": 1.0} for C in (0.1, 1.0) for degree in (2, 3)],
        [{"kernel": "sigmoid", "gamma": 0.01}, {"class_weight": "balanced"}, {"class_weight": {"a": 3.0}}],
    ],
    ids=["rbf", "linear", "poly", "others"],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_models_of_a_grid_are_those_of_scikit_learn(candidates, weighted):
    x, y = data()
    weights = np.random.default_rng(0).uniform(0.1, 3, len(y)) if weighted else None
    splits = list(ShuffleSplit(3, test_size=0.3, random_state=0).split(x, y))
    seen, parts = set(), [(x[train], x[validation]) for train, validation in splits]
    for fitted in fit_grid(sklearn.svm.SVC(**TIGHT), candidates, x, y, splits, weights, parts):
        assert fitted.error is None
        seen.add((fitted.candidate, fitted.split))
        train, validation = splits[fitted.split]
        theirs = sklearn.svm.SVC(**TIGHT, **candidates[fitted.candidate])
        theirs.fit(x[train], y[train], None if weights is None else weights[train])
        for known, part in zip(parts[fitted.split], (train, validation), strict=True):
            expected = theirs.decision_function(x[part])
            np.testing.assert_allclose(fitted.model.decision_function(known), expected, atol=1e-3)
            np.testing.assert_allclose(fitted.model.decision_function(x[part]), expected, atol=1e-3)
        assert np.array_equal(fitted.model.predict(fitted.x_validation), theirs.predict(x[validation]))
        assert np.array_equal(fitted.model.support_, theirs.support_)
        np.testing.assert_allclose(fitted.model.intercept_, theirs.intercept_, atol=1e-2)
        assert fitted.model._gamma == pytest.approx(theirs._gamma) or candidates[fitted.candidate].get("kernel")
    assert seen == {(c, s) for c in range(len(candidates)) for s in range(3)}


def test_what_cannot_be_fitted_is_an_error_of_that_candidate_or_split():
    x, y = data()
    splits = [(np.arange(100), np.arange(100, 150)), (np.arange(50), np.arange(50, 150))]  # of one class alone: a
    found = {(f.candidate, f.split): f for f in fit_grid(SVC(), [{"C": 1.0}, {"C": -1.0}, {"d": 1}], x, y, splits)}
    assert found[0, 0].error is None and found[0, 0].model.classes_.tolist() == ["a", "b"]
    assert set(found[0, 0].model.predict(found[0, 0].x_validation)) <= {"a", "b"}
    assert "got 1 class" in str(found[0, 1].error)
    assert "'C' parameter" in str(found[1, 0].error) and "Invalid parameter 'd'" in str(found[2, 1].error)


def test_fits_that_were_given_up_say_so():
    x, y = load_breast_cancer(return_X_y=True)
    splits = list(StratifiedKFold(2).split(x, y))
    with pytest.warns(ConvergenceWarning, match="max_iter=3"):
        given_up = {
            f.candidate: f.model.fit_status_ for f in fit_grid(SVC(gamma=1e-3), [{"max_iter": 3}, {}], x, y, splits)
        }
    assert given_up == {0: 1, 1: 0}


@pytest.mark.slow
@pytest.mark.parametrize("load", [load_breast_cancer, load_digits])
def test_labels_differ_from_scikit_learns_only_where_the_tolerance_decides(load):
    """A tight solution judges: where a label differs, one of its decision values is within the tolerance of zero."""
    x, y = load(return_X_y=True)
    x, y = StandardScaler().fit_transform(x)[:300], y[:300]
    splits = list(StratifiedKFold(3).split(x, y))
    candidates = [{"C": C, "gamma": gamma} for C in np.logspace(-2, 4, 4) for gamma in np.logspace(-4, 1, 6)]
    differ = 0
    for fitted in fit_grid(sklearn.svm.SVC(), candidates, x, y, splits):
        train, validation = splits[fitted.split]
        theirs = sklearn.svm.SVC(**candidates[fitted.candidate]).fit(x[train], y[train])
        other = validation[fitted.model.predict(fitted.x_validation) != theirs.predict(x[validation])]
        if len(other):
            differ += 1
            tight = clone(theirs).set_params(tol=1e-7, decision_function_shape="ovo").fit(x[train], y[train])
            decisions = np.abs(tight.decision_function(x[other]).reshape(len(other), -1)).min(axis=1)
            assert (decisions < 1e-3).all(), (candidates[fitted.candidate], fitted.split, decisions)
    assert differ <= 0.05 * len(candidates) * len(splits)


@pytest.mark.parametrize("C", [1e-2, 1.0, 1e6, 1e10])
def test_labels_are_scikit_learns_where_its_kernel_is_too_coarse(C):
    """Samples alike, large multipliers, samples far apart: LIBSVM's rounding decides, with and without a grid."""
    x, y = load_iris(return_X_y=True)
    x = StandardScaler().fit_transform(x)
    splits = list(StratifiedShuffleSplit(n_splits=2, test_size=0.2, random_state=42).split(x, y))
    candidates = [{"C": C, "gamma": gamma} for gamma in (1e-9, 1e-7, 1e-4, 1e3)]
    for fitted in fit_grid(sklearn.svm.SVC(), candidates, x, y, splits):
        (train, asked), point = splits[fitted.split], candidates[fitted.candidate]
        theirs = sklearn.svm.SVC(**point).fit(x[train], y[train])
        for ours, samples in ((fitted.model, fitted.x_validation), (SVC(**point).fit(x[train], y[train]), x[asked])):
            assert np.array_equal(ours.predict(samples), theirs.predict(samples)), (point, fitted.split)
            assert np.abs(theirs.dual_coef_).max() < 1e5 or np.array_equal(ours.dual_coef_, theirs.dual_coef_), point


LEFT = [
    {"class_weight": "balanced", "C": 0.01},  # all multipliers are at their bounds, whose sums are equal
    {"kernel": "sigmoid", "gamma": 0.1},
    {"kernel": "poly", "coef0": -1.0},
    {"C": np.inf},
    {"tol": 10.0},
    {"max_iter": 20},
    {"class_weight": {0: 0, 1: 1}},
    {"class_weight": {0: -1.0}},
    {"gamma": 0.0},
    {"gamma": 1e-9, "C": 1e5},
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("options", LEFT, ids=str)
@pytest.mark.parametrize("kind", ["plain", "repeated", "weighted", "one without weight", "sparse"])
def test_what_has_no_one_answer_is_libsvms(options, kind):
    rng = np.random.default_rng(3)
    y = (np.arange(90) % 10 > 6).astype(int)
    x, weights = rng.normal(size=(90, 5)) + 0.3 * y[:, None], None
    train, asked = np.arange(0, 60), np.arange(60, 90)
    if kind == "repeated":
        train = np.concatenate([train, rng.choice(train[y[train] == 1], 24)])
    if kind == "weighted":
        weights = np.where(y == 1, (y == 0).sum() / (y == 1).sum(), 1.0)
    if kind == "one without weight":
        weights = np.ones(90)
        weights[0] = 0.0
    given = scipy.sparse.csr_array(x) if kind == "sparse" else x
    own = None if weights is None else weights[train]
    (found,) = fit_grid(sklearn.svm.SVC(), [options], given, y, [(train, asked)], weights)
    models = [sklearn.svm.SVC(**options), SVC(**options)]
    try:
        theirs = models[0].fit(given[train], y[train], own).decision_function(given[asked])
    except ValueError as error:
        assert str(found.error) == str(error)
        with pytest.raises(ValueError, match=re.escape(str(error))):
            models[1].fit(given[train], y[train], own)
        return
    assert found.error is None
    for model in (found.model, models[1].fit(given[train], y[train], own)):
        decisions = model.decision_function(given[asked])
        np.testing.assert_allclose(decisions, theirs, atol=2e-3)  # those of pairs that are determined differ by that
        np.testing.assert_array_equal(model.predict(given[asked]), models[0].predict(given[asked]))
        np.testing.assert_allclose(as_sklearn(model).decision_function(given[asked]), decisions, atol=1e-6)


def test_a_given_matrix_is_left_to_libsvm():
    rng = np.random.default_rng(0)
    matrix, y = rng.normal(size=(40, 40)), np.arange(40) % 3
    splits = list(StratifiedKFold(2).split(matrix, y))
    for fitted in fit_grid(SVC(kernel="precomputed"), [{}], matrix + matrix.T, y, splits):
        train, asked = splits[fitted.split]
        theirs = sklearn.svm.SVC(kernel="precomputed").fit((matrix + matrix.T)[np.ix_(train, train)], y[train])
        expected = theirs.decision_function((matrix + matrix.T)[np.ix_(asked, train)])
        assert np.array_equal(fitted.model.decision_function(fitted.x_validation), expected)


def test_one_class_pair_of_many_is_libsvms():
    """Weights of equal sums in one pair: its threshold depends on how LIBSVM rounds, the others' do not."""
    x, y = load_iris(return_X_y=True)
    weights = np.random.default_rng(1).uniform(0.5, 2, len(y))
    weights[y == 1] = weights[y == 0][::-1]
    every = np.arange(len(y))
    candidates = [{"C": C, "gamma": 0.1} for C in (1e-4, 1e-3, 1e-2, 1.0)]
    for fitted in fit_grid(SVC(decision_function_shape="ovo"), candidates, x, y, [(every, every)], weights):
        theirs = clone(fitted.model).set_params(**candidates[fitted.candidate])
        theirs = sklearn.svm.SVC(**theirs.get_params()).fit(x, y, weights)
        expected = theirs.decision_function(x)
        np.testing.assert_allclose(fitted.model.decision_function(fitted.x_validation), expected, atol=5e-3)


def test_an_open_threshold_is_that_of_libsvms_own_kernel():
    """Multipliers are all at their bounds but one, by an amount that the last bits of the kernel decide."""
    draw = np.random.default_rng(143493)
    samples = draw.normal(size=(80, 8))
    labels = np.digitize(samples[:, 0] + 0.5 * draw.normal(size=80), [-0.5, 0.4])
    x, y = np.cbrt(samples[:, :1]), labels
    right, ours = (kind(C=100.0, gamma=0.01).fit(x, y) for kind in (sklearn.svm.SVC, SVC))
    np.testing.assert_allclose(ours.intercept_, right.intercept_, atol=1e-3)
    np.testing.assert_array_equal(ours.predict(x), right.predict(x))


@pytest.mark.parametrize(
    "table",
    [
        make_moons(600, noise=0.3, random_state=0),
        make_classification(500, 6, n_informative=4, n_classes=3, random_state=9),
    ],
    ids=["two classes", "three classes"],
)
def test_labels_that_the_tolerance_decides_are_libsvms(table):
    """Each table has a sample whose decision value is so near to 0 that a solution as good gives it another label."""
    x, y = table
    splits = list(StratifiedKFold(3).split(x, y))
    candidates = [{"C": C, "gamma": gamma} for C in (0.1, 1.0, 10.0) for gamma in (0.1, 1.0)]
    for fitted in fit_grid(sklearn.svm.SVC(), candidates, x, y, splits):
        train, validation = splits[fitted.split]
        theirs = sklearn.svm.SVC(**candidates[fitted.candidate]).fit(x[train], y[train])
        labels = fitted.model.predict(fitted.x_validation)
        np.testing.assert_array_equal(labels, theirs.predict(x[validation]))
        np.testing.assert_array_equal(labels, as_sklearn(fitted.model).predict(x[validation]))


@pytest.mark.parametrize(("seed", "k", "penalties"), [(0, 2, (0.003, 0.01)), (72, 3, (58.0,))])
def test_labels_that_rounding_decides_are_libsvms(seed, k, penalties):
    """Decision values of samples of whole numbers are often 0 but for rounding; of three classes after attributes."""
    random = np.random.default_rng(seed)
    x = random.integers(-2, 3, (77, 2)).astype(float) if k == 3 else random.normal(size=(90, 2)).round()
    y = random.integers(0, 3, 77) if k == 3 else np.arange(90) % 2
    splits = list(StratifiedKFold(3).split(x, y))
    parts = [(x[train], x[validation]) for train, validation in splits]
    for fitted in fit_grid(sklearn.svm.SVC(kernel="linear"), [{"C": C} for C in penalties], x, y, splits, parts=parts):
        assert k == 2 or fitted.model.n_support_.sum()
        train = splits[fitted.split][0]
        theirs = sklearn.svm.SVC(C=penalties[fitted.candidate], kernel="linear").fit(x[train], y[train])
        for part in parts[fitted.split]:
            np.testing.assert_array_equal(fitted.model.predict(part), theirs.predict(part))


def test_decision_values_that_are_ranked_have_scikit_learns_bits():
    """Far from all others, many samples have the same value but for the tolerance or a last bit."""
    x, y = make_moons(120, noise=0.3, random_state=0)
    splits = list(StratifiedKFold(3).split(x, y))
    candidates = [{"C": C, "gamma": gamma} for C in (0.1, 300.0) for gamma in (0.03, 30.0)]
    parts = [(x[train], x[validation]) for train, validation in splits]
    for fitted in fit_grid(sklearn.svm.SVC(), candidates, x, y, splits, parts=parts):
        assert fitted.model.n_support_.sum() > 0  # attributes are there before, those of the grid's solver
        theirs = sklearn.svm.SVC(**candidates[fitted.candidate]).fit(*(a[splits[fitted.split][0]] for a in (x, y)))
        for part in parts[fitted.split]:
            np.testing.assert_array_equal(fitted.model.predict(part), theirs.predict(part))
            np.testing.assert_array_equal(fitted.model.decision_function(part), theirs.decision_function(part))


def test_of_few_samples_libsvms_solution_is_awaited():
    """A label that the tolerance decides is LIBSVM's also where it takes more than 50 iterations for each sample."""
    x, y = np.random.default_rng(0).normal(size=(4060, 2)), np.arange(4060) % 2
    train, validation = np.arange(60), np.arange(60, 4060)
    (fitted,) = fit_grid(sklearn.svm.SVC(C=1000.0, gamma=0.1), [{}], x, y, [(train, validation)])
    theirs = sklearn.svm.SVC(C=1000.0, gamma=0.1).fit(x[train], y[train])
    assert fitted.model.n_iter_.tolist() == theirs.n_iter_.tolist() and theirs.n_iter_[0] > 50 * len(train)
    np.testing.assert_array_equal(fitted.model.predict(fitted.x_validation), theirs.predict(x[validation]))


def test_classes_of_equal_size_that_are_far_apart():
    """Thresholds and decision values are as small as the kernel's values, and decide nevertheless."""
    x, y = load_digits(return_X_y=True)
    x = StandardScaler().fit_transform(x)
    some = np.concatenate([np.flatnonzero(y == c)[:60] for c in range(4)])
    x, y = x[some], y[some]
    splits = list(StratifiedKFold(3).split(x, y))
    candidates = [{"C": C, "gamma": gamma} for C in (0.01, 1.0, 100.0) for gamma in (10.0, 30.0)]
    for fitted in fit_grid(sklearn.svm.SVC(), candidates, x, y, splits):
        train, validation = splits[fitted.split]
        theirs = sklearn.svm.SVC(**candidates[fitted.candidate]).fit(x[train], y[train])
        expected = theirs.predict(x[validation])
        alone = SVC(**candidates[fitted.candidate]).fit(x[train], y[train])
        whole, other = fitted.model.predict(fitted.x_validation), fitted.model.predict(x[validation])
        for found in (whole, other, alone.predict(x[validation])):
            # Without thresholds in double, half of them differ in some fits.
            assert np.mean(found == expected) > 0.9, (candidates[fitted.candidate], fitted.split)


@settings(max_examples=15, deadline=None)
@given(problems())
def test_grids_of_random_problems_are_those_of_scikit_learn(problem):
    """Any kernel, weights and number of classes; a class may be missing from a training part."""
    x, y, weights, parameters = problem
    splits = list(ShuffleSplit(2, test_size=0.3, random_state=0).split(x))
    candidates = [{"C": parameters["C"]}, {"C": 0.1 * parameters["C"]}]
    for fitted in fit_grid(sklearn.svm.SVC(**parameters), candidates, x, y, splits, weights):
        train, validation = splits[fitted.split]
        own = None if weights is None else weights[train]
        theirs = sklearn.svm.SVC(**{**parameters, **candidates[fitted.candidate]})
        try:
            theirs.fit(x[train], y[train], own)
        except ValueError as error:
            assert type(fitted.error) is ValueError and str(fitted.error)[:20] == str(error)[:20]
            continue
        assert fitted.error is None
        expected = theirs._decision_function(x[validation])
        difference = fitted.model._decision_function(fitted.x_validation) - expected
        difference = difference.reshape(len(validation), -1)
        assert np.ptp(difference, axis=0).max() < 4e-3 * max(1.0, np.abs(expected).max())
        clear = np.abs(expected).reshape(len(validation), -1).min(axis=1) > 2 * np.abs(difference).max()
        predicted = fitted.model.predict(fitted.x_validation)
        assert np.array_equal(predicted[clear], theirs.predict(x[validation])[clear])


def test_what_calls_have_in_common_is_kept_for_the_same_samples_and_splits_alone():
    x, y = data()
    kept, splits = {}, list(StratifiedKFold(3, shuffle=True, random_state=0).split(x, y))

    def labels(x, splits, C, **options):
        found = fit_grid(SVC(), [{"C": C, "gamma": 0.3}], x, y, splits, **options)
        return [fitted.model.predict(fitted.x_validation).tolist() for fitted in found]

    for own, which, C in [(x, splits, 1.0), (x, splits, 100.0), (x[:, :2], splits, 1.0), (x, splits[1:], 1.0)]:
        assert labels(own, which, C, kept=kept) == labels(own, which, C)
    work = kept["work"]
    labels(x, list(splits[1:]), 10.0, kept=kept)
    assert kept["work"] is work
