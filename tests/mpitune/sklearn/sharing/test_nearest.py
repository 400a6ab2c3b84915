"""What shared neighbours know without asking scikit-learn, beside what it says."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import KNeighborsClassifier

from mpitune.sklearn.sharing import nearest
from mpitune.sklearn.sharing.family import SplitPart
from mpitune.sklearn.sharing.neighbours import Neighbours

drawn = settings(max_examples=20, deadline=None, derandomize=True)


@drawn
@given(seed=st.integers(0, 2**31), text=st.booleans())
@pytest.mark.parametrize("metric", ["euclidean", "manhattan"])
def test_accuracies_of_all_k(metric: str, seed: int, text: bool) -> None:
    """Answers for the very validation samples, and for a copy of them, which scikit-learn computes."""
    rng = np.random.default_rng(seed)
    X, y = rng.integers(0, 6, (130, 4)).astype(float), rng.integers(0, 3, 130)
    labels: Any = np.array(["one", "two", "three"])[y] if text else y
    part = SplitPart(X[:100], labels[:100], None, X[100:], labels[100:])
    model = KNeighborsClassifier(metric=metric, algorithm="brute")
    candidates = [{"n_neighbors": k, "weights": w} for k in (1, 2, 5, 8, 20) for w in ("uniform", "distance", None)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nearest, "_threads", lambda: 1)  # so few samples are searched by one
        for one in Neighbours().fit(model, candidates, part):
            assert one.score(part.X_test, part.y_test) == one.score(part.X_test.copy(), part.y_test)
            np.testing.assert_array_equal(one.predict(part.X_test), one.predict(part.X_test.copy()))
