"""What is shared, what is not and why, and that a shared search is scikit-learn's in all else."""

import logging
import re
import textwrap
import tracemalloc
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sklearn
import sklearn.model_selection as theirs
from sklearn.decomposition import PCA
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, StandardScaler

from mpitune.sklearn import GridSearchCV
from mpitune.sklearn.fits import graph_walk
from mpitune.sklearn.search import folds
from tests.helpers import ROOT, journal_lines
from tests.mpitune.sklearn.iris import X, Y, caught, same
from tests.mpitune.sklearn.sharing.beside import compared

TWO_LEVELS = Pipeline([("scale", StandardScaler()), ("pca", PCA(svd_solver="full")), ("knn", KNeighborsClassifier())])
GRID: dict[str, Any] = {"pca__n_components": [1, 2, 3], "knn__n_neighbors": [1, 3, 9], "knn__p": [1, 2]}
TREE = """\
40 step fits instead of 270
    StandardScaler: 18 candidates
        PCA, one fit for n_components 1, 2, 3: 18 candidates
            KNeighborsClassifier p=1, one fit for n_neighbors 1, 3, 9: 3 candidates, 3 times
            KNeighborsClassifier p=2, one fit for n_neighbors 1, 3, 9: 3 candidates, 3 times"""


def test_the_plan_of_a_pipeline_shares_on_each_level(capsys: pytest.CaptureFixture[str], caplog: Any) -> None:
    search = compared(caplog, TWO_LEVELS, GRID, X, Y, cv=5, verbose=1)
    assert str(search.plan_) == repr(search.plan_) == TREE  # a notebook shows its repr
    assert TREE in capsys.readouterr().err


def test_the_time_of_a_fit_is_divided_by_the_candidates_that_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only fits move: 6 s for 6 candidates, 12 s for 6, and twice 3 s for 3."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(graph_walk, "time", SimpleNamespace(perf_counter=lambda: clock.now))

    def takes(seconds: float, method: Any) -> Any:
        def longer(*args: Any, **kwargs: Any) -> Any:
            clock.now += seconds
            return method(*args, **kwargs)

        return longer

    monkeypatch.setattr(StandardScaler, "fit", takes(6.0, StandardScaler.fit))
    monkeypatch.setattr(PCA, "fit_transform", takes(12.0, PCA.fit_transform))
    monkeypatch.setattr(KNeighborsClassifier, "fit", takes(3.0, KNeighborsClassifier.fit))
    grid = {"pca__n_components": [1, 2], "knn__n_neighbors": [1, 3, 9]}
    found = GridSearchCV(TWO_LEVELS, grid, cv=2, workers=0, refit=False).fit(X, Y).cv_results_
    assert found["mean_fit_time"].tolist() == [6 / 6 + 12 / 6 + 3 / 3] * 6
    assert clock.now == 2 * (6 + 12 + 2 * 3) == 2 * found["mean_fit_time"].sum()
    assert not found["std_fit_time"].any()


@pytest.mark.parametrize("share", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_workers_share_and_give_the_same_table(share: Any, tmp_path: Path) -> None:
    """One split, so that its batch is divided between the two workers."""
    arguments: dict[str, Any] = {"cv": [(np.arange(0, 150, 2), np.arange(1, 150, 2))], "return_train_score": True}
    grid = GRID if share else {name: values for name, values in GRID.items() if not name.startswith("pca")}
    search = GridSearchCV(TWO_LEVELS, grid, share=share, workers=2, results=tmp_path, **arguments).fit(X, Y)
    assert {line["place"][2] for line in journal_lines(tmp_path)} == {0, 1}
    same(search, theirs.GridSearchCV(TWO_LEVELS, grid, **arguments).fit(X, Y))
    same(search, GridSearchCV(TWO_LEVELS, grid, share=share, workers=0, **arguments).fit(X, Y))


class Mine(KNeighborsClassifier):
    """A user's own, which may compute something else."""


@pytest.mark.parametrize(
    ("estimator", "grid", "arguments", "reason"),
    [
        (Mine(), {"n_neighbors": [1, 2]}, {}, "Mine shares no fit"),
        (KNeighborsClassifier(), {"n_neighbors": [1, 2]}, {"share": False}, "share is False"),
        (KNeighborsClassifier(), {"n_neighbors": [1]}, {}, "no other candidate has a fit in common with it"),
        (LogisticRegression(), {"C": [1.0, 2.0]}, {}, "LogisticRegression shares no fit"),
        (
            KNeighborsClassifier(),
            {"n_neighbors": [1, 2]},
            {"scoring": lambda model, X, y: float(type(model) is KNeighborsClassifier)},
            "the scorer is a function of its own, which may look into the estimator",
        ),
        (
            Pipeline([("scale", StandardScaler()), ("knn", KNeighborsClassifier())], memory="unused"),
            {"knn__n_neighbors": [1, 2]},
            {},
            "the Pipeline has a memory of its own, or is of another class",
        ),
    ],
    ids=["subclass", "off", "single", "no family", "scorer", "memory"],
)
def test_what_is_not_shared(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, estimator: Any, grid: Any, arguments: Any, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    search = GridSearchCV(estimator, grid, cv=2, workers=0, refit=False, **arguments).fit(X, Y)
    assert set(search.plan_.alone.values()) == {reason} and search.plan_.n_saved == 0
    assert (search.cv_results_["mean_test_score"] > 0.5).all()


def test_without_a_seed_no_prefix_is_shared_which_is_said_once() -> None:
    grid = {"n_estimators": [2, 4], "max_depth": [1, 2]}
    with pytest.warns(UserWarning, match="RandomForestClassifier share no fit: random_state is no integer") as seen:
        search = GridSearchCV(RandomForestClassifier(), grid, cv=2, workers=0, refit=False).fit(X, Y)
    assert len(seen) == 1 and search.plan_.n_saved == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GridSearchCV(RandomForestClassifier(), grid, cv=2, workers=0, refit=False).fit(X, Y)


def _doubled(x: np.ndarray) -> np.ndarray:
    x *= 2.0
    return x


@pytest.mark.parametrize(
    "arguments", [{"return_train_score": True}, {"scoring": ["accuracy", "neg_log_loss"]}], ids=str
)
def test_samples_that_the_first_step_wrote_to_are_scored_as_they_are_then(arguments: dict[str, Any]) -> None:
    """A Pipeline of scikit-learn is given the same array again, by the next scorer, too."""
    grid = {"knn__n_neighbors": [1, 4]}
    for step in (MinMaxScaler(copy=False), FunctionTransformer(_doubled)):
        model = Pipeline([("nothing", "passthrough"), ("step", step), ("knn", KNeighborsClassifier())])
        tables = [
            kind(model, grid, cv=3, refit=False, **own, **arguments).fit(X + 1.0, Y).cv_results_
            for kind, own in ((GridSearchCV, {"workers": 0}), (theirs.GridSearchCV, {}))
        ]
        for name in (name for name in tables[1] if "score" in name and "time" not in name):
            np.testing.assert_array_equal(tables[0][name], tables[1][name])


def test_a_pipeline_that_hands_on_weights_of_scores_is_asked_itself() -> None:
    """It refuses to, unless its last step says that it wants them."""
    with sklearn.config_context(enable_metadata_routing=True):
        steps = [one.set_fit_request(sample_weight=False) for one in (StandardScaler(), RidgeClassifier())]
        model = Pipeline(list(zip(("scale", "ridge"), steps, strict=True)))
        search = GridSearchCV(model, {"ridge__alpha": [0.1, 10.0]}, cv=2, refit=False, workers=0, error_score="raise")
        with pytest.raises(UnsetMetadataPassedError):
            search.fit(X, Y, sample_weight=np.ones(len(Y)))


def test_the_plan_that_the_pages_show_is_the_plan_of_their_search(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "sharing.md").read_text()
    (script,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(script.replace("GridSearchCV(model, grid)", "GridSearchCV(model, grid, workers=0)"), {})
    plan = capsys.readouterr().out
    assert textwrap.indent(plan, "    ") in page
    assert f"```text\n{plan}```" in (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_between_steps_there_are_the_samples_of_one_path(caplog: Any) -> None:
    """Of ten sizes on 8 MB of samples, two thirds of which are fitted to, no two results are in memory together."""
    samples = np.random.default_rng(0).normal(size=(2000, 500))
    model = Pipeline([("pca", PCA(svd_solver="covariance_eigh")), ("last", DummyClassifier())])
    search = GridSearchCV(model, {"pca__n_components": list(range(490, 500))}, cv=3, workers=0, refit=False)
    tracemalloc.start()
    try:
        with caplog.at_level(logging.INFO, logger="mpitune.sklearn.fits.graph_walk"):
            search.fit(samples, np.arange(2000) % 2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert search.plan_.n_fits == 3 * 11 and not caplog.text
    assert peak < 5 * samples.nbytes


def test_costs_of_batches_count_fits() -> None:
    """What all candidates of a batch share is apart; a setting costs little beside a fit."""
    study = folds.Folds.of(*caught(GridSearchCV(TWO_LEVELS, GRID, cv=2)))
    (batches,) = (next(search) for search in study.searches())
    assert [len(batch) for batch in batches] == [18, 18]  # the scaler and the PCA serve all
    assert study.shared_cost(batches[0], 2) == 2 and study.scheduling().cost_uncertainty == 1
    parts = study.split_batch(batches[0])
    assert [len(part) for part in parts] == [3] * 6
    assert [round(sum(map(study.cost, part)), 2) for part in parts] == [1.09] * 6
    forests = study.of(*caught(GridSearchCV(RandomForestClassifier(), {"n_estimators": [10, 300]}, cv=2)))
    assert [forests.cost(trial) for (trial,) in next(next(iter(forests.searches())))] == [10, 300, 10, 300]
