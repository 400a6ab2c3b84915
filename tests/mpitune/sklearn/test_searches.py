"""The searches on the engine beside scikit-learn's: the same table, in this process, in workers, under mpirun."""

import doctest
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from inspect import cleandoc
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import sklearn.model_selection as theirs
from joblib import Parallel, delayed, parallel_config
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.ensemble import BaggingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from threadpoolctl import threadpool_info, threadpool_limits

import mpitune.joblib  # noqa: F401 - registers the backend
from mpitune import svm
from mpitune.errors import UsageError
from mpitune.processes.fork_server import ForkServer
from mpitune.sklearn import GridSearchCV
from mpitune.sklearn.fits.answers import decoded
from mpitune.sklearn.search.place import place_of
from mpitune.sklearn.search.signature import THEIRS
from mpitune.studies import run_study
from mpitune.trial import Evaluation
from tests.helpers import PATIENCE, journal_lines
from tests.mpitune.sklearn.iris import X, Y, caught, same, table


def _dot(a: Any, b: Any) -> Any:
    return a @ b.T


class Gram(TransformerMixin, BaseEstimator):
    """Scalar products with the samples that it was fitted to."""

    def fit(self, X: Any, y: Any = None) -> "Gram":
        self.seen_ = X
        return self

    def transform(self, X: Any) -> Any:
        return X @ self.seen_.T


def test_a_kernel_that_comes_out_of_a_pipeline_is_not_solved_as_one() -> None:
    model = Pipeline([("gram", Gram()), ("svc", SVC(kernel="precomputed", tol=1e-6))])
    reference = theirs.GridSearchCV(model, {"svc__C": [0.001, 1.0]}, cv=3).fit(X, Y)
    same(GridSearchCV(model, {"svc__C": [0.001, 1.0]}, cv=3, workers=0).fit(X, Y), reference)
    search = GridSearchCV(SVC(), {"kernel": [_dot, "rbf"]}, cv=3, workers=0).fit(X, Y)
    assert "one by one: 1 candidate, as the kernel is a Python function" in str(search.plan_)


def test_the_example_of_the_docstring_runs_and_scikit_learns_text_follows() -> None:
    ours, _, theirs_text = str(GridSearchCV.__doc__).partition(THEIRS)
    example = doctest.DocTestParser().get_doctest(ours, {}, "GridSearchCV", None, 0)
    result = doctest.DocTestRunner().run(example)
    assert (result.failed, result.attempted) == (0, 7)
    assert cleandoc(str(theirs.GridSearchCV.__doc__)) in theirs_text


class Sleepy(ClassifierMixin, BaseEstimator):
    def __init__(self, naps: float = 0.0):
        self.naps = naps

    def fit(self, X: Any, y: Any) -> Any:
        if self.naps < 0:
            os._exit(3)
        warnings.warn("it was woken too early", ConvergenceWarning, stacklevel=1)
        time.sleep(self.naps)
        self.classes_ = np.unique(y)
        return self

    def predict(self, X: Any) -> Any:
        return np.full(len(X), self.classes_[0])


def test_a_candidate_that_kills_its_worker_blocks_nothing() -> None:
    """And warnings of workers are issued here, once."""
    one_split = [(np.arange(0, 150, 2), np.arange(1, 150, 2))]
    search = GridSearchCV(Sleepy(), {"naps": [0.0, 0.01, -1.0]}, cv=one_split, workers=1, error_score=-1.0, refit=False)
    with pytest.warns(theirs._validation.FitFailedWarning, match="1 fits failed") as seen:
        search.fit(X, Y)
    first, second, third = search.cv_results_["mean_test_score"].tolist()
    assert first == second > 0.3 and third == -1.0
    assert len([w for w in seen if w.category is ConvergenceWarning]) == 1


SCALED = Pipeline([("scaler", StandardScaler()), ("svc", SVC())])


@pytest.mark.parametrize(
    ("place", "model", "grid", "how"),
    [
        ("here first", SVC(), {"C": [0.1, 1.0]}, {}),
        ("here first", SCALED, {"svc__C": [0.1, 1.0]}, {}),
        ("here first", SVC(), {"C": [0.1, 1.0]}, {"n_jobs": 2}),
        ("here first", SVC(), {"C": [0.1, 1.0]}, {"workers": 2}),
        ("workers", SVC(), {"C": [0.1, 1.0]}, {"workers": 2, "share": False}),
        ("here", SVC(), {"C": [0.1, 1.0]}, {"workers": 0}),
        ("workers", KNeighborsClassifier(), {"n_neighbors": [1]}, {"workers": 1}),
        *(("workers", SVC(), {"C": [1.0]}, asked) for asked in ({"gpu": "none"}, {"results": "r"})),
        ("workers", SVC(), {"C": [1.0]}, {"trial_timeout": 60.0}),
        ("workers", Sleepy(), {"naps": [0.0]}, {}),
        ("workers", Pipeline([("step", Gram()), ("svc", SVC())]), {"svc__C": [0.1]}, {}),
        ("workers", BaggingClassifier(Sleepy()), {"n_estimators": [1]}, {}),
        ("workers", SCALED, {"scaler": [StandardScaler(), None]}, {}),
    ],
)
def test_a_search_begins_here_only_where_its_fits_are_likely_to_be_short(
    place: str, model: Any, grid: Any, how: Any
) -> None:
    search, grouping, _ = caught(GridSearchCV(model, grid, cv=3, **how))
    assert place_of(search, grouping) == place
    many = [replace(task, args=(np.zeros((50_000, 4)), None)) for task in grouping.tasks]
    assert place_of(search, grouping.only(many)) == ("here" if place == "here" else "workers")


@pytest.mark.parametrize(("soon", "left"), [(0.5, 9), (4.5, 6), (5.5, 3), (99.0, 0)])
def test_workers_do_what_this_process_did_not_end_in_time(
    monkeypatch: pytest.MonkeyPatch, soon: float, left: int
) -> None:
    """Of three candidates that are fitted together all or none; the clock goes on by one each time it is read."""
    model, grid = KNeighborsClassifier(), {"n_neighbors": [1, 3, 5]}
    given: list[int] = []

    def study(folds: Any, options: Any) -> Any:
        given.append(len(folds.tasks))
        return run_study(folds, replace(options, workers=1))

    monkeypatch.setattr("mpitune.studies.run_study", study)
    monkeypatch.setattr("mpitune.sklearn.search.place.ALONE_S", soon)
    monkeypatch.setattr(
        "mpitune.sklearn.search.place.time", SimpleNamespace(monotonic=int, process_time=count().__next__)
    )
    same(GridSearchCV(model, grid, cv=3).fit(X, Y), theirs.GridSearchCV(model, grid, cv=3).fit(X, Y))
    assert sum(given) == left


def test_workers_are_forks_of_the_server_that_began_in_the_first_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has all that they need, so the study begins no other; a grid's compiled code is loaded there as well."""
    begun: list[ForkServer] = []

    class Noted(ForkServer):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            begun.append(self)

    monkeypatch.setattr("mpitune.processes.fork_server.ForkServer", Noted)
    monkeypatch.setattr("mpitune.processes.fork_server._servers", {})
    monkeypatch.setattr("mpitune.sklearn.search.place.FEW_SAMPLES", 0)
    monkeypatch.setattr("mpitune.sklearn.search.place.LONG_S", 0.0)
    monkeypatch.setattr("mpitune.sklearn.search.place.ALONE_S", 0.0)
    how = {"estimator": SVC(), "param_grid": {"C": [0.1, 300.0], "gamma": [0.1, 30.0]}, "scoring": "roc_auc"}
    same(*(own.fit(X, np.arange(150) % 2) for own in (GridSearchCV(**how, workers=1), theirs.GridSearchCV(**how))))
    assert len(begun) == 1 and begun[0].is_alive
    assert ("mpitune.svm.loaded" in begun[0].modules) == svm.is_compiled()
    begun[0].close()


def test_the_first_searches_do_not_wait_for_the_compiler(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """They make single fits, while the solver is compiled for later ones."""
    monkeypatch.setattr("mpitune.svm.is_ready", lambda: False)
    monkeypatch.setattr("mpitune.sklearn.fits.evaluator.solved", None)
    odd = np.where(np.arange(len(Y)) == 0, 0.5, Y)  # no label, and in one fold it is scored
    for model, grid, y in ((SVC(), {"C": [0.1, 1.0]}, odd), (SCALED, {"svc__C": [0.1, 1.0]}, Y)):
        how: Any = {"estimator": model, "param_grid": grid, "cv": 3, "refit": False, "error_score": -1.0}
        assert table(GridSearchCV(**how, workers=0).fit(X, y)) == table(theirs.GridSearchCV(**how).fit(X, y))
    assert caplog.text.count("fits are single ones until the solver of grids is compiled") == 2


def test_a_fit_that_never_ends_is_given_up_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A polynomial of high degree on samples that nobody scaled (scikit-learn's issues 13176 and 20547)."""
    monkeypatch.setattr("mpitune.svm.solved.LIMIT", 20_000)
    rng = np.random.default_rng(0)
    x, y = rng.normal(100, 1, (60, 2)), rng.integers(0, 2, 60)
    grid = [{"kernel": ["poly"], "degree": [4], "coef0": [1e4], "C": [1.0, 1e4]}, {"kernel": ["rbf"], "C": [1.0, 10.0]}]
    search = GridSearchCV(SVC(), grid, cv=2, workers=0, error_score=-1.0, refit=False)
    with (
        pytest.warns(ConvergenceWarning, match="max_iter=-1"),
        pytest.warns(theirs._validation.FitFailedWarning, match="(?s)4 fits failed.*own limit of iterations"),
    ):
        search.fit(x, y)
    assert search.cv_results_["mean_test_score"][:2].tolist() == [-1.0, -1.0]
    assert (search.cv_results_["mean_test_score"][2:] > 0.2).all()
    # A limit of the user's own: scored, as scikit-learn does.
    with pytest.warns(ConvergenceWarning, match="max_iter=3"):
        search = GridSearchCV(SVC(max_iter=3), {"C": [1.0]}, cv=2, workers=0, refit=False).fit(X, Y)
    assert search.cv_results_["mean_test_score"][0] > 0


def test_grids_of_other_kernels_are_solved_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = {"kernel": ["precomputed"], "C": [0.001, 1.0]}
    reference = theirs.GridSearchCV(SVC(tol=1e-6), grid, cv=3, refit=False).fit(X @ X.T, Y)
    monkeypatch.setattr("mpitune.sklearn.fits.evaluator._validation", None)  # no single fits
    search = GridSearchCV(SVC(tol=1e-6), grid, cv=3, refit=False, workers=0).fit(X @ X.T, Y)
    assert table(search) == table(reference)


def test_a_folder_continues_its_search_and_names_what_another_has_otherwise(tmp_path: Path) -> None:
    def fit(penalty: float = 1.0, weights: Any = None, **how: Any) -> GridSearchCV:
        how = {"cv": 3, "workers": 0, "results": tmp_path / "r", **how}
        return GridSearchCV(LogisticRegression(), {"C": [0.1, penalty]}, **how).fit(X, Y, sample_weight=weights)

    first = fit()
    first_line = journal_lines(tmp_path / "r")[0]
    assert first_line["params"] == {"C": 0.1} and first_line["segment"] == {"number": 0, "fold": 0}
    for verbose in (1, 2, 10):
        same(fit(verbose=verbose), first)
    assert len(journal_lines(tmp_path / "r")) == 6
    for how, said in (
        ({"error_score": "raise"}, "a study with error_score = nan, not raise: give another results folder$"),
        ({"return_train_score": True}, "a study with return_train_score = False, not True"),
        ({"cv": 4}, r"a study with cv = 3 splits \(\w+\), not 4 splits \(\w+\)"),
        ({"cv": theirs.KFold(3)}, "a study with cv = 3 splits"),
        ({"weights": np.ones(len(Y))}, r"a study with fit_params = none \(\w+\), not sample_weight \(\w+\)"),
        ({"scoring": "f1_macro"}, "a study with scoring = None, not 'f1_macro'"),
        ({"penalty": 2.0}, "c00001/f0 with C = 1.0, this program asks for 2.0"),
    ):
        with pytest.raises(UsageError, match=said):
            fit(**how)
    with pytest.raises(UsageError, match="trial c0/f0 has no value fit_time"):  # a line that others have written
        decoded(Evaluation("c0/f0"))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sequential", "threading", "loky"])
def test_each_outer_fold_has_a_folder_of_its_own_and_continues(backend: str, tmp_path: Path) -> None:
    """One after the other, in threads, and in processes."""
    search = GridSearchCV(LogisticRegression(max_iter=500), {"C": [0.1, 1.0]}, cv=2, workers=1)
    right = list(theirs.cross_val_score(search, X, Y, cv=3))
    search.set_params(results=str(tmp_path / "r"))
    kept = []
    for _ in range(2):
        with parallel_config(backend, n_jobs=2):
            assert list(theirs.cross_val_score(search, X, Y, cv=3, error_score="raise")) == right
        kept.append(sorted(path.parent for path in (tmp_path / "r").rglob("journal.jsonl")))
        assert [len(journal_lines(folder)) for folder in kept[-1]] == [4] * 3
    assert kept[0] == kept[1] and sum(folder.name.startswith("data-") for folder in kept[0]) >= 2


class Noting(LogisticRegression):
    """It notes joblib's backend of each fit, and each copy."""

    seen: ClassVar[list[str]] = []

    def __sklearn_clone__(self) -> Any:
        self.seen.append("copied")
        return super().__sklearn_clone__()

    def fit(self, X: Any, y: Any) -> Any:
        self.seen.append(type(Parallel()._backend).__name__)
        return super().fit(X, y)


class Parallel3(theirs.KFold):
    """A splitter that calls joblib, before the search does and in its middle."""

    def get_n_splits(self, *args: Any, **kwargs: Any) -> int:
        return sum(Parallel(2)(delayed(int)(number) for number in (0, 1, 2)))

    def split(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        assert self.get_n_splits() == 3
        return super().split(*args, **kwargs)


def test_estimators_and_the_refit_have_the_users_own_joblib_backend() -> None:
    """The search has all its tasks at once, whatever `pre_dispatch` says, and a copy for them and for each fit."""
    arguments: dict[str, Any] = {"cv": Parallel3(3), "n_jobs": 1, "pre_dispatch": 1}
    grid = {"C": [0.1, 1.0]}
    reference = theirs.GridSearchCV(LogisticRegression(max_iter=500), grid, **arguments).fit(X, Y)
    Noting.seen.clear()
    with parallel_config("threading"):
        search = GridSearchCV(model := Noting(max_iter=500), grid, workers=0, **arguments).fit(X, Y)
    same(search, reference)
    assert search.estimator is model and Noting.seen == ["copied", *["copied", "ThreadingBackend"] * (3 * 2 + 1)]
    with pytest.raises(ValueError, match="n_jobs == 0"):
        GridSearchCV(Noting(), grid, n_jobs=0).fit(X, Y)


ENDS = """
import os, sys, threading
from sklearn.tree import DecisionTreeClassifier
from mpitune.sklearn import GridSearchCV, HalvingGridSearchCV
from tests.mpitune.sklearn.iris import X, Y

class Two(Exception):
    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")

class Tree(DecisionTreeClassifier):
    def fit(self, X, y):
        if how == "dies":
            os._exit(1)
        if how == "raises" and len(X) == len(Y):
            raise Two(1, 2)
        if how == "exits" and len(X) == len(Y):
            sys.exit(3)
        self.lock_ = threading.Lock()
        return super().fit(X, y)

for how in ("raises", "exits", "dies", "fits"):
    search = GridSearchCV(Tree(random_state=0), {"max_depth": [1, 2]}, cv=2, workers=1)
    try:
        print(how, search.fit(X, Y).best_params_, hasattr(search, "best_estimator_"))
    except BaseException as error:
        print(how, type(error).__name__)
"""


@pytest.mark.slow
def test_all_ranks_go_on_after_a_refit_whose_end_cannot_be_sent(program: Any, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(ENDS)
    done = program(tmp_path / "script.py", ranks=2, timeout=PATIENCE)
    ends = [*["raises Two"] * 2, *["exits SystemExit"] * 2, *["dies StudyError"] * 2]
    fits = [f"fits {{'max_depth': 2}} {here}" for here in (False, True)]
    assert sorted(done.stdout.splitlines()) == sorted([*ends, *fits])
    assert done.stderr.count("best_estimator_ is on rank 0 alone, as it cannot be pickled: TypeError") == 1


class Counts(BaseEstimator):
    """Scores the threads that libraries have in its fit."""

    def __init__(self, a: int = 1):
        self.a = a

    def fit(self, X: Any, y: Any) -> Any:
        self.threads_ = max(library["num_threads"] for library in threadpool_info())
        return self

    def score(self, X: Any, y: Any) -> int:
        return self.threads_


@pytest.mark.parametrize("results", [None, "kept"])
def test_fits_in_this_process_have_one_thread_each_as_in_workers(results: str | None, tmp_path: Path) -> None:
    """The refit has those of the script, as scikit-learn's."""
    with threadpool_limits(2):
        search = GridSearchCV(Counts(), {"a": [1, 2]}, cv=2, workers=0, results=results and tmp_path / results)
        assert search.fit(X, Y).cv_results_["mean_test_score"].tolist() == [1.0, 1.0]
        assert search.best_estimator_.threads_ == 2
