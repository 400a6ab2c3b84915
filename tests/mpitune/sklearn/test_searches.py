"""The searches on the engine beside scikit-learn's: the same table, in this process, in workers, under mpirun."""

import doctest
import os
import re
import subprocess
import sys
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
from sklearn.metrics import accuracy_score, make_scorer
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

import mpitune.joblib
from mpitune.errors import UsageError
from mpitune.sklearn import GridSearchCV, HalvingGridSearchCV
from mpitune.sklearn.search.signature import THEIRS
from mpitune.storage.history import studies_in
from mpitune.studies import run_study
from tests.helpers import PATIENCE, ROOT, journal_lines
from tests.mpitune.sklearn.iris import WholeGrid, X, Y, same, table

GRID = {"C": [0.1, 1.0, 10.0], "gamma": [0.1, 1.0, "scale"]}


@pytest.mark.parametrize("with_scaler", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_grid_of_svc(monkeypatch: pytest.MonkeyPatch, with_scaler: bool, weighted: bool) -> None:
    """Solved together unless that is turned off; the same scores either way."""
    estimator: Any = SVC(tol=1e-6)
    grid: dict[str, Any] = GRID
    if with_scaler:
        estimator = Pipeline([("scale", StandardScaler()), ("svc", estimator)])
        grid = {"scale__with_mean": [True, False], **{f"svc__{name}": values for name, values in GRID.items()}}
    fit_params = {}
    if weighted:
        fit_params = {"svc__sample_weight" if with_scaler else "sample_weight": np.linspace(0.5, 2.0, len(Y))}
    reference = theirs.GridSearchCV(estimator, grid, cv=3).fit(X, Y, **fit_params)
    fits = []
    fit = SVC.fit

    def counted(self: SVC, X: Any, y: Any, sample_weight: Any = None) -> Any:  # searches look for the names
        fits.append(1)
        return fit(self, X, y, sample_weight)

    monkeypatch.setattr(SVC, "fit", counted)
    same(GridSearchCV(estimator, grid, cv=3, workers=0, return_train_score=False).fit(X, Y, **fit_params), reference)
    assert len(fits) == 1  # the refit
    fits.clear()
    same(GridSearchCV(estimator, grid, cv=3, workers=0, accelerate=False).fit(X, Y, **fit_params), reference)
    assert len(fits) == 1 + 3 * len(reference.cv_results_["params"])


def test_a_precomputed_kernel_in_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = {"kernel": ["precomputed"], "C": [0.001, 1.0]}
    reference = theirs.GridSearchCV(SVC(tol=1e-6), grid, cv=3, refit=False).fit(X @ X.T, Y)
    monkeypatch.setattr("mpitune.sklearn.fits.evaluator._validation", None)
    search = GridSearchCV(SVC(tol=1e-6), grid, cv=3, refit=False, workers=0).fit(X @ X.T, Y)
    assert table(search) == table(reference)


def _dot(a: Any, b: Any) -> Any:
    return a @ b.T


class Gram(TransformerMixin, BaseEstimator):
    """Scalar products with the samples that it was fitted to."""

    def fit(self, X: Any, y: Any = None) -> "Gram":
        self.seen_ = X
        return self

    def transform(self, X: Any) -> Any:
        return X @ self.seen_.T


def test_why_a_grid_is_not_solved_together_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    model = Pipeline([("gram", Gram()), ("svc", SVC(kernel="precomputed", tol=1e-6))])
    reference = theirs.GridSearchCV(model, {"svc__C": [0.001, 1.0]}, cv=3).fit(X, Y)
    same(GridSearchCV(model, {"svc__C": [0.001, 1.0]}, cv=3, workers=0, verbose=1).fit(X, Y), reference)
    GridSearchCV(SVC(), {"kernel": [_dot, "rbf"]}, cv=3, workers=0, verbose=1).fit(X, Y)
    said = capsys.readouterr().err
    assert "6 of 6 fits do not use the shared SVM solver: a precomputed kernel comes out of a Pipeline" in said
    assert "3 of 6 fits do not use the shared SVM solver: the kernel is a Python function" in said


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


@pytest.mark.parametrize("naps", [(0.0, 0.01, -1.0), pytest.param((0.0, 0.01, 3600.0, -1.0), marks=pytest.mark.slow)])
def test_a_candidate_that_kills_its_worker_or_never_ends_blocks_nothing(naps: tuple[float, ...]) -> None:
    """And warnings of workers are issued here, once."""
    one_split = [(np.arange(0, 150, 2), np.arange(1, 150, 2))]
    search = GridSearchCV(
        Sleepy(),
        {"naps": naps},
        cv=one_split,
        workers=1,
        trial_timeout=20.0 if 3600.0 in naps else 60.0,  # a fit that ends may take seconds on a busy machine
        error_score=-1.0,
        refit=False,
    )
    with pytest.warns(theirs._validation.FitFailedWarning, match=f"{len(naps) - 2} fits failed") as seen:
        search.fit(X, Y)
    first, second, *others = search.cv_results_["mean_test_score"].tolist()
    assert first == second > 0.3 and set(others) == {-1.0}
    assert len([w for w in seen if w.category is ConvergenceWarning]) == 1


class StudyBegins(Exception):
    pass


def test_a_search_begins_here_only_where_its_fits_are_likely_to_be_short(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(*_: Any) -> Any:
        raise StudyBegins

    monkeypatch.setattr("mpitune.sklearn.search.searches.run_study", begin)
    monkeypatch.setattr("mpitune.sklearn.search.place.SOON", 1e9)
    grid = {"C": [0.1, 1.0]}
    same(GridSearchCV(SVC(), grid, cv=3).fit(X, Y), theirs.GridSearchCV(SVC(), grid, cv=3).fit(X, Y))
    scaled = Pipeline([("scaler", StandardScaler()), ("svc", SVC())])
    GridSearchCV(scaled, {"svc__C": [0.1, 1.0]}, cv=3).fit(X, Y)
    GridSearchCV(SVC(), grid, cv=3, n_jobs=2).fit(X, Y)
    for asked in ({"workers": 1}, {"gpu": "none"}, {"trial_timeout": 60.0}):
        with pytest.raises(StudyBegins):
            GridSearchCV(SVC(), grid, cv=3, **asked).fit(X, Y)
    many = np.arange(50_000) % 150
    own_step = Pipeline([("step", Gram()), ("svc", SVC())])
    for model, searched, rows in (
        (Sleepy(), {"naps": [0.0]}, slice(None)),
        (own_step, {"svc__C": [0.1]}, slice(None)),
        (BaggingClassifier(Sleepy()), {"n_estimators": [1]}, slice(None)),
        (scaled, {"scaler": [StandardScaler(), None]}, slice(None)),
        (SVC(), grid, many),
    ):
        with pytest.raises(StudyBegins):
            GridSearchCV(model, searched, cv=3).fit(X[rows], Y[rows])


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

    monkeypatch.setattr("mpitune.sklearn.search.searches.run_study", study)
    monkeypatch.setattr("mpitune.sklearn.search.place.SOON", soon)
    monkeypatch.setattr(
        "mpitune.sklearn.search.place.time", SimpleNamespace(monotonic=int, process_time=count().__next__)
    )
    same(GridSearchCV(model, grid, cv=3).fit(X, Y), theirs.GridSearchCV(model, grid, cv=3).fit(X, Y))
    assert sum(given) == left


FIRST_SEARCHES = """
import sys, time
import sklearn.model_selection as theirs
from sklearn.datasets import load_iris
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from mpitune import svm
from mpitune.sklearn import GridSearchCV, HalvingGridSearchCV
X, y = load_iris(return_X_y=True)
scaled, grid = make_pipeline(StandardScaler(), SVC()), {"svc__C": [0.1, 1.0, 10.0], "svc__gamma": [0.1, 1.0]}
cases = [(SVC(), {name[5:]: values for name, values in grid.items()}), (scaled, grid)]
ways = [{}, {"workers": 0}, {"workers": 2}, {"workers": 2, "results": "r"}]
for expected in (False, True):
    if svm.is_compiled() != expected:
        sys.exit("not compiled in time")
    for number, (model, grid) in enumerate(cases):
        right = theirs.GridSearchCV(model, grid).fit(X, y).cv_results_["mean_test_score"].tolist()
        for way in ways:
            more = {name: f"{sys.argv[1]}/{number}{expected}" if name == "results" else way[name] for name in way}
            search = GridSearchCV(model, grid, **more).fit(X, y)
            assert search.cv_results_["mean_test_score"].tolist() == right
            assert "numba" not in sys.modules or svm.is_compiled()
            if expected and way == {"workers": 0}:
                assert "numba" in sys.modules
    end = time.monotonic() + 600
    while not svm.is_compiled() and time.monotonic() < end:
        time.sleep(0.1)
"""


@pytest.mark.slow
def test_the_first_searches_do_not_wait_for_the_compiler(tmp_path: Path) -> None:
    """They make single fits in this process and in workers, while the solver is compiled for later ones."""
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "TMPDIR": str(tmp_path)}  # locks of its own, too
    environ.pop("NUMBA_CACHE_DIR", None)
    command = [sys.executable, "-c", FIRST_SEARCHES, tmp_path]
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True)
    if "not compiled in time" in done.stderr:
        pytest.skip("the compiler gives way to others, and this machine is busy")
    assert done.returncode == 0, done.stderr
    assert "fits are single ones until" in done.stderr and "compiling the solver" not in done.stderr


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
    with pytest.warns(
        ConvergenceWarning, match="max_iter=3"
    ):  # a limit of the user's own: scored, as scikit-learn does
        search = GridSearchCV(SVC(max_iter=3), {"C": [1.0]}, cv=2, workers=0, refit=False).fit(X, Y)
    assert search.cv_results_["mean_test_score"][0] > 0


HASHED = """
import sys, json
from sklearn.preprocessing import FunctionTransformer
from sklearn.pipeline import make_pipeline
from sklearn.linear_model import LogisticRegression
from sklearn.datasets import load_iris
from mpitune.sklearn import GridSearchCV, HalvingGridSearchCV
factor = float(sys.argv[1])
model = make_pipeline(FunctionTransformer(lambda x, factor=factor: x * factor), LogisticRegression())
GridSearchCV(model, {"logisticregression__C": [1.0]}, cv=2, workers=1, results="r").fit(*load_iris(return_X_y=True))
"""


SETS = """
import enum, sys
import numpy as np
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier
from mpitune import Choice, Float, search
from mpitune.sklearn import GridSearchCV
Colour = enum.Enum("Colour", "RED GREEN BLUE")
odd = frozenset({frozenset({"x", "y"}), frozenset({"z"}), "a", 1, *Colour})
words = {"cat", "dog", "sun", "sea: {, }"}
class Model(LogisticRegression):
    def __init__(self, C=1.0, words=words, odd=odd, keys={"deep": [words], 1: odd}):
        super().__init__(C=C)
        self.words, self.odd, self.keys = words, odd, keys
class Shown(Model):
    def __repr__(self):
        return f"<its words: {self.words}>"
seeded = DecisionTreeClassifier(random_state=np.random.RandomState(3))
GridSearchCV(seeded, {"max_depth": [1, 2]}, cv=2, workers=0, results="seeded").fit(*load_iris(return_X_y=True))
for model in (Model(), Shown()):
    grid = {"words": [words, {"cat", "dog"}], "odd": [odd], "keys": [{"a": odd}]}
    GridSearchCV(model, grid, cv=2, workers=0, results=type(model).__name__).fit(*load_iris(return_X_y=True))
space = {"x": Float(0, 1), "a": Choice(odd, frozenset(words)), "b": {"deep": [words, odd]}}
search(lambda t: t.params["x"], space, strategy="random", n_trials=4, minimize="loss", workers=0, results="study")
"""


@pytest.mark.slow
def test_what_holds_sets_continues_in_a_process_that_orders_them_otherwise(program: Any, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SETS)
    for seed in "12":
        program(tmp_path / "script.py", cwd=tmp_path, env={"PYTHONHASHSEED": seed})
    assert [len(journal_lines(tmp_path / name)) for name in ("seeded", "Model", "Shown", "study")] == [4] * 4


PATCHED = """
from sklearnex import patch_sklearn
patch_sklearn(verbose=False)
from sklearn.datasets import load_iris
from sklearn.svm import SVC
from mpitune.sklearn import GridSearchCV
GridSearchCV(SVC(), {"C": [0.1, 1]}, cv=3, workers=1).fit(*load_iris(return_X_y=True))
"""


@pytest.mark.slow
def test_workers_have_the_configuration_of_a_library_in_place_of_scikit_learn(program: Any) -> None:
    pytest.importorskip("sklearnex")
    program("-c", PATCHED)


@pytest.mark.slow
def test_a_folder_knows_an_estimator_with_a_function_again(program: Any, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(HASHED)
    for seed in "12":
        program(tmp_path / "script.py", "2.0", cwd=tmp_path, env={"PYTHONHASHSEED": seed})
        (tmp_path / "script.py").write_text(f"# which is another line\n{HASHED}")
    (tmp_path / "script.py").write_text(HASHED.replace("x * factor", "x + factor"))
    changed = program(tmp_path / "script.py", "2.0", cwd=tmp_path).stderr
    assert " FunctionTransformer.func, lambdas changed since the known results (2) were made" in changed
    refused = program(tmp_path / "script.py", "3.0", cwd=tmp_path, status=2)
    assert "script.py: r holds a study with estimator = " in refused.stderr


@pytest.mark.parametrize(("scoring", "refit"), [(None, True), (["accuracy", "neg_log_loss"], "neg_log_loss")])
def test_the_report_answers_with_the_candidate_that_is_refitted(tmp_path: Path, scoring: Any, refit: Any) -> None:
    grid = {"n_neighbors": [1, 5, 90], "p": [1, 2]}
    search = GridSearchCV(KNeighborsClassifier(), grid, scoring=scoring, refit=refit, results=tmp_path).fit(X, Y)
    page = re.sub(r"\s", " ", (tmp_path / "report.html").read_text())
    best = ", ".join(f"{name} = {value}" for name, value in search.best_params_.items())
    assert f"<dt>best parameters</dt><dd>{best}" in page and f"{search.best_score_:.4g}" in page
    assert (tmp_path / "trials.csv").read_text().startswith("key,param_split,param_n_neighbors,param_p,value_")


def test_the_report_names_no_candidate_where_a_function_has_chosen(tmp_path: Path) -> None:
    grid = {"n_neighbors": [1, 5, 90]}
    GridSearchCV(KNeighborsClassifier(), grid, refit=lambda results: 2, results=tmp_path).fit(X, Y)
    page = (tmp_path / "report.html").read_text()
    assert "no candidate is called the best" in page and "<dt>best parameters</dt>" not in page


def test_a_halving_searchs_folder_is_read_as_any_studys(tmp_path: Path, program: Any) -> None:
    grid = {"max_depth": [1, 2, 3, 4]}
    how: dict[str, Any] = {"min_resources": 30, "random_state": 0, "cv": 3, "workers": 1, "results": tmp_path / "r"}
    HalvingGridSearchCV(DecisionTreeClassifier(random_state=0), grid, **how).fit(X, Y)
    trials = mpitune.load(tmp_path / "r").trials
    first, second = (trials.index.str.startswith(f"iteration{n}/") for n in (0, 1))
    assert first.sum() == 12 and second.sum() == 6 and (first | second).all()
    program("-m", "mpitune", "report", tmp_path / "r")
    assert (tmp_path / "r" / "report.html").read_text().count("<article") == 2
    assert program("-m", "mpitune", "status", tmp_path / "r").stdout.count("trials     ") == 2


def test_a_folder_keeps_the_search_and_refuses_another(tmp_path: Path) -> None:
    def search(*penalties: float) -> GridSearchCV:
        return GridSearchCV(LogisticRegression(), {"C": penalties}, cv=3, workers=0, results=tmp_path / "r")

    first = search(0.1, 1.0).fit(X, Y)
    journal = journal_lines(tmp_path / "r")
    assert len(journal) == 6 and journal[0]["params"] == {"split": 0, "C": 0.1}
    same(search(0.1, 1.0).fit(X, Y), first)
    assert len(journal_lines(tmp_path / "r")) == 6
    with pytest.raises(UsageError, match="c00001/f0 with C = 1.0, this program asks for 2.0"):
        search(0.1, 2.0).fit(X, Y)


@pytest.mark.parametrize("backend", ["threading", pytest.param("loky", marks=pytest.mark.slow), "mpitune"])
def test_outer_folds_at_a_time_have_folders_of_their_own(backend: str, tmp_path: Path) -> None:
    """In threads, in processes, and in workers of this package; those after another know its results."""
    search = GridSearchCV(LogisticRegression(max_iter=500), {"C": [0.1, 1.0]}, cv=2, workers=1)
    right = list(theirs.cross_val_score(search, X, Y, cv=3))
    search.set_params(results=str(tmp_path / "r"))
    for _ in range(2):
        with parallel_config(backend, n_jobs=2):
            assert list(theirs.cross_val_score(search, X, Y, cv=3, error_score="raise")) == right
        folders = sorted((tmp_path / "r").iterdir())
        assert [len(journal_lines(folder)) for folder in folders] == [4] * 3 and studies_in(tmp_path / "r") == folders
    assert list(theirs.cross_val_score(search, X, Y, cv=3)) == right
    assert sorted((tmp_path / "r").iterdir()) == folders


def test_each_outer_fold_has_a_folder_of_its_own_and_continues(tmp_path: Path) -> None:
    def scores(**how: Any) -> list[float]:
        search = GridSearchCV(LogisticRegression(max_iter=500), {"C": [0.1, 1.0]}, cv=2, workers=0, **how)
        return list(theirs.cross_val_score(search, X, Y, cv=3, error_score="raise"))

    kept: list[list[Path]] = []
    for _ in range(2):
        assert scores(results=tmp_path / "r") == scores()
        kept.append(sorted(tmp_path.rglob("journal.jsonl")))
    assert kept[0] == kept[1] and [len(journal_lines(path.parent)) for path in kept[0]] == [4] * 3
    assert kept[0][0].parent.name.startswith("data-") and kept[0][2].parent == tmp_path / "r"
    (tmp_path / "r" / "journal.jsonl").write_text("not a journal\n")
    with pytest.raises(UsageError, match="is not a journal header"):
        scores(results=tmp_path / "r")


def test_what_changes_no_result_does_not_count_and_what_does_is_named(tmp_path: Path) -> None:
    def fit(verbose: int = 0, weights: Any = None, **how: Any) -> GridSearchCV:
        how = {"cv": 3, "workers": 0, "results": tmp_path / "r", "verbose": verbose, **how}
        return GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, **how).fit(X, Y, sample_weight=weights)

    first = fit()
    for verbose in (1, 2, 10):
        same(fit(verbose=verbose), first)
    assert len(journal_lines(tmp_path / "r")) == 6
    for how, said in (
        ({"error_score": "raise"}, "error_score = nan, not raise: give another results folder$"),
        ({"return_train_score": True}, "return_train_score = False, not True"),
        ({"cv": 4}, r"cv = 3 splits \(\w+\), not 4 splits \(\w+\)"),
        ({"cv": theirs.KFold(3)}, "cv = 3 splits"),
        ({"weights": np.ones(len(Y))}, r"fit_params = none \(\w+\), not sample_weight \(\w+\)"),
        ({"scoring": "f1_macro"}, "scoring = None, not 'f1_macro'"),
    ):
        with pytest.raises(UsageError, match=f"r holds a study with {said}"):
            fit(**how)


class Noting(LogisticRegression):
    """It notes joblib's backend of each fit."""

    seen: ClassVar[list[str]] = []

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
    """And the search has all its tasks at once, whatever `pre_dispatch` says."""
    arguments: dict[str, Any] = {"cv": Parallel3(3), "n_jobs": 1, "pre_dispatch": 1}
    grid = {"C": [0.1, 1.0]}
    reference = theirs.GridSearchCV(LogisticRegression(max_iter=500), grid, **arguments).fit(X, Y)
    Noting.seen.clear()
    with parallel_config("threading"):
        search = GridSearchCV(Noting(max_iter=500), grid, workers=0, **arguments).fit(X, Y)
    same(search, reference)
    assert Noting.seen == ["ThreadingBackend"] * (3 * 2 + 1)
    with pytest.raises(ValueError, match="n_jobs == 0"):
        GridSearchCV(Noting(), grid, n_jobs=0).fit(X, Y)


def test_an_estimator_that_does_a_whole_grid() -> None:
    scoring = make_scorer(accuracy_score)
    search = GridSearchCV(WholeGrid(), {"label": [0, 7]}, cv=3, workers=0, refit=False, scoring=scoring).fit(X, Y)
    assert search.cv_results_["mean_test_score"].round(6).tolist() == [0.333333, 0.0]


THREADS = """
import numpy as np
from sklearn.base import BaseEstimator
from threadpoolctl import threadpool_info
from mpitune.sklearn import GridSearchCV, HalvingGridSearchCV

def threads():
    return max(library["num_threads"] for library in threadpool_info())

class Counts(BaseEstimator):
    def __init__(self, a=1):
        self.a = a
    def fit(self, X, y):
        self.threads_ = threads()
        return self
    def score(self, X, y):
        return self.threads_

before = threads()
for more in ({}, {"results": "kept"}):
    search = GridSearchCV(Counts(), {"a": [1, 2]}, cv=2, workers=0, **more).fit(np.eye(8), np.arange(8) % 2)
    print(before, *search.cv_results_["mean_test_score"], search.best_estimator_.threads_, threads())
"""


def test_fits_in_this_process_have_one_thread_each_as_in_workers(program: Any, tmp_path: Path) -> None:
    """The refit has those of the script, as scikit-learn's."""
    (tmp_path / "threads.py").write_text(THREADS)
    two = {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    done = program(tmp_path / "threads.py", cwd=tmp_path, env=two)
    assert done.stdout.splitlines().count("2 1.0 1.0 2 2") == 2, done.stdout


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
