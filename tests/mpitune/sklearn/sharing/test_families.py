"""Each family beside single fits, on samples that hypothesis draws: many of them equally far, some of them equal."""

from typing import Any

import numpy as np
import pytest
import sklearn
import sklearn.model_selection as theirs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from mpitune.sklearn import GridSearchCV
from mpitune.sklearn.sharing import family_of
from tests.mpitune.sklearn.sharing.beside import compared

drawn = settings(
    max_examples=1,  # which is whole searches
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
FEW = st.integers(0, 2**31)


def samples(seed: int, whole: bool, n: int = 60, p: int = 4, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Samples and labels. whole: small whole numbers, so that many are equally far, and some equal."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 4, (n, p)).astype(float) if whole else rng.normal(size=(n, p))
    y = rng.permutation(np.arange(n) % classes)
    return X, y


@drawn
@given(seed=FEW, metric=st.sampled_from(["euclidean", "manhattan", "chebyshev"]), share=st.sampled_from([1, 10, 100]))
@pytest.mark.parametrize("order", ["C", pytest.param("F", marks=pytest.mark.slow)])
def test_neighbours_equally_far(caplog: Any, order: Any, seed: int, metric: str, share: int) -> None:
    """Without a tree, so many rows that a few of them are asked again; shares of whole numbers are rounded."""
    X, y = samples(seed, whole=True, n=300, p=3)
    grid = {"n_neighbors": [1, 2, 7, 16, 40, 120, 200], "weights": ["uniform", "distance", None]}
    kind = KNeighborsClassifier(metric=metric, algorithm="brute")
    compared(caplog, kind, grid, np.asarray(X / share, order=order), y)


@pytest.mark.slow
@pytest.mark.parametrize(("metric", "seed"), [("cosine", 14), ("cosine", 22), ("correlation", 14)])
def test_neighbours_whose_distances_are_rounded(caplog: Any, metric: str, seed: int) -> None:
    """Samples on one line are equally far, but for the rounding of a matrix product; or their distance is NaN."""
    X, y = samples(seed, whole=True, p=3)
    X[:, 0] += 1.0
    grid = {"n_neighbors": [1, 3, 8], "weights": ["uniform", "distance"]}
    compared(caplog, KNeighborsClassifier(metric=metric), grid, X, y, scoring="neg_log_loss", return_train_score=True)


def test_distances_of_small_and_of_large_k_are_those_of_scikit_learn() -> None:
    """With half the samples and more it takes no tree, whose distances differ in the last bits."""
    X, y = np.random.default_rng(0).normal(10, 1, (90, 3)), np.arange(90.0)
    grid = {"n_neighbors": [2, 5, 29, 30, 40], "weights": ["distance"]}
    single = theirs.GridSearchCV(KNeighborsRegressor(), grid, cv=3).fit(X, y)
    shared = GridSearchCV(KNeighborsRegressor(), grid, cv=3, workers=0).fit(X, y)
    assert shared.cv_results_["mean_test_score"].tolist() == single.cv_results_["mean_test_score"].tolist()


def test_true_is_no_number() -> None:
    """scikit-learn's checks take it as one, its code does not: that candidate fails, the others do not."""
    X, y = samples(0, whole=True)
    estimator, grid, tables = KNeighborsClassifier(), {"n_neighbors": [True, 3, 8]}, []
    for kind, own in ((GridSearchCV, {"workers": 0}), (theirs.GridSearchCV, {})):
        with pytest.warns(UserWarning):
            tables.append(kind(estimator, grid, cv=3, **own).fit(X, y).cv_results_["mean_test_score"])
    np.testing.assert_array_equal(*tables)
    assert np.isfinite(tables[0]).tolist() == [False, True, True]


def test_components_as_data_frames_are_not_shared() -> None:
    family: Any = family_of(PCA)
    assert family.why_not(PCA()) is None and family.why_not(PCA().set_output(transform="pandas"))
    with sklearn.config_context(transform_output="pandas"):
        assert family.why_not(PCA()) == "its samples become DataFrames"
