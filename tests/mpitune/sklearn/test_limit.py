"""Searches that end early: by their time, or when a function of their results says so."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.model_selection as theirs
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.tree import DecisionTreeClassifier

from mpitune.errors import UsageError
from mpitune.sklearn import GridSearchCV, HalvingGridSearchCV, RandomizedSearchCV
from mpitune.storage.history import read_study
from tests.helpers import end_searches_with
from tests.mpitune.sklearn.iris import X, Y


class Slow(ClassifierMixin, BaseEstimator):
    """Takes its time, and says the first class. From number 2 on fits make the file `over`."""

    def __init__(self, seconds: float = 0.0, number: int = 0, over: str = "") -> None:
        self.seconds, self.number, self.over = seconds, number, over

    def fit(self, x: Any, y: Any) -> "Slow":
        if self.over and self.number >= 2:
            Path(self.over).touch()
        time.sleep(self.seconds)
        self.classes_ = np.unique(y)
        return self

    def predict(self, x: Any) -> Any:
        return np.full(len(x), self.classes_[self.number % len(self.classes_)])


SIX = {"number": [0, 1, 2, 3, 4, 5]}


@pytest.mark.parametrize("workers", [0, 2])
def test_no_fit_begins_after_its_time(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = end_searches_with(tmp_path / "over", monkeypatch)
    model = Slow(0.1, over=str(tmp_path / "over"))
    search = GridSearchCV(model, {"number": range(250)}, cv=2, workers=workers, timeout=seconds)
    with pytest.warns(UserWarning, match="non-finite"):
        search.fit(X, Y)
    table = search.cv_results_
    whole = table["n_splits_evaluated"] == 2
    assert 1 <= whole.sum() < 250 and table["mean_test_score"].mask.tolist() == (~whole).tolist()
    assert whole[search.best_index_] and search.best_score_ == table["mean_test_score"].max()
    assert search.predict(X).shape == Y.shape
    assert f"best of 250 by accuracy, {250 - whole.sum()} left out" in str(search.winner_)
    assert f"stopped by its time: {whole.sum()} of 250 candidates have all splits" in capsys.readouterr().err
    right = theirs.GridSearchCV(Slow(), {"number": range(250)}, cv=2).fit(X, Y).cv_results_
    np.testing.assert_array_equal(table["mean_test_score"][whole], right["mean_test_score"][whole])


@pytest.mark.parametrize("workers", [0, 2, None])
def test_a_function_of_the_results_ends_a_search(workers: int | None) -> None:
    seen: list[list[int]] = []

    def enough(found: Any) -> bool:
        seen.append([params["number"] for params in found["params"]])
        assert len(found["mean_test_a"]) == len(found["mean_test_b"]) == len(found["params"])
        return max(found["mean_test_a"]) > 0.3

    scoring = {"a": "accuracy", "b": "balanced_accuracy"}
    search = RandomizedSearchCV(
        Slow(0.01), {"number": range(2**40)}, n_iter=200, cv=2, scoring=scoring, refit="a", workers=workers,
        stop_when=enough, random_state=0,
    )  # fmt: skip
    with pytest.warns(UserWarning, match="non-finite"):
        search.fit(X, Y)
    assert seen and 1 <= (search.cv_results_["n_splits_evaluated"] == 2).sum() < 200


def _scores(model: Any, x: Any, y: Any) -> dict[str, float]:
    return {"a": model.score(x, y), "b": 1.0}


class FailsAtFirst(Slow):
    def fit(self, x: Any, y: Any) -> "Slow":
        if not self.number:
            raise ValueError("on purpose")
        return super().fit(x, y)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", [Slow(), FailsAtFirst()])
def test_a_scorer_of_several_scores_whose_names_only_answers_say(model: Any) -> None:
    def enough(found: Any) -> bool:
        assert len(found["mean_test_a"]) == len(found["mean_test_b"]) == len(found["params"])
        return len(found["params"]) >= 3

    how: dict[str, Any] = dict(cv=2, scoring=_scores, refit="a", workers=0, return_train_score=True)
    search = GridSearchCV(model, SIX, stop_when=enough, **how)
    search.fit(X, Y)
    right = theirs.GridSearchCV(model, {"number": [0, 1, 2]}, cv=2, scoring=_scores, refit=False).fit(X, Y)
    assert (search.cv_results_["n_splits_evaluated"] == 2).tolist() == [True] * 3 + [False] * 3
    for name in ("mean_test_a", "mean_test_b"):
        np.testing.assert_array_equal(search.cv_results_[name][:3].filled(np.nan), right.cv_results_[name])
        assert search.cv_results_[name].mask[3:].all()


def test_results_of_earlier_runs_are_among_those_so_far(tmp_path: Path) -> None:
    seen: list[int] = []

    def enough(found: Any) -> bool:
        seen.append(len(found["params"]))
        return seen[-1] >= least

    search = GridSearchCV(Slow(), {"number": range(40)}, cv=2, results=tmp_path / "r", workers=1, stop_when=enough)
    for least in (3, 3, 20):
        first = len(seen)
        with pytest.warns(UserWarning, match="non-finite"):
            search.fit(X, Y)
        assert first == 0 or seen[first] >= 3
        assert seen[first:] == sorted(set(seen[first:])) and seen[-1] >= least


def test_a_search_that_is_done_in_time_is_as_without(tmp_path: Path) -> None:
    model, grid = DecisionTreeClassifier(random_state=0), {"max_depth": [1, 2, 3]}
    search = GridSearchCV(model, grid, timeout=600.0, stop_when=lambda found: False, results=tmp_path / "r").fit(X, Y)
    right = theirs.GridSearchCV(model, grid).fit(X, Y)
    assert search.cv_results_.keys() - {"shared_with"} == right.cv_results_.keys()
    assert search.cv_results_["mean_test_score"].tolist() == right.cv_results_["mean_test_score"].tolist()
    assert read_study(tmp_path / "r").stopped == ""


def test_what_cannot_be() -> None:
    with pytest.raises(UsageError, match="stopped by its time before any candidate had all its splits"):
        GridSearchCV(Slow(0.2), SIX, workers=0, timeout=0.1).fit(X, Y)
    with pytest.raises(UsageError, match="in one round"):
        HalvingGridSearchCV(Slow(), SIX, timeout=1.0).fit(X, Y)
    with pytest.raises(ValueError, match="timeout"):
        GridSearchCV(Slow(), SIX, timeout=-1.0).fit(X, Y)


def test_a_search_that_draws_anew_says_that_it_cannot_continue(tmp_path: Path) -> None:
    def searched(name: str, cv: Any = 2, **more: Any) -> RandomizedSearchCV:
        how: dict[str, Any] = dict(n_iter=4, cv=cv, workers=1, results=tmp_path / name, **more)
        return RandomizedSearchCV(Slow(), {"number": range(9999)}, **how).fit(X, Y)

    with pytest.warns(UserWarning, match="the search has no random_state"):
        searched("a")
    with pytest.warns(UserWarning), pytest.raises(UsageError, match="random_state= of what is drawn.*another results"):
        searched("a")
    with pytest.warns(UserWarning, match="cv has no random_state"):
        searched("b", random_state=0, cv=theirs.KFold(2, shuffle=True))
    again = searched("c", random_state=0), searched("c", random_state=0)
    assert again[0].best_params_ == again[1].best_params_
