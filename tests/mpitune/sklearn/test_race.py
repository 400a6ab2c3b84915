"""Searches whose candidates race over the folds: one table in every layout, by the rule, whatever came before."""

import hashlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.model_selection as theirs
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import RandomForestClassifier
from sklearn.svm import SVC

import mpitune
from mpitune.errors import UsageError
from mpitune.sklearn import GridSearchCV, HalvingGridSearchCV, RandomizedSearchCV
from mpitune.sklearn.search.racing import Race, winning
from mpitune.storage.files import PAGE
from mpitune.storage.history import read_study
from mpitune.tools.report import main as report
from tests.helpers import journal_lines
from tests.mpitune.sklearn.iris import X, Y, table

CV = theirs.RepeatedStratifiedKFold(n_splits=5, n_repeats=2, random_state=0)
GRID = {"number": list(range(40))}
LUCK = np.random.default_rng(0).uniform(size=(40, len(X)))


class Guesses(ClassifierMixin, BaseEstimator):
    """Right in a part of the samples that falls with its number; number `fails` raises."""

    def __init__(self, number: int = 0, fails: int = -1):
        self.number, self.fails = number, fails

    def fit(self, x: Any, y: Any) -> "Guesses":
        if self.number == self.fails:
            raise ValueError("on purpose")
        self.classes_, self.rows_ = np.unique(y), {row.tobytes(): place for place, row in enumerate(X)}
        return self

    def predict(self, x: Any) -> Any:
        places = [self.rows_[row.tobytes()] for row in x]
        wrong = LUCK[self.number, places] < 0.05 + 0.015 * (self.number % 20)
        return np.where(wrong, (Y[places] + 1) % 3, Y[places])


def digest(search: Any) -> str:
    """Of the whole table but the times, with what is masked."""
    columns = {name: column for name, column in search.cv_results_.items() if "time" not in name}
    said = {n: np.ma.filled(np.ma.asarray(c, object), "masked").tolist() for n, c in columns.items()}
    return hashlib.sha256(repr((said, search.best_index_)).encode()).hexdigest()


def raced(**arguments: Any) -> Any:
    return GridSearchCV(Guesses(), GRID, **{"cv": CV, "race": 0.95, **arguments}).fit(X, Y)


def by_the_rule(scores: np.ndarray, repeats: int) -> np.ndarray:
    """Which of (candidates, folds) the race wants, from all scores: looks after a few folds, and twice as many."""
    n, folds = scores.shape
    order = Race([0], folds, repeats=repeats).order
    wanted, alive, left, look = np.zeros((n, folds), bool), np.arange(n), 0.05, 1 + -(-folds // 5)
    while look < folds:
        wanted[np.ix_(alive, order[:look])] = True
        chances = winning(-scores[np.ix_(alive, order[:look])], folds)
        ranked = np.lexsort((-alive, chances))  # the first of equal ones stays longest
        out = ranked[np.cumsum(chances[ranked]) <= left]
        left -= chances[out].sum()
        alive, look = np.delete(alive, out), 2 * look
    wanted[alive] = True
    return wanted


def test_the_table_is_what_the_rule_leaves_of_scikit_learns(capsys: pytest.CaptureFixture[str]) -> None:
    whole = theirs.GridSearchCV(Guesses(), GRID, cv=CV).fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search = raced(workers=0)
    found, right = search.cv_results_, whole.cv_results_
    scores = np.column_stack([right[f"split{n}_test_score"] for n in range(10)])
    wanted = by_the_rule(scores, 2)
    assert not wanted.all() and found["n_splits_evaluated"].tolist() == wanted.sum(axis=1).tolist()
    for n in range(10):
        column = found[f"split{n}_test_score"]
        assert (~np.ma.getmaskarray(column)).tolist() == wanted[:, n].tolist()
        np.testing.assert_array_equal(column[wanted[:, n]], scores[wanted[:, n], n])
    full = wanted.all(axis=1)
    for name in ("mean_test_score", "std_test_score", "rank_test_score", "mean_fit_time"):
        assert (~found[name].mask).tolist() == full.tolist()
    np.testing.assert_array_equal(found["mean_test_score"][full], right["mean_test_score"][full])
    assert f"not corrected for the {(~full).sum()} that the race left" in str(search.winner_)
    assert search.best_index_ == whole.best_index_ and (search.predict(X) == whole.predict(X)).all()
    said, spared = capsys.readouterr().err, (~wanted).sum()
    assert f"race: {spared} of 400 fits spared" in said
    assert "kept in 95 % of searches and orders of folds" in said


@pytest.mark.slow
def test_a_folder_continues_without_a_race_and_with_it_again(tmp_path: Path) -> None:
    first = digest(raced(workers=2, results=tmp_path))
    assert len(journal_lines(tmp_path)) < 400
    assert table(raced(results=tmp_path, race=None)) == table(raced(workers=0, race=None))
    assert len(journal_lines(tmp_path)) == 400 and digest(raced(results=tmp_path)) == first == digest(raced(workers=0))


@pytest.mark.slow
@pytest.mark.parametrize("cv", [CV, theirs.ShuffleSplit(6, test_size=20, random_state=0)])
def test_the_report_of_the_journal_is_that_of_the_search(cv: Any, tmp_path: Path) -> None:
    """Also where all fits were made before, with those that the race does not want."""
    raced(cv=cv, results=tmp_path, workers=1, race=None)
    search = raced(cv=cv, results=tmp_path, workers=1)
    whole, page = search.cv_results_["n_splits_evaluated"] == search.n_splits_, (tmp_path / PAGE).read_text()
    assert report([str(tmp_path)]) == 0 and (tmp_path / PAGE).read_text() == page
    assert len(read_study(tmp_path).results) == 40 * search.n_splits_
    found = mpitune.load(tmp_path).winner_
    assert found is not None and np.isfinite(found.scores[:, 0]).sum() == whole.sum()
    assert f"not corrected for the {(~whole).sum()} that the race left" in str(search.winner_)
    assert str(search.winner_) == str(found) and found.candidate == search.best_index_


@pytest.mark.slow
def test_candidates_that_cost_nothing_stay(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of one forest leave together, and no part of a grid that is solved as one leaves."""
    forest = RandomForestClassifier(random_state=0, max_depth=1)
    grid = {"n_estimators": [1, 3, 9], "max_features": [1, 2, 3, 4], "min_samples_leaf": [1, 20, 60]}
    search = GridSearchCV(forest, grid, cv=CV, workers=0, race=0.95, refit=False).fit(X, Y)
    n = dict(zip(map(repr, search.cv_results_["params"]), search.cv_results_["n_splits_evaluated"], strict=True))
    sizes = [[n[repr({**p, "n_estimators": size})] for size in (1, 3, 9)] for p in search.cv_results_["params"]]
    assert all(len(set(those)) == 1 for those in sizes) and min(n.values()) < 10 == max(n.values())
    GridSearchCV(SVC(tol=1e-6), {"C": [1e-4, 1e-3, 1.0], "gamma": [0.1, 1]}, cv=CV, workers=0, race=0.95).fit(X, Y)
    assert "race: 0 of 60 fits spared;" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_fits_that_fail() -> None:
    """One that fails is left; where all fail, scikit-learn says so; scores that are no numbers are still warned of."""
    with pytest.warns(UserWarning, match="non-finite"):
        search = GridSearchCV(Guesses(fails=3), GRID, cv=CV, race=0.95, workers=0).fit(X, Y)
    assert search.cv_results_["n_splits_evaluated"][3] == 3 and search.best_score_ > 0.8
    with pytest.raises(ValueError, match="All the 20 fits failed"):
        GridSearchCV(Guesses(fails=1), {"number": [1, 1]}, cv=CV, race=0.95, workers=0).fit(X, Y)


def several(model: Any, x: Any, y: Any) -> dict[str, float]:
    return {"a": model.score(x, y), "b": 0.0}


def test_what_cannot_be_raced() -> None:
    for kind, arguments, error, why in (
        (GridSearchCV, dict(refit=lambda results: 0), UsageError, "callable refit"),
        (HalvingGridSearchCV, {}, UsageError, "in one round"),
        (GridSearchCV, dict(scoring=["accuracy", "f1_macro"], refit=False), UsageError, "needs one score"),
        (RandomizedSearchCV, dict(scoring=several, refit=False), UsageError, "needs one score"),
        (GridSearchCV, dict(race=1.0), ValueError, "race"),
    ):
        with pytest.raises(error, match=why):
            kind(Guesses(), GRID, **{"race": 0.9, "workers": 0, **arguments}).fit(X, Y)
    search = GridSearchCV(Guesses(), GRID, cv=CV, scoring=several, refit="a", race=0.95, workers=0).fit(X, Y)
    assert search.cv_results_["n_splits_evaluated"].min() < 10 and search.cv_results_["mean_test_b"].mask.any()
