"""What shared neighbours know without asking scikit-learn, beside what it says."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors

from mpitune.sklearn.sharing import nearest, whole_numbers
from mpitune.sklearn.sharing.family import SplitPart
from mpitune.sklearn.sharing.heaps import Heaps
from mpitune.sklearn.sharing.neighbours import Neighbours

drawn = settings(max_examples=20, deadline=None, derandomize=True)


@drawn
@given(seed=st.integers(0, 2**31), n_asked=st.sampled_from([20, 90]), k=st.integers(1, 20), values=st.integers(2, 12))
@pytest.mark.parametrize("metric", ["euclidean", "manhattan"])
def test_heaps_keep_what_scikit_learn_keeps(metric: str, values: int, k: int, n_asked: int, seed: int) -> None:
    """Also of those equally far, and in the same order; with more rows than training samples it divides otherwise."""
    rng = np.random.default_rng(seed)
    X, Y = (rng.integers(0, values, (n, 3)).astype(float) for n in (n_asked, 80))
    rows = np.sort(rng.permutation(n_asked)[:10])
    assert Heaps.known(X, Y, metric)
    found = Heaps(X, Y, metric, rows, 20).kept(rows[::2], k)
    said = NearestNeighbors(n_neighbors=k, metric=metric, algorithm="brute").fit(Y).kneighbors(X)
    for ours, theirs in zip(found, said, strict=True):
        np.testing.assert_array_equal(ours, theirs[rows[::2]])


def test_rounded_distances_are_not_known() -> None:
    whole, rounded = np.arange(12.0).reshape(4, 3), np.arange(12.0).reshape(4, 3) / 10
    assert not Heaps.known(whole, rounded, "euclidean") and Heaps.known(whole, rounded, "manhattan")
    assert not Heaps.known(whole, whole * 1e9, "euclidean") and not Heaps.known(whole, whole, "chebyshev")


@drawn
@given(seed=st.integers(0, 2**31), top=st.sampled_from([0, 1, 16, 255, 4095]), p=st.integers(1, 70))
@pytest.mark.parametrize("metric", ["euclidean", "manhattan"])
def test_whole_numbers_have_exact_distances(metric: str, top: int, p: int, seed: int) -> None:
    """Also where some are negative; of those equally far as the last, any may be there."""
    rng = np.random.default_rng(seed)
    X, Y = (rng.integers(-top, top + 1, (n, p)).astype(float) for n in (30, 50))
    found = whole_numbers.nearest(X, Y, metric, 20)
    assert found is not None
    distances, indices = found
    said, _ = NearestNeighbors(n_neighbors=20, metric=metric, algorithm="brute").fit(Y).kneighbors(X)
    np.testing.assert_array_equal(distances, said)
    squared = (X[:, None] - Y[indices]) ** 2
    own = np.sqrt(squared.sum(2)) if metric == "euclidean" else np.sqrt(squared).sum(2)
    np.testing.assert_array_equal(distances, own)
    assert all(len(set(row)) == 20 for row in indices.tolist())


def test_samples_that_are_not_whole_or_too_large_are_left_to_others() -> None:
    whole = np.arange(12.0).reshape(4, 3)
    for metric in ("euclidean", "manhattan"):
        assert whole_numbers.nearest(whole, whole, metric, 2) is not None
        assert whole_numbers.nearest(whole, whole / 10, metric, 2) is None
        assert whole_numbers.nearest(whole, whole * 1e9, metric, 2) is None
    assert whole_numbers.nearest(whole, whole, "chebyshev", 2) is None


@drawn
@given(seed=st.integers(0, 2**31), text=st.booleans())
@pytest.mark.parametrize("metric", ["euclidean", "manhattan"])
def test_accuracies_of_all_k(metric: str, seed: int, text: bool) -> None:
    """Answers for the very validation samples, from heaps, and for a copy of them, which scikit-learn computes."""
    rng = np.random.default_rng(seed)
    X, y = rng.integers(0, 6, (130, 4)).astype(float), rng.integers(0, 3, 130)
    labels: Any = np.array(["one", "two", "three"])[y] if text else y
    part = SplitPart(X[:100], labels[:100], None, X[100:], labels[100:])
    model = KNeighborsClassifier(metric=metric, algorithm="brute")
    candidates = [{"n_neighbors": k, "weights": w} for k in (1, 2, 5, 8, 20) for w in ("uniform", "distance", None)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nearest, "_threads", lambda: 1)  # so few samples are searched by one
        patch.setattr(nearest, "_FEW", 100)
        for one in Neighbours().fit(model, candidates, part):
            assert one.score(part.X_test, part.y_test) == one.score(part.X_test.copy(), part.y_test)
            np.testing.assert_array_equal(one.predict(part.X_test), one.predict(part.X_test.copy()))
