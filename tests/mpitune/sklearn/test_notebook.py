"""What a notebook shows of a search."""

from typing import Any

import pytest
import sklearn
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV as Theirs
from sklearn.neighbors import KNeighborsClassifier

from mpitune.sklearn import GridSearchCV, HalvingGridSearchCV

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
    assert text.startswith(
        "6 candidates, 1 of them failed\nmean_test_score, best of 6 by accuracy, 1 left out: "
        "{&#x27;n_neighbors&#x27;: 7}: 0.9800; "
    )
    assert "\nas good on these 5 folds: 5 of 6</pre>" in text
    assert text.count("<img ") == 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"scoring": ["accuracy", "f1_macro"], "refit": "f1_macro"}, "f1_macro"),
        ({"scoring": ["accuracy", "f1_macro"], "refit": False}, "accuracy"),
        ({"refit": lambda results: 1}, "score"),
    ],
)
def test_the_score_is_that_of_refit(arguments: dict[str, Any], name: str) -> None:
    search = GridSearchCV(KNN, {"n_neighbors": [1, 3]}, cv=5, workers=0, **arguments).fit(X, Y)
    score, text = search.cv_results_[f"mean_test_{name}"][1], below_the_diagram(search)
    by = "accuracy" if name == "score" else name
    winner = f"mean_test_{name}, best of 2 by {by}: {{&#x27;n_neighbors&#x27;: 3}}: {score:.4f}; corrected"
    assert (winner if arguments["refit"] else f"mean_test_{name}, the best: n_neighbors=3: {score:.6g}") in text


def test_a_halving_search_shows_the_best_of_its_last_iteration() -> None:
    search = HalvingGridSearchCV(KNN, {"n_neighbors": [1, 3, 5, 7, 9, 11]}, cv=3, random_state=0, workers=0).fit(X, Y)
    text = below_the_diagram(search)
    assert search.cv_results_["iter"][search.best_index_] == 1
    best = f"{{&#x27;n_neighbors&#x27;: {search.best_params_['n_neighbors']}}}: {search.best_score_:.4f}"
    assert text.startswith(f"8 candidates in 2 iterations\nmean_test_score, best of 2 by accuracy: {best}; ")


def test_as_text_it_is_scikit_learns() -> None:
    search = GridSearchCV(KNN, {}, cv=2, workers=0).fit(X, Y)
    assert 'pre-wrap">1 candidate\n' in search._repr_html_()
    with sklearn.config_context(display="text"):
        assert list(search._repr_mimebundle_()) == ["text/plain"] and not hasattr(search, "_repr_html_")
        assert not hasattr(Theirs(KNN, {}), "_repr_html_")
