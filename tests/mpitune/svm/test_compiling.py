"""Compilation: who does it, and who says so."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from mpitune.folders import private_folder
from mpitune.locks import locked
from tests.helpers import PATIENCE, ROOT

pytest.importorskip("numba")

from mpitune.svm import apart, compiling

SIGNATURES = """
import sys
import numpy as np
from numba.core.dispatcher import Dispatcher
from mpitune.svm import SVC, Data, TrainingSet, fit_grid, loaded, solve
from mpitune.svm.decide.sources import RbfSource
from mpitune.svm.kernel.rbf import kernel_minus_one, squared_distances

def known():  # signatures of kept functions in modules that are imported
    return {
        (module_name, name): value.signatures
        for module_name, module in list(sys.modules.items())
        for name, value in list(vars(module).items())
        if isinstance(value, Dispatcher) and value.py_func.__module__ == module_name
        if value.stats.cache_path and not module_name.startswith("numba")
    }

before = known()
assert len(before) > 5, before
x, y = np.random.default_rng(0).normal(size=(300, 4)), np.arange(300) % 3
folds = [(np.arange(40, 300), np.arange(40)), (np.arange(260), np.arange(260, 300))]
trainings = [TrainingSet.without_weights(train, 3) for train, _ in folds]
for multiclass in ("ovo", "ovr"):
    data = Data(x, y, "rbf", multiclass=multiclass)
    samples = data.samples
    distances = squared_distances(samples)
    kernel = kernel_minus_one(samples, 0.1, distances=distances)
    for kept, matrix in ((None, None), (distances, None), (None, kernel)):
        source = RbfSource(samples, 0.1, kept, matrix)
        for solved, (_, validation) in zip(solve(data, source, np.array([0.01, 10.0]), trainings), folds):
            solved.labels(validation), solved.predict(x)
for gamma in (1e-3, 50.0):  # the second: samples are far from each other
    candidates = [{"C": c, "gamma": gamma} for c in (0.1, 1, np.float64(10))]
    for fitted in fit_grid(SVC(), candidates, x, y, folds):
        fitted.model.score(fitted.x_validation, y[folds[fitted.split][1]])
SVC(kernel="linear").fit(x[:200], y[:200] > 0).predict(x)
for name, signatures in known().items():
    assert signatures == before.get(name), (name, set(signatures) - set(before.get(name, ())))
"""


@pytest.fixture
def own_locks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.mark.usefixtures("own_locks")
def test_one_process_compiles_and_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: Any) -> None:
    """Others wait."""
    done: list[int] = []
    monkeypatch.setattr(apart, "proof", lambda: tmp_path / "compiled")
    monkeypatch.setattr(compiling, "proof", apart.proof)
    monkeypatch.setattr(compiling, "compile_all", lambda: done.append(1))
    with locked(private_folder(local=True) / compiling.COMPILES):
        other = threading.Thread(target=compiling.warm_up.__wrapped__)
        other.start()
        other.join(0.3)
        assert other.is_alive() and not done
        (tmp_path / "compiled").touch()
    other.join(PATIENCE)
    assert len(done) == 1 and not caplog.messages, "it reads what another has compiled"
    (tmp_path / "compiled").unlink()
    compiling.warm_up.__wrapped__()
    assert len(done) == 3 and caplog.messages == [compiling.COMPILING]


@pytest.mark.usefixtures("own_locks")
def test_no_process_is_started_while_another_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    monkeypatch.setattr(apart, "start", lambda: started.append(1))
    with locked(private_folder(local=True) / apart.STARTED):
        apart.compile_apart.__wrapped__()
    assert started == []
    apart.compile_apart.__wrapped__()
    assert started == [1]


def test_what_is_compiled_is_that_of_one_installation(tmp_path: Path) -> None:
    """Numba has a folder for each path of a file, and for each time of it what is in there."""
    shutil.copytree(ROOT / "mpitune", tmp_path / "mpitune")
    code = "from mpitune.svm.apart import proof; print(proof().name)"
    there = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert (
        subprocess.check_output([sys.executable, "-P", "-c", code], env=there, text=True).strip() != apart.proof().name
    )


@pytest.mark.slow  # it gives way, so beside other work it takes minutes
def test_the_process_that_is_started_does_not_fail(tmp_path: Path) -> None:
    """It says nothing, so nobody would notice. Only one begins, and it gives way."""
    nice = "int(open(f'/proc/{child}/stat').read().rpartition(') ')[2].split()[16])"
    program = f"""
import os, time
from mpitune.svm import apart
spawn, numbers = os.posix_spawn, []
os.posix_spawn = lambda *given, **options: numbers.append(spawn(*given, **options))
for _ in range(2):
    apart.compile_apart.__wrapped__()
(child,) = numbers
while not os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG):
    time.sleep(0.01)
print({nice}, os.waitpid(child, 0)[1])
"""
    environ = {**os.environ, "TMPDIR": str(tmp_path)}  # locks of this test's own
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.stdout == f"{os.nice(0) + compiling.NICENESS} 0\n", done.stderr


@pytest.mark.slow
def test_what_was_warmed_is_all_that_a_search_needs(program: Any) -> None:
    program("-c", SIGNATURES)


@pytest.mark.slow
def test_where_no_folder_can_be_written_a_process_compiles_for_itself(tmp_path: Path) -> None:
    """As in a container all of whose file systems are read-only: here files can only be empty, and there is no home."""
    program = """if True:
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        import numba
        from mpitune.svm import compiling
        compiling.compile_all = lambda: numba.njit(lambda x: print(x))(1)
        compiling.warm_up()"""
    own = {"HOME": "/proc", "TMPDIR": str(tmp_path)}  # locks of this test's own
    environ = {name: value for name, value in os.environ.items() if "CACHE" not in name} | own
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1\n1\n") and "compiling the solver" in done.stderr, done.stderr
