"""The backend of joblib: what its workers do, and that scikit-learn's functions say what they say without it."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import sklearn.model_selection as theirs
from joblib import Parallel, delayed
from sklearn.ensemble import StackingClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

import mpitune.joblib  # noqa: F401 - registers the backend
from mpitune.errors import StudyError, UsageError
from mpitune.processes.pickles import LARGE_ARRAY
from tests.mpitune.joblib.work import Stubborn, pid_beside_another, raise_stubborn, say, seen, write, write_number
from tests.mpitune.sklearn.iris import X, Y

TREE = DecisionTreeClassifier(random_state=0)
PIPE = make_pipeline(StandardScaler(), KNeighborsClassifier())


FUNCTIONS: dict[str, Callable[[], Any]] = {
    "cross_val_score": lambda: theirs.cross_val_score(TREE, X, Y, cv=10),
    "StackingClassifier": lambda: StackingClassifier(
        [("tree", TREE), ("near", PIPE)], KNeighborsClassifier()
    ).fit(X, Y).predict_proba(X),
}  # fmt: skip


@pytest.fixture
def two() -> Iterator[None]:
    with joblib.parallel_config("mpitune", n_jobs=2):
        yield


@pytest.mark.parametrize("name", FUNCTIONS)
def test_scikit_learns_functions_say_the_same(two: None, name: str) -> None:
    with joblib.parallel_config("sequential"):
        right = FUNCTIONS[name]()
    np.testing.assert_array_equal(FUNCTIONS[name](), right)


def test_several_are_open_at_once(two: None) -> None:
    """One `parallel_config` has one backend: what calls are made is of each `Parallel`."""
    one, other = (Parallel(return_as="generator")(delayed(pow)(i, k) for i in range(3)) for k in (2, 3))
    assert list(zip(one, other, strict=True)) == [(0, 0), (1, 1), (4, 8)]
    nested = Parallel()(delayed(abs)(sum(Parallel()(delayed(pow)(j, 2) for j in range(i)))) for i in range(3))
    assert nested == [0, 0, 1]


def test_workers_are_others(two: None, tmp_path: Path) -> None:
    pids = set(Parallel()(delayed(pid_beside_another)(tmp_path) for _ in range(6)))
    assert len(pids) == 2 and os.getpid() not in pids


def test_an_exception_comes_back_with_its_traceback_and_place(two: None) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        Parallel()(delayed(divmod)(i, i - 3) for i in range(10))
    assert "Traceback" in str(caught.value.__cause__)
    assert [note.startswith("raised at ") for note in caught.value.__notes__] == [True]
    with pytest.raises(Stubborn, match="one"):  # whose arguments are not those that it keeps
        Parallel()(delayed(raise_stubborn)() for _ in range(3))
    with pytest.raises(Exception, match="cannot be pickled.*lock"):
        Parallel()(delayed(str)(threading.Lock()) for _ in range(3))


def test_a_worker_that_ends_each_time_is_named_and_others_go_on(two: None) -> None:
    with pytest.raises(StudyError, match="worker of each of its tries ended.*exit code 7"):
        Parallel()(delayed(os._exit)(7) for _ in range(2))
    assert Parallel()(delayed(abs)(-i) for i in range(3)) == [0, 1, 2]


def test_a_large_array_is_in_memory_that_workers_share(two: None) -> None:
    for made in (np.ascontiguousarray, np.asfortranarray):
        large = made(np.arange(LARGE_ARRAY / 8 + 8.0).reshape(-1, 8))
        ((total, writeable, fortran, inode),) = set(Parallel(batch_size=1)(delayed(seen)(large) for _ in range(8)))
        assert total == large.sum() and not writeable and fortran == np.isfortran(large) and inode


def test_parts_and_views_of_large_arrays_arrive_as_they_are(two: None) -> None:
    large = np.arange(4.0 * LARGE_ARRAY / 8).reshape(-1, 4)
    things = [large[::2], large[:, ::-1], large.T, large.astype("i4"), large.view([("a", "f8", 4)])]
    for thing, same in zip(things, Parallel()(delayed(np.copy)(thing) for thing in things), strict=True):
        np.testing.assert_array_equal(thing, same)
        assert thing.dtype == same.dtype
    empty = [(0,), (0, 3), (), (2, 3)]
    assert Parallel(max_nbytes=0)(delayed(np.shape)(np.empty(shape)) for shape in empty) == empty


def test_calls_have_what_their_arrays_held_when_they_were_made(two: None, tmp_path: Path) -> None:
    large = np.zeros(LARGE_ARRAY)

    def calls(raising: bool) -> Iterator[Any]:
        yield from [delayed(np.max)(large)] * 2  # joblib takes two at a time
        large[:] = 9
        for value in [1, 2, 3] * 5:  # each maybe at the place of one that is gone
            yield delayed(np.max)(np.full(LARGE_ARRAY, value))
        if raising:
            yield from [delayed(Path.touch)(tmp_path / "made")] * 2
            raise StopAsyncIteration("no more calls")

    assert Parallel()(calls(False)) == [0, 0] + [1, 2, 3] * 5
    with pytest.raises(StopAsyncIteration, match="no more calls"):
        Parallel()(calls(True))
    assert not (tmp_path / "made").exists(), "no call is made in vain"


def test_large_results_and_copies_are_writeable_arguments_only_where_that_is_asked_for(two: None) -> None:
    results = Parallel()(delayed(np.full)((3, LARGE_ARRAY), float(i)) for i in range(4))
    for number, result in enumerate(results):
        assert result.shape == (3, LARGE_ARRAY) and (result == number).all() and result.flags.writeable
    large = np.zeros(LARGE_ARRAY)
    with pytest.raises(ValueError, match="read-only"):
        Parallel()(delayed(write)(large) for _ in range(2))
    assert Parallel(mmap_mode="c")(delayed(write)(large) for _ in range(2)) == [1.0, 1.0]
    assert Parallel(max_nbytes=None)(delayed(write)(large) for _ in range(2)) == [1.0, 1.0] and not large.any()


@pytest.mark.parametrize("size", [10, LARGE_ARRAY])
def test_a_file_that_may_be_written_to_is_written_to_by_calls(two: None, tmp_path: Path, size: int) -> None:
    """As in joblib's own example of results in a memory-mapped file."""
    out = np.memmap(tmp_path / "out", float, "w+", shape=(size, 2))
    Parallel()(delayed(write_number)(out[:, 1], place) for place in range(6))
    assert out[:6].tolist() == [[0, place] for place in range(6)]
    out.flush()
    kept = np.memmap(tmp_path / "out", float, "r", shape=(size, 2))
    assert Parallel()(delayed(np.sum)(part) for part in (kept, np.asarray(kept))) == [15.0, 15.0]


def test_what_calls_print_is_printed_as_it_is(two: None, capfd: pytest.CaptureFixture[str]) -> None:
    Parallel()(delayed(say)(number) for number in range(30))
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == sorted(f"line {number}" for number in range(30))
    assert err.count("UserWarning: warning 7") == 1 and "trial" not in err
    lines = err.splitlines()
    assert all(lines.count(f"{word} {number}") == 1 for number in range(30) for word in ("error", "last"))
    assert lines.count("") == 60 and "bar" not in err  # each warning ends with an empty line, too


def test_a_fork_makes_its_calls_itself_and_ends(two: None) -> None:
    Parallel()(delayed(abs)(i) for i in range(3))
    read, write = os.pipe()
    if not (pid := os.fork()):
        try:
            os.write(write, bytes(Parallel()(delayed(abs)(-i) for i in range(3))))
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        assert file.read() == bytes(range(3))
    assert os.waitpid(pid, 0)[1] == 0


def test_options_are_checked() -> None:
    for options, words in (
        ({"trial_timeout": "1"}, "trial_timeout='1': give"), ({"trial_timeout": -1}, "trial_timeout=-1"),
        ({"gpu": [0]}, "gpu="), ({"colour": "red"}, "has no option colour"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=words), joblib.parallel_config("mpitune", **options):
            Parallel(n_jobs=2)(delayed(abs)(i) for i in range(2))


THREADS = """
import sys, threading
from joblib import Parallel, delayed
from mpitune import Float, search
from mpitune.sklearn import GridSearchCV
from sklearn.datasets import load_iris
from sklearn.tree import DecisionTreeClassifier

X, y = load_iris(return_X_y=True)
SOME = int(sys.argv[1])  # 0: one after the other, as threads that use loky may wait for each other for ever
said, told, lock = [], [], threading.Lock()

def parabola(trial):
    return {"loss": (trial.params["x"] - 1) ** 2}

def calls(n_jobs):
    return [sum(Parallel(n_jobs * SOME or 1)(delayed(pow)(i, 2) for i in range(30))) for _ in range(4)]

def raises(n_jobs):
    try:
        return Parallel(n_jobs * SOME or 1)(delayed(divmod)(i, i - 3) for i in range(10))
    except ZeroDivisionError as error:
        return str(error)

def of_scikit_learn(workers):
    tree = DecisionTreeClassifier(random_state=0)
    searches = [GridSearchCV(tree, {"max_depth": [1, 2, n]}, workers=workers).fit(X, y) for n in (3, 4)]
    return [search.cv_results_["mean_test_score"].tolist() for search in searches]

def own(workers):
    def tell(study, trial):
        with lock:  # which cannot be sent
            told.append(trial.number)
    space = {"x": Float(0, 4)}
    study = search(
        parabola, space, strategy="sobol", n_trials=6, minimize="loss", workers=workers, callbacks=[tell], window=1
    )
    return [trial.params["x"] for trial in study.trials]

def say(what, number):
    said.append(f"{what.__name__} {number}: {what(number)}")

tasks = [(calls, 2), (calls, 3), (calls, 5), (raises, 3), (of_scikit_learn, 1), (own, 1)]
threads = [threading.Thread(target=say, args=task) for task in tasks]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(*sorted(said), len(told), sep="\\n")
"""


@pytest.mark.slow
def test_threads_of_a_script_search_and_make_calls_on_all_nodes(program: Any, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(THREADS)
    plain = program("script.py", 0, cwd=tmp_path)
    done = program("-m", "mpitune", "script.py", 1, ranks=3, cwd=tmp_path)
    assert done.stdout == plain.stdout and len(plain.stdout.splitlines()) == 7
    assert "slots on 3 nodes" in done.stderr


ENDS_BY = (
    "print(pool.Pool(2).map(double, range(3))); 1 / 0", "sys.exit('why')", "os._exit(9)",
    "sys.excepthook = lambda *error: print(error[:2]); 1 / 0",
)  # fmt: skip


@pytest.mark.parametrize("ending", [ENDS_BY[0], *(pytest.param(one, marks=pytest.mark.slow) for one in ENDS_BY[1:])])
def test_a_script_ends_as_by_python(program: Any, tmp_path: Path, ending: str) -> None:
    (tmp_path / "script.py").write_text(
        f"import atexit, os, sys\nfrom multiprocessing import pool\nprint(sys.argv, __name__, __file__)\n"
        f"def double(n):\n    return 2 * n\n\natexit.register(print, 'the end')\n{ending}\n"
    )
    right, done = (program(*how, "script.py", cwd=tmp_path, status=None) for how in ((), ("-m", "mpitune")))
    assert (done.returncode, done.stdout, done.stderr) == (right.returncode, right.stdout, right.stderr)


REFUSED = {
    "import mpitune, tests.toys\nmpitune.run(tests.toys.Toy, ['3'])\n": (
        ("-m", "mpitune"), "all ranks of this program run it: start it by python, without -m mpitune",
    ),
    "import joblib, mpitune.joblib\nwith joblib.parallel_config('mpitune', n_jobs=2):\n"
    "    joblib.Parallel()(joblib.delayed(abs)(i) for i in range(3))\n": ((), "run python -m mpitune script.py"),
    "import optuna\nfrom mpitune.optuna import optimize\n"
    "optimize(optuna.create_study(), lambda trial: trial.suggest_float('x', 0, 1), 3)\n": (
        (), "start the script as mpirun -n 2 python -m mpitune script.py",
    ),
    "from mpitune import Float, search\ndef loss(trial):\n    return trial.params['x']\n"
    "how = {'n_trials': 2, 'minimize': 'loss', 'workers': 1}\n"
    "def again(study, trial):\n    search(loss, {'x': Float(0, 1)}, **how)\n"
    "search(loss, {'x': Float(0, 1)}, **how, callbacks=[again])\n": (
        ("-m", "mpitune"), "script.py: a study begins within another one, on several ranks: begin it when that has",
    ),
}  # fmt: skip


@pytest.mark.slow
def test_what_several_ranks_cannot_do_is_said(program: Any, tmp_path: Path) -> None:
    for script, (how, words) in REFUSED.items():
        (tmp_path / "script.py").write_text(script)
        done = program(*how, "script.py", ranks=2, cwd=tmp_path, status=None)
        assert done.returncode and words in done.stderr
