"""What a notebook shows of a search."""

from typing import Any

import pytest
import sklearn
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV as Theirs
from sklearn.neighbors import KNeighborsClassifier

from mpitune.sklearn import GridSearchCV

X, Y = load_iris(return_X_y=True)
KNN = KNeighborsClassifier()


def below_the_diagram(search: Any) -> str:
    """What follows scikit-learn's own HTML, the same in both ways that notebooks ask for it."""
    theirs, begins, ours = search._repr_html_().rpartition('<pre style="white-space: pre-wrap">')
    assert search._repr_mimebundle_()["text/html"].endswith(ours)
    assert "sk-estimator" in theirs and begins
    return ours


@pytest.mark.filterwarnings("ignore")
def test_a_fitted_search_shows_what_it_found_below_the_diagram() -> None:
    search = GridSearchCV(KNN, {"n_neighbors": [1, 3, 5, 1000, 7, 9]}, cv=5, workers=0)
    fresh = search._repr_html_()
    assert "sk-estimator" in fresh and "candidates" not in fresh
    text = below_the_diagram(search.fit(X, Y))
    assert text.startswith("6 candidates, 1 without a score\nbest of 6 by accuracy, 1 left out: {")
    assert "{&#x27;n_neighbors&#x27;: 7}: 0.9800; " in text
    assert "\nas good on these 5 folds: 5 of the 5 with all scores</pre>" in text
    no_refit = GridSearchCV(KNN, {"n_neighbors": [1, 3]}, scoring=["accuracy", "f1_macro"], refit=False, workers=0)
    assert below_the_diagram(no_refit.fit(X, Y)) == "2 candidates</pre>"


def test_as_text_it_is_scikit_learns() -> None:
    search = GridSearchCV(KNN, {}, cv=2, workers=0).fit(X, Y)
    assert 'pre-wrap">1 candidate\n' in search._repr_html_()
    with sklearn.config_context(display="text"):
        assert list(search._repr_mimebundle_()) == ["text/plain"] and not hasattr(search, "_repr_html_")
        assert not hasattr(Theirs(KNN, {}), "_repr_html_")
