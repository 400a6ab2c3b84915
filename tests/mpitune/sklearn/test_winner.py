"""What a winner is worth, beside a slow reference; the default as a candidate; careful choices."""

import pickle
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.model_selection as theirs
from scipy import stats
from sklearn.base import clone
from sklearn.metrics import make_scorer, mean_squared_error
from sklearn.neighbors import KernelDensity, KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from mpitune import load
from mpitune.errors import UsageError
from mpitune.figures.panels import Bars
from mpitune.figures.winner import Winner, draws
from mpitune.report.page import report_of
from mpitune.report.parts import facts_of
from mpitune.report.parts import winner_of as winner_panel
from mpitune.sklearn import GridSearchCV, HalvingGridSearchCV, RandomizedSearchCV, careful, winner_of
from mpitune.sklearn.search.folds import Folds
from mpitune.sklearn.search.racing import Race
from mpitune.storage.history import read_study
from tests.mpitune.sklearn.iris import X, Y

TREE = DecisionTreeClassifier(random_state=0)
GRID = {"max_depth": [1, 2, 3, None], "min_samples_leaf": [1, 5, 20]}


def by_all_draws(scores: np.ndarray) -> float:
    """Chosen on k folds drawn with replacement, scored on those left out: all k ** k draws, one by one."""
    k, found = scores.shape[1], []
    for drawn in product(range(k), repeat=k):
        left = sorted(set(range(k)) - set(drawn))
        if left:
            sums = scores[:, list(drawn)].sum(axis=1)
            found.append(scores[sums.tolist().index(max(sums)), left].mean())
    return float(np.mean(found))


@pytest.mark.parametrize("k", [2, 3, 5])
def test_the_correction_is_that_of_all_draws(k: int) -> None:
    """Also where one that diverges is a candidate: others are not taken for equal because of it."""
    rng = np.random.default_rng(k)
    for _ in range(8):
        scores = rng.integers(-3, 4, (rng.integers(2, 9), k)) / 4.0  # exact, so ties are ties; of either sign
        best = scores.mean(axis=1).max()
        assert Winner(scores, [{"a": 1}] * len(scores)).corrected == pytest.approx(min(best, by_all_draws(scores)))
        far = np.vstack([scores, np.full(k, -1e20)])
        assert Winner(far, [{"a": 1}] * len(far)).corrected == Winner(scores, [{"a": 1}] * len(scores)).corrected
        least = Winner(-scores, [{"a": 1}] * len(scores), maximize=False)
        assert least.corrected == pytest.approx(-min(best, by_all_draws(scores))) and least.score == -best
    counts, weights = draws(k)
    assert weights @ counts == pytest.approx(np.ones(k)) and len(counts) < k**k


def test_ties_within_rounding_are_those_of_scikit_learn() -> None:
    """Its `best_index_` is the first of rank 1, and a race that would leave nobody keeps that one."""
    rng, seen = np.random.default_rng(0), 0
    for _ in range(60):
        k, n = int(rng.integers(2, 12)), int(rng.integers(2, 30))
        scores = rng.permuted(np.tile(rng.integers(1, 20, k) / 30, (n, 1)), axis=1)  # equal means, but for rounding
        dummy = theirs.GridSearchCV(DecisionTreeClassifier(), {"a": list(range(n))})
        dummy.multimetric_ = False
        out = [{"fit_time": 0.0, "score_time": 0.0, "test_scores": score} for score in scores.ravel()]
        results = dummy._format_results([{"a": i} for i in range(n)], k, out)
        assert winner_of(results).candidate == results["rank_test_score"].argmin()
        found, exact = (Winner(table, [{"a": 1}] * n) for table in (scores, np.rint(30 * scores)))
        assert found.candidate != exact.candidate or found.corrected == pytest.approx(exact.corrected / 30)
        seen += len(set(scores.mean(axis=1))) > 1
        race = Race(range(n), k)
        while pairs := race.next_folds():
            for number, fold in pairs:
                race.tell(number, -scores[0, fold] * (1 + rng.choice([0, 1e-15])))
        assert race.kept() == set(range(n))
    assert seen > 30


def test_many_folds_are_drawn_and_give_nearly_what_all_draws_give(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.random.default_rng(0).normal(size=(12, 7))
    exact = Winner(scores, [{"a": 1}] * 12).corrected
    monkeypatch.setattr("mpitune.figures.winner.EXACT", 6)
    monkeypatch.setattr("mpitune.figures.winner.DRAWS_AT_ONCE", 100)
    found = Winner(scores, [{"a": 1}] * 12).corrected
    assert found == Winner(scores, [{"a": 1}] * 12).corrected != exact
    assert found == pytest.approx(exact, abs=4 * scores.std() / np.sqrt(1000))


@pytest.mark.parametrize(
    ("cv", "repeats", "ratio"),
    [
        (5, 1, 1 / 4),
        (theirs.RepeatedKFold(n_splits=4, n_repeats=3, random_state=0), 3, 1 / 3),
        (theirs.ShuffleSplit(6, test_size=45, random_state=0), 1, 3 / 7),
    ],
)
def test_the_winner_of_a_regression_is_that_of_the_formulas(cv: Any, repeats: int, ratio: float) -> None:
    rng = np.random.default_rng(1)
    y, grid = 100 * X[:, 0] + rng.normal(size=len(X)) * 90, {"max_depth": [1, 2, 3, 5], "min_samples_leaf": [1, 30]}
    score = {"scoring": "neg_mean_squared_error", "cv": cv}
    search = GridSearchCV(DecisionTreeRegressor(random_state=0), grid, default=True, **score).fit(X, y)
    results = theirs.GridSearchCV(DecisionTreeRegressor(random_state=0), [{}, grid], **score).fit(X, y).cv_results_
    k = search.n_splits_
    scores = np.array([results[f"split{n}_test_score"] for n in range(k)]).T
    best, t = scores.mean(axis=1).argmax(), stats.t(k - 1)
    found = pickle.loads(pickle.dumps(search)).winner_
    assert found.candidate == best and found.score == pytest.approx(scores[best].mean())
    if k == 12:
        assert found.corrected == pytest.approx(
            min(found.score, np.mean([by_all_draws(part) for part in np.split(scores, 3, axis=1)]))
        )
    half = t.ppf(0.975) * np.sqrt((1 / k + ratio) * scores[best].var(ddof=1))
    assert found.interval == pytest.approx((found.corrected - half, min(found.corrected + half, 0)))
    variances = [(scores[n] - scores[0]).var(ddof=1) for n in found.as_good if n]
    half = t.ppf(0.975) * np.sqrt(1 / k + ratio) * max(variances[0] ** 0.5, np.median(np.sqrt(variances)))
    gain = found.corrected - scores[0].mean()  # what the same draws leave of it
    assert (found.default, found.gain) == pytest.approx((scores[0].mean(), gain))
    assert found.gain_interval == pytest.approx((gain - half, gain + half))
    worse = (scores[best] - scores).mean(axis=1)
    limits = t.ppf(0.95) * np.sqrt((1 / k + ratio) * (scores[best] - scores).var(axis=1, ddof=1))
    assert set(found.as_good) == set(np.flatnonzero(worse <= limits))
    told = winner_of(results, "score", **({"repeats": repeats} if k != 6 else {"ratio": ratio}))
    assert (told.corrected, told.as_good) == (found.corrected, found.as_good)
    assert ("in common" in str(found)) is (k == 6)


def test_what_has_no_ground_is_said() -> None:
    def said(scores: Any) -> str:
        return str(Winner(np.array(scores, float), [{}, {"a": 1}, {"a": 2}][: len(scores)]))

    assert said([[1, 2, 3]]).startswith("best of 1: {}: 2.0000; no choice to correct for (95 %: ")
    assert "one fold says nothing" in said([[1], [2]]) and "without an interval" in said([[1, 2], [2, 3]])
    assert "3 of 3; 1 has the same score, the first was taken" in said([[1, 2, 3], [3, 2, 1], [2, 1, 1]])
    assert said([[1, 2, 3], [np.nan, 9, 9], [5, 6, 8]]).startswith("best of 3, 1 left out: {'a': 2}: 6.3333")
    assert "that is more than chance" in said([[1, 2, 3], [4, 5, 6.1]])
    with pytest.raises(ValueError, match="no candidate has a finite score"):
        said([[np.nan, 1.0]])
    for small in (1e-10, 1e-7):
        assert not re.search(r"0\.0000|e-0?\d\d\d", said([[-3 * small] * 3, [-2 * small, -small, -small]]))
    equal = str(Winner(np.ones((2, 3)), [{"a": 1}, {}]))
    assert "the default: 1.0000; it has the same score" in equal and "better" not in equal
    assert "in common" not in str(Winner(np.ones((2, 1)), [{}, {"a": 1}], ratio=0.5))


def test_r2_is_not_corrected_but_its_gain_is() -> None:
    scores = np.random.default_rng(0).normal(0.3, 0.05, (30, 5))
    share, r2 = (Winner(scores, [{}, *[{"a": 1}] * 29], name=name) for name in ("accuracy", "r2"))
    assert share.corrected < share.score == r2.score == r2.corrected and share.gain == r2.gain
    assert "its score is not corrected, as r2 divides by the variance" in str(r2) and not share.not_corrected


def test_coins_are_hardly_ever_more_than_chance() -> None:
    """Folds of 12 coins, whose truth is a half: if the gain is not corrected, it is said in a fifth of searches."""
    said, kept = 0, np.random.default_rng(0)
    for _ in range(200):
        scores = kept.binomial(12, 0.5, (200, 5)) / 12
        said += "is more than chance" in str(Winner(scores, [{}, *[{"a": 1}] * 199]))
    assert said <= 2
    scores = kept.normal(size=(20, 12))  # folds that are hard for all change nothing, though draws are few
    found, hard = (Winner(s, [{}, *[{"a": 1}] * 19], name="r") for s in (scores, scores + 1e3 * kept.normal(size=12)))
    assert hard.score - hard.corrected == pytest.approx(found.score - found.corrected)
    assert hard.gain == pytest.approx(found.gain) and hard.as_good == found.as_good


EVERY = np.arange(150)
WINDOWS, OVERLAP, PLAIN = "windows train on a part", "test samples in common", ""


@pytest.mark.parametrize(
    ("name", "scores", "ends"),
    [
        ("accuracy", (0.9, 1.0, 1.0), (0.5, 1.0)),
        ("AUC", (0.9, 1.0, 1.0), (0.5, 1.0)),
        ("accuracy", (90, 100, 100), (60, 120)),  # in per cent, so it is another score
        ("r2", (-3, 0.9, 1.0), (-9, 1.0)),
        *((name, (-1.0, -0.9, 0.9), (-1.0, 1.0)) for name in ("matthews_corrcoef", "matthews", "cohen_kappa")),
        ("fbeta", (0.9, 1.0, 1.0), (0.5, 1.0)),
        ("neg_log_loss", (-0.1, -0.5, -0.01), (-2, 0)),
        ("error", (0.1, 0.0, 0.0), (0.0, 0.4)),
        ("profit", (0.9, 1.0, 1.0), (0.5, 1.2)),
    ],
)
def test_intervals_end_at_the_bounds_of_a_score(name: str, scores: Any, ends: Any) -> None:
    low, high = Winner(np.array([scores], float), [{"a": 1}], name=name).interval
    for end, bound in zip((low, high), ends, strict=True):
        assert end == bound if bound in (0.0, 1.0, -1.0) and name != "profit" else abs(end - bound) < abs(bound)


@pytest.mark.parametrize(
    ("model", "how", "name"),
    [
        (TREE, {}, "accuracy"),
        (KNeighborsClassifier(), {}, "accuracy"),
        (make_pipeline(DecisionTreeRegressor()), {}, "r2"),
        (TREE, {"scoring": "roc_auc_ovr"}, "roc_auc_ovr"),
        (TREE, {"scoring": make_scorer(mean_squared_error, greater_is_better=False)}, "neg_mean_squared_error"),
        (TREE, {"scoring": {"auc": "roc_auc_ovr", "acc": "accuracy"}, "refit": "auc"}, "roc_auc_ovr"),
        (TREE, {"scoring": lambda model, X, y: model.score(X, y)}, ""),
        (KernelDensity(), {}, ""),
        (theirs.GridSearchCV(TREE, [{}], scoring="f1_macro"), {}, ""),  # whose `score` is not the accuracy
    ],
)
def test_the_score_is_named(model: Any, how: Any, name: str) -> None:
    for kind in (theirs.GridSearchCV, GridSearchCV):
        text = str(winner_of(kind(model, [{}], cv=3, **how).fit(X, Y)))
        assert text.startswith(f"best of 1{f' by {name}' if name else ''}: {{}}: ")


def test_the_simplest_of_those_as_good() -> None:
    refit = careful.simplest("max_depth", "-min_samples_leaf")
    assert clone(GridSearchCV(TREE, GRID, refit=refit)).refit == pickle.loads(pickle.dumps(refit)) == refit
    search = theirs.GridSearchCV(TREE, [{}, GRID], cv=5, refit=refit).fit(X, Y)
    good = winner_of(search.cv_results_).as_good
    assert search.best_params_ == {"max_depth": 2, "min_samples_leaf": 20}
    assert search.best_index_ in good and 0 in good and search.best_index_ != good[0]
    flat = {"mean_test_score": [1.0] * 4, "params": [{}, {"a": None}, {"a": 3}, {"a": 9}]}
    flat |= {f"split{n}_test_score": np.ma.masked_array([1.0] * 4, [0, 0, 0, 1]) for n in range(3)}
    assert careful.simplest("-a")(flat) == 2
    flat["params"][2] = {"b": 1}
    assert careful.simplest("a")(flat) == 1
    assert careful(flat) == 0  # the default, which is as good


@pytest.mark.slow
def test_careful_knows_the_splits_as_the_winner_does() -> None:
    differ = 0
    for seed in range(4):
        for cv in (
            theirs.RepeatedKFold(n_splits=3, n_repeats=5, random_state=seed),
            theirs.ShuffleSplit(8, train_size=0.5, random_state=seed),
        ):
            search = GridSearchCV(TREE, GRID, cv=cv, refit=careful.simplest("-min_samples_leaf"), workers=0).fit(X, Y)
            leaves = {n: search.cv_results_["params"][n]["min_samples_leaf"] for n in search.winner_.as_good}
            assert search.best_params_["min_samples_leaf"] == max(leaves.values())
            differ += set(winner_of(search.cv_results_).as_good) != set(leaves)
    assert differ  # from what one cross-validation with so many folds would say


def test_a_race_keeps_the_default_and_says_whom_it_left() -> None:
    """The default is far worse than others, which all candidates like it have to leave for."""
    stump = DecisionTreeClassifier(max_depth=1, random_state=0)
    grid = {"max_depth": [1, 3], "random_state": list(range(20))}
    search = GridSearchCV(stump, grid, cv=10, race=0.95, default=True, workers=0).fit(X, Y)
    evaluated = search.cv_results_["n_splits_evaluated"]
    assert evaluated[0] == 10 > max(evaluated[1:21]) and search.winner_.default < 0.7 < search.best_score_
    assert f"not corrected for the {(evaluated < 10).sum()} that the race left, so" in str(search.winner_)
    assert f" of the {(evaluated == 10).sum()} with all scores" in str(search.winner_)
    few = GridSearchCV(KNeighborsClassifier(), {"n_neighbors": [1, 3, 5]}, cv=5, race=0.95, workers=0).fit(X, Y)
    assert "left" not in str(few.winner_)  # the race spares nothing


@pytest.mark.parametrize(
    ("cv", "said"),
    [
        (theirs.TimeSeriesSplit(5), WINDOWS),
        ([(EVERY[:n], EVERY[n : n + 20]) for n in (40, 60, 80)], WINDOWS),
        (theirs.StratifiedShuffleSplit(4, test_size=0.2, random_state=0), OVERLAP),
        (theirs.PredefinedSplit(np.where(EVERY % 10 < 3, EVERY % 10, -1)), PLAIN),
        (theirs.RepeatedStratifiedKFold(n_splits=5, n_repeats=3, random_state=0), PLAIN),
        (3, PLAIN),
    ],
)
def test_what_the_splits_are_is_known_of_any_search(cv: Any, said: str) -> None:
    order, how = np.random.default_rng(0).permutation(150), {"cv": cv, "scoring": "neg_log_loss"}
    grid = {"max_depth": [1, 2, 3], "min_samples_leaf": [1, 9]}
    ours = GridSearchCV(TREE, grid, workers=0, **how).fit(X[order], Y[order])
    own = theirs.GridSearchCV(TREE, grid, **how).fit(X[order], Y[order])
    found = winner_of(own)
    assert str(found) == str(ours.winner_) and "by neg_log_loss" in str(found)
    assert bool(ours.winner_.not_corrected) is (said == WINDOWS) <= (ours.winner_.corrected == ours.winner_.score)
    assert all((words in str(ours.winner_)) is (words == said) for words in (WINDOWS, OVERLAP))
    assert ("taken for one cross-validation" in str(winner_of(own.cv_results_))) is (found.n_folds in (4, 15))
    assert winner_of(own, level=0.5).interval.low > found.interval.low


@pytest.mark.slow
def test_halving_and_several_scores() -> None:
    search = HalvingGridSearchCV(TREE, [{}, GRID], cv=5, random_state=0, workers=0).fit(X, Y)
    last, text = search.n_candidates_[-1], str(search.winner_)
    assert search.winner_.candidate == search.best_index_ and "of the last iteration" in text
    assert text.startswith(f"best of {last} by accuracy: ") and f": {last} of {last}" in text
    mixed, cv = np.random.default_rng(0).permutation(150), theirs.TimeSeriesSplit(3)
    series = HalvingGridSearchCV(TREE, GRID, cv=cv, random_state=0, workers=0).fit(X[mixed], Y[mixed])
    assert WINDOWS in str(series.winner_)
    scores: dict[str, Any] = {"scoring": ["accuracy", "f1_macro"], "cv": 5}
    several = GridSearchCV(TREE, GRID, refit="f1_macro", **scores).fit(X, Y)
    assert several.winner_.score == several.best_score_
    with pytest.raises(AttributeError, match=r"as winner_of\(search, 'accuracy'\)"):
        _ = several.set_params(refit=False).winner_
    assert not hasattr(several, "winner_") and not hasattr(GridSearchCV(TREE, GRID), "winner_")
    own = GridSearchCV(TREE, GRID, refit=careful.on("f1_macro"), **scores).fit(X, Y)
    assert own.winner_.candidate == several.best_index_ == own.best_index_


RESULTS = {
    **{f"split{n}_test_score": [1, 1] for n in range(4)}, "params": [{}, {"a": 1}], "mean_test_score": [1, 1],
}  # fmt: skip
DRAWN = theirs.ShuffleSplit(4, test_size=30, random_state=0)
OF_SPLITS = "give ratio=, the samples of a fold by those of its training, or repeats="


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: winner_of(RESULTS, repeats=2.5), "repeats=2.5: 4 splits are not so many repeats"),  # type: ignore
        (lambda: winner_of(RESULTS, ratio=-1), "ratio=-1: give a number above 0"),
        (lambda: winner_of(RESULTS, level="95"), "level='95': give one between 0 and 1"),  # type: ignore[arg-type]
        (lambda: winner_of(RESULTS, "f1"), r"no score 'f1', but score: name one of them, as winner_of\(search, 's"),
        (lambda: winner_of(theirs.GridSearchCV(TREE, GRID)), "GridSearchCV has no cv_results_: give a fitted search"),
        (lambda: winner_of(theirs.GridSearchCV(TREE, GRID, cv=DRAWN).fit(X, Y)), OF_SPLITS),
        (lambda: winner_of(theirs.GridSearchCV(TREE, GRID, cv=DRAWN.split(X)).fit(X, Y)), OF_SPLITS),
        (lambda: careful.simplest("depth")(RESULTS), "careful.simplest: no candidate has a parameter 'depth'"),
        (lambda: GridSearchCV(TREE, {"criterion": ["gini"]}, refit=careful.simplest("criterion")).fit(X, Y),
         "careful.simplest: criterion='gini' is no number"),
        (lambda: GridSearchCV(TREE, GRID, refit=careful, scoring=["accuracy", "f1_macro"]).fit(X, Y),
         r"careful: name one of the scorers, such as careful.on\('accuracy'\)"),
        (lambda: HalvingGridSearchCV(TREE, GRID, default=True).fit(X, Y), "default=True is for searches in one round"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_said(call: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        call()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_journal_says_what_the_search_says(tmp_path: Path) -> None:
    """In the report, and loaded: of equal candidates, one that fails, `careful`, a halving search, another score."""
    cv = theirs.RepeatedStratifiedKFold(n_splits=3, n_repeats=2, random_state=0)
    draws = {"max_depth": stats.randint(1, 4), "min_samples_leaf": stats.randint(1, 4)}
    grid, noise = {"max_depth": [0, 3, 1.5, 2]}, np.random.default_rng(0).permutation(Y)
    scores: dict[str, Any] = {"scoring": ["accuracy", "f1_macro"], "refit": "f1_macro"}
    for number, (search, y) in enumerate(
        [
            (GridSearchCV(TREE, GRID, cv=cv, default=True, refit=careful), Y),
            (GridSearchCV(TREE, GRID, cv=4, default=True, refit=careful), noise),
            (RandomizedSearchCV(TREE, draws, n_iter=12, cv=4, random_state=0), Y),
            (GridSearchCV(TREE, grid, cv=4, share=False, race=0.95), Y),
            (GridSearchCV(TREE, GRID, cv=4, **scores), Y),
            (GridSearchCV(TREE, GRID, cv=theirs.TimeSeriesSplit(3)), Y),
            (GridSearchCV(TREE, GRID, cv=2), Y),
        ]
    ):
        folder = tmp_path / str(number)
        own = search.set_params(results=folder, workers=1).fit(X, y).winner_
        loaded, page = load(folder).winner_, (folder / "report.html").read_text()
        assert (loaded.candidate, loaded.interval, loaded.as_good) == (own.candidate, own.interval, own.as_good)
        assert loaded.corrected == own.corrected and str(loaded).splitlines()[1:] == str(own).splitlines()[1:]
        assert loaded.refitted == search.best_index_ and "What the winner is worth" in page
        assert own.not_corrected in page and (own.not_corrected or f"{own.corrected:.4g}" in page)
    HalvingGridSearchCV(TREE, GRID, cv=4, random_state=0, results=tmp_path / "h", workers=1).fit(X, Y)
    assert "candidates of the last iteration" in str(load(tmp_path / "h").winner_)
    series = (tmp_path / "5" / "report.html").read_text()
    assert "flatters" not in series and "the best of 12" in series
    history = read_study(tmp_path / "1")
    study = report_of(tmp_path / "1", history, Folds(), None)
    assert study.winner is not None and study.winner.refitted == 0 != study.winner.candidate
    assert "refitted parameters" in [fact.name for fact in facts_of(study)]
    (bars,) = winner_panel(study)
    assert isinstance(bars, Bars) and "the default" in bars.bars and len(bars.marked) == len(study.winner.as_good)
    study = report_of(tmp_path / "1", replace(history, complete=False), Folds(), None)
    assert "best score's parameters" in [fact.name for fact in facts_of(study)]
