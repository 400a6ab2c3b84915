"""Searches that end early, by their time; and those that cannot continue."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.model_selection as theirs
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.experimental import enable_halving_search_cv  # noqa: F401

from mpitune.errors import UsageError
from mpitune.sklearn import GridSearchCV, HalvingGridSearchCV
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


def test_what_cannot_be() -> None:
    for kind, how, error, said in (
        (GridSearchCV, {"timeout": 0.1}, UsageError, "stopped by its time before any candidate had all its splits"),
        (HalvingGridSearchCV, {"timeout": 1.0}, UsageError, "in one round"),
        (GridSearchCV, {"timeout": -1.0}, ValueError, "timeout"),
    ):
        with pytest.raises(error, match=said):
            kind(Slow(0.2), {"number": range(6)}, workers=0, **how).fit(X, Y)
