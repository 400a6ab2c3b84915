"""scikit-learn's callbacks, since version 1.9: wherever a fit is made, they hear of it as in one process."""

import os
import re
import signal
import textwrap
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import sklearn.model_selection as theirs
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import mpitune.joblib  # noqa: F401 - registers the backend
from mpitune.processes import callbacks
from mpitune.processes.process import WORKERS_HERE
from mpitune.sklearn import GridSearchCV, HalvingGridSearchCV
from tests.helpers import wait_until
from tests.mpitune.sklearn.iris import X, Y, same, table

callback = pytest.importorskip("sklearn.callback")
transport = pytest.importorskip("sklearn.callback._transport")
progress_bar = pytest.importorskip("sklearn.callback._progressbar")

GRID = {"logisticregression__C": [0.01, 0.1, 1.0]}


class Notes:
    """A callback of a user's own, which hears of all fits below a search, and stops one after some iterations."""

    max_propagation_depth = None

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.n_setups = self.n_teardowns = 0
        self.handle = transport.open_listener(self.hear, owner=self)

    def hear(self, message: Any) -> None:
        self.heard.append(message)

    def setup(self, estimator: Any, context: Any) -> None:
        self.n_setups += 1

    def teardown(self, estimator: Any, context: Any) -> None:
        self.n_teardowns += 1

    def on_fit_task_begin(self, estimator: Any, context: Any, *, X: Any = None) -> None:
        transport.send(self.handle, ("begin", _path(context), None if X is None else X.shape))

    def on_fit_task_end(self, estimator: Any, context: Any) -> bool:
        transport.send(self.handle, ("end", _path(context), type(estimator).__name__))
        return bool(context.parent and context.parent.estimator_name == "LogisticRegression" and context.task_id > 8)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Path) or name == "handle"}


def _path(context: Any) -> tuple[int, ...]:
    return (*_path(context.parent), context.task_id) if context.parent else (context.task_id,)


@contextmanager
def _out_of_reach(*handles: Any) -> Iterator[None]:
    """The sockets of callbacks are not where other processes look for them, as on another host."""
    for handle in handles:
        os.rename(handle.address, f"{handle.address}.away")
    try:
        yield
    finally:
        for handle in handles:
            os.rename(f"{handle.address}.away", handle.address)


def _rows(monitor: Any) -> list[Any]:
    return list(monitor.get_logs(include_lineage=True).data)


def _searched(kind: Any, **arguments: Any) -> tuple[Any, list[Any], list[Any]]:
    """A fitted search, the rows of its monitor, and what a callback of the search has noted, sorted."""
    monitor, notes = callback.ScoringMonitor(scoring="accuracy"), Notes()
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=20).set_callbacks(monitor))
    search = kind(model, GRID, cv=3, **arguments).set_callbacks(notes)
    with warnings.catch_warnings(), _out_of_reach(monitor._listener_handle, notes.handle):
        warnings.simplefilter("ignore")
        search.fit(X, Y)
    assert (notes.n_setups, notes.n_teardowns) == (1, 1)
    return search, _rows(monitor), sorted(notes.heard, key=str)


@pytest.mark.parametrize("workers", [0, None, 2])
@pytest.mark.parametrize("keeps", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_they_hear_of_each_fit(workers: int | None, keeps: bool, tmp_path: Path) -> None:
    right, rows, notes = _searched(theirs.GridSearchCV)
    results = tmp_path / "results" if keeps else None
    ours, our_rows, our_notes = _searched(GridSearchCV, workers=workers, results=results)
    same(ours, right)
    assert our_rows == rows and len(rows) > 50
    assert our_notes == notes and len(notes) > len(rows)


@pytest.mark.parametrize(
    "kind", [theirs.GridSearchCV, theirs.HalvingGridSearchCV, pytest.param(HalvingGridSearchCV, marks=pytest.mark.slow)]
)
def test_they_hear_of_fits_of_searches_in_rounds_and_of_scikit_learns_own(kind: Any) -> None:
    right = theirs.GridSearchCV if kind is theirs.GridSearchCV else theirs.HalvingGridSearchCV
    more: dict[str, Any] = {} if right is theirs.GridSearchCV else {"random_state": 0}
    wanted, rows, notes = _searched(right, **more)
    with joblib.parallel_config("mpitune", n_jobs=2):
        ours, our_rows, our_notes = _searched(kind, **more, **({} if kind is right else {"workers": 1}))
    same(ours, wanted)
    assert our_rows == rows and our_notes == notes


def test_each_call_of_a_function_is_heard_of() -> None:
    """cross_val_score has no callbacks, so each fit is a run of its own."""

    def scored() -> tuple[list[float], list[str]]:
        monitor = callback.ScoringMonitor(scoring="accuracy")
        model = LogisticRegression(max_iter=5).set_callbacks(monitor)
        with warnings.catch_warnings(), _out_of_reach(monitor._listener_handle):
            warnings.simplefilter("ignore")
            scores = theirs.cross_val_score(model, X, Y, cv=4)
        return scores.tolist(), sorted(str(log.data) for log in monitor.get_logs(select="all"))

    right = scored()
    with joblib.parallel_config("mpitune", n_jobs=2):
        assert scored() == right
    assert len(right[1]) == 4


class Killer(Notes):
    """Kills the first worker that has made some iterations of a fit, once."""

    def __init__(self, flag: Path) -> None:
        super().__init__()
        self.flag = flag

    def on_fit_task_end(self, estimator: Any, context: Any) -> bool:
        if WORKERS_HERE in os.environ and context.task_id == 3 and type(estimator) is LogisticRegression:
            try:
                self.flag.touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().on_fit_task_end(estimator, context)


@pytest.mark.parametrize("how", ["search", pytest.param("backend", marks=pytest.mark.slow)])
def test_a_killed_worker_costs_no_row_and_doubles_none(how: str, tmp_path: Path) -> None:
    found = []
    for flag, kind, more in (
        (tmp_path, theirs.GridSearchCV, {}),
        (tmp_path / "flag", *((GridSearchCV, {"workers": 2}) if how == "search" else (theirs.GridSearchCV, {}))),
    ):
        killer, monitor = Killer(flag), callback.ScoringMonitor(scoring="accuracy")
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=20).set_callbacks(monitor))
        search = kind(model, GRID, cv=3, **more).set_callbacks(killer)
        with warnings.catch_warnings(), joblib.parallel_config("mpitune", n_jobs=2 if flag != tmp_path else 1):
            warnings.simplefilter("ignore")
            search.fit(X, Y)
        assert (killer.n_setups, killer.n_teardowns) == (1, 1)
        found.append((search.cv_results_["mean_test_score"].tolist(), _rows(monitor), sorted(killer.heard, key=str)))
    assert (tmp_path / "flag").exists()
    assert found[0] == found[1]


class Bar(Notes):
    """As a progress bar, and each fit goes on once the script has heard that it began."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def hear(self, message: Any) -> None:
        (self.folder / message["event"]).touch()

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        if context.estimator_name == "LogisticRegression" and not context.max_subtasks:
            name = "-".join(map(str, _path(context)))
            progress_bar.send(self.handle, {"event": name})
            assert wait_until((self.folder / name).exists)

    def on_fit_task_end(self, estimator: Any, context: Any) -> bool:
        return False


@pytest.mark.parametrize("kind", [GridSearchCV, theirs.GridSearchCV])
def test_what_a_progress_bar_shows_comes_at_once(kind: Any, tmp_path: Path) -> None:
    bar = Bar(tmp_path)
    search = kind(LogisticRegression(max_iter=3), {"C": [0.1, 1.0]}, cv=2).set_callbacks(bar)
    if kind is GridSearchCV:
        search.set_params(workers=1)
    with warnings.catch_warnings(), _out_of_reach(bar.handle), joblib.parallel_config("mpitune", n_jobs=2):
        warnings.simplefilter("ignore")
        search.fit(X, Y)
    assert len(list(tmp_path.iterdir())) > 12
    assert (search.cv_results_["mean_test_score"] > 0).all()


def test_a_message_that_looks_like_that_of_a_progress_bar_comes_with_its_answer() -> None:
    at_once: list[bytes] = []
    with callbacks.relayed(at_once.append) as taken:
        for send, name in ((transport.send, "own"), (progress_bar.send, "bar")):
            send(transport.ListenerHandle(name, b""), {"event": "begin"})
    assert [len(at_once), b"bar" in at_once[0], b"own" in taken()] == [1, True, True]


def test_a_results_folder_continues_with_other_callbacks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What callbacks have heard is no setting of a study, nor code that has changed. Known fits are not heard of."""
    first = _searched(GridSearchCV, workers=1, results=tmp_path)
    then = _searched(GridSearchCV, workers=1, results=tmp_path)
    same(then[0], first[0])
    assert "changed since" not in caplog.text and "12 trials known" not in caplog.text
    assert 0 < len(then[1]) < len(first[1])  # of the refit


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize(
    "model, grid",
    [
        (KNeighborsClassifier(), {"n_neighbors": [1, 3, 5], "weights": ["uniform", "distance"]}),
        (RandomForestClassifier(random_state=0), {"n_estimators": [2, 4]}),
        (SVC(), {"C": [0.1, 1.0, 10.0]}),
    ],
)
def test_callbacks_of_the_search_alone_hear_of_shared_fits_as_of_single_ones(
    model: Any, grid: Any, workers: int
) -> None:
    """The estimator has no hooks, so they hear of the begin and the end of each fit, and nothing is lost by sharing."""
    heard, tables = [], []
    for kind, more in ((theirs.GridSearchCV, {}), (GridSearchCV, {"workers": workers})):
        notes = Notes()
        search = kind(model, grid, cv=3, **more).set_callbacks(notes)
        with warnings.catch_warnings(record=True) as seen, _out_of_reach(notes.handle):
            warnings.simplefilter("always")
            search.fit(X, Y, **({"sample_weight": np.ones(len(Y))} if isinstance(model, SVC) else {}))
        said = {str(warning.message).split(". ")[0] for warning in seen if "callbacks" in str(warning.message)}
        assert said == {f"The estimator {type(model).__name__} does not support callbacks"}
        heard.append(sorted(notes.heard, key=str))
        tables.append(table(search))
    assert isinstance(model, SVC) or search.plan_.shares
    assert heard[0] == heard[1] and tables[0] == tables[1]


IN_A_JOB = """
    import warnings
    from sklearn.callback import ProgressBar, ScoringMonitor
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score
    {imports}

    warnings.simplefilter("ignore")
    X, y = load_iris(return_X_y=True)
    monitor = ScoringMonitor(scoring="accuracy")
    model = LogisticRegression(max_iter=20).set_callbacks(monitor)
    search = GridSearchCV(model, {{"C": [0.01, 0.1, 1.0]}}, cv=4, n_jobs={jobs}).set_callbacks(ProgressBar())
    search.fit(X, y)
    rows = monitor.get_logs().data
    scores = cross_val_score(model, X, y, cv=12, n_jobs={jobs})
    runs = sorted(str(log.data) for log in monitor.get_logs(select="all"))
    assert search.best_estimator_._skl_callbacks == [monitor]
    print("found", search.cv_results_["mean_test_score"], rows, scores.mean(), len(runs), runs, flush=True)
"""
THEIRS, OURS = "from sklearn.model_selection import GridSearchCV", "from mpitune.sklearn import GridSearchCV"


def job(folder: Path, imports: str, jobs: int | None = None) -> Path:
    """A script that prints what a search and its monitor have found."""
    (folder / "script.py").write_text(textwrap.dedent(IN_A_JOB).format(imports=imports, jobs=jobs))
    return folder / "script.py"


def found_by(output: str) -> list[str]:
    """What it has printed on each rank."""
    return re.findall("found .*", output)


@pytest.mark.slow
@pytest.mark.parametrize("imports, how, jobs, ranks", [(OURS, (), None, 2), (THEIRS, ("-m", "mpitune"), -1, 1)])
def test_each_rank_that_runs_the_script_knows_the_rows(
    program: Any, tmp_path: Path, imports: str, how: tuple[str, ...], jobs: int | None, ranks: int
) -> None:
    (right,) = found_by(program(job(tmp_path, THEIRS)).stdout)
    done = program(*how, job(tmp_path, imports, jobs), ranks=2)
    assert found_by(done.stdout) == [right] * ranks


class Quiet:
    """A callback that hears, and does as it is told."""

    def __init__(self, fails_at: tuple[int, ...] = ()) -> None:
        self.fails_at = fails_at

    def setup(self, estimator: Any, context: Any) -> None:
        pass

    def teardown(self, estimator: Any, context: Any) -> None:
        pass

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        if self.fails_at and _path(context)[-len(self.fails_at) :] == self.fails_at and context.max_subtasks == 0:
            raise ValueError("a hook that fails")

    def on_fit_task_end(self, estimator: Any, context: Any) -> None:
        pass


class Counts(Quiet):
    def __init__(self) -> None:
        super().__init__()
        self.lock, self.n = threading.Lock(), 0

    def on_fit_task_end(self, estimator: Any, context: Any) -> None:
        with self.lock:
            self.n += 1


def test_what_cannot_be_pickled_hears_of_fits_by_scikit_learn() -> None:
    counted = []
    for kind, more in ((theirs.GridSearchCV, {}), (GridSearchCV, {"workers": 1})):
        search = kind(LogisticRegression(max_iter=5), {"C": [0.1, 1.0]}, cv=2, **more).set_callbacks(notes := Counts())
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            search.fit(X, Y)
        counted.append(notes.n)
        assert any("a callback cannot be pickled" in str(warning.message) for warning in said) == bool(more)
    assert counted[0] == counted[1] > 0


@pytest.mark.parametrize("at", [(0,), (1,)])
def test_a_hook_that_fails_is_a_fit_that_fails_where_fits_are_shared(at: tuple[int, ...]) -> None:
    tables = []
    for kind, more in ((theirs.GridSearchCV, {}), (GridSearchCV, {"workers": 0})):
        search = kind(KNeighborsClassifier(), {"n_neighbors": [1, 3, 5]}, cv=2, refit=False, **more)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                search.set_callbacks(Quiet(at)).fit(X, Y)
                tables.append(search.cv_results_["mean_test_score"])
            except ValueError as error:
                tables.append(np.array([len(str(error).split("\n")[0])]))
    np.testing.assert_array_equal(tables[1], tables[0])
    assert np.isnan(tables[0]).any() or len(tables[0]) == 1
