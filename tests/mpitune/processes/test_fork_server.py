"""The server that forks workers: one import, and for each an environment and random numbers of its own."""

from __future__ import annotations

import logging
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Pipe
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import cloudpickle
import numpy as np
import pytest
from threadpoolctl import threadpool_info

from mpitune.devices.choose import CPU, environment
from mpitune.errors import Exit
from mpitune.options import RunOptions
from mpitune.port import Scheduling
from mpitune.processes import fork_server
from mpitune.processes.fork_server import ForkServer, server_for
from mpitune.processes.keeper import Later
from mpitune.processes.process import installed_modules_of
from mpitune.storage.history import read_study
from mpitune.studies import run_study
from tests.helpers import PATIENCE, ROOT, parent_of, rank_of, start, wait_for_the_end_of, wait_until, workers_of
from tests.toys import Toy


def report(what: Any, pipe: Any) -> None:
    """What a worker does here: say what it is."""
    pipe.send((what, os.getpid(), os.environ.get("OWN"), "json" in sys.modules, random.random(), np.random.rand()))
    pipe.recv()


def silent(what: Any, pipe: Any) -> None:
    os._exit(what)


def is_imported(name: str, pipe: Any) -> None:
    pipe.send(name in sys.modules)


def n_threads(what: Any, pipe: Any) -> None:
    pipe.send({library["num_threads"] for library in threadpool_info()})


@contextmanager
def serving(*modules: str) -> Iterator[ForkServer]:
    with environment(CPU, 1):
        server = ForkServer(("numpy", "tests.mpitune.processes.test_fork_server", *modules), os.environ)
    try:
        yield server
    finally:
        for fork in list(server.forks):
            fork.close()
        server.close()
        server._process.join(PATIENCE)
        assert not server._process.is_alive()


def forked(server: ForkServer, what: Any, function: Any = report, own: str = "") -> tuple[Any, Any]:
    """A worker and the pipe to it."""
    ours, theirs = Pipe()
    fork = server.fork({**os.environ, "OWN": own}, Later(function, what), [theirs])
    theirs.close()
    assert fork is not None
    return fork, ours


def test_workers_have_their_own_environment_random_numbers_and_status() -> None:
    with serving("json") as server:
        _, pipe = forked(server, "colorsys", is_imported)
        assert pipe.recv() is False
        server.add(["colorsys"])  # what is asked for later
        _, pipe = forked(server, "colorsys", is_imported)
        assert pipe.recv() is True
        for number in (1, 3):
            with environment(CPU, number):
                _, pipe = forked(server, "x", n_threads)
                assert pipe.recv() == {number}
        for status in (0, 7):
            fork, _ = forked(server, status, silent)
            fork.join(PATIENCE)
            assert fork.exitcode == status and not fork.is_alive()
        workers = [forked(server, number, own=str(number)) for number in range(3)]
        said = [pipe.recv() for _, pipe in workers]
        assert [words[0] for words in said] == [0, 1, 2]
        assert [words[2] for words in said] == ["0", "1", "2"]
        assert [len({words[n] for words in said}) for n in (1, 4, 5)] == [3, 3, 3]
        assert all(parent_of(parent_of(parent_of(pid))) == server._process.pid for _, pid, *_ in said)
        assert all(fork.is_alive() for fork, _ in workers)
        for fork, pipe in workers:
            pipe.send("end")
            fork.join(PATIENCE)
        assert [fork.exitcode for fork, _ in workers] == [1, 1, 1]  # a worker never comes back into the server's code


def test_a_signal_ends_a_worker_and_a_server_that_still_imports() -> None:
    with serving() as server:
        fork, pipe = forked(server, "x")
        pipe.recv()
        fork.send_signal(signal.SIGKILL)
        fork.join(PATIENCE)
        assert fork.exitcode == -signal.SIGKILL
        may = resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 1200
        many = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100 * may)]
        try:  # a rank may have many files open
            fork, _ = forked(server, 7, silent)
            fork.join(PATIENCE)
            assert fork.exitcode == 7 and (fork.sentinel > 1023) == may
        finally:
            for number in many:
                os.close(number)
    with serving("tests.mpitune.processes.slow_module") as server:
        fork, _ = forked(server, "y")
        fork.send_signal(signal.SIGKILL)
        fork.join(PATIENCE)
        assert fork.exitcode == -signal.SIGKILL


def test_its_workers_end_with_the_server() -> None:
    with serving() as server:
        workers = [forked(server, number) for number in range(2)]
        pids = {pipe.recv()[1] for _, pipe in workers}
        server.kill()
        wait_for_the_end_of(pids)
        for fork, _ in workers:
            fork.join(PATIENCE)
            assert fork.exitcode == -signal.SIGKILL


def test_a_server_without_workers_ends() -> None:
    with environment(CPU, 1):
        server = ForkServer(["tests.mpitune.processes.test_fork_server"], os.environ, idle_seconds=1.0)
    fork, pipe = forked(server, 7, report)
    pipe.recv()
    time.sleep(1.5)
    assert server.is_alive
    pipe.send("end")
    server._process.join(PATIENCE)
    assert server._process.exitcode == 0
    fork.join(PATIENCE)
    assert fork.exitcode == 1
    fork.close()
    server.close()


@pytest.fixture
def with_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of this name that starts one."""
    (tmp_path / "with_a_thread.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=[99]).start()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@dataclass(frozen=True)
class Threaded(Toy):
    def scheduling(self) -> Scheduling:
        return Scheduling(preload=("with_a_thread",))


@pytest.mark.usefixtures("with_a_thread")
def test_workers_are_spawned_without_a_word_where_the_server_has_threads(caplog: pytest.LogCaptureFixture) -> None:
    outcomes = run_study(Threaded(5), RunOptions(gpu="none", workers=2))
    assert [outcome.result.error for outcome in outcomes] == 5 * [None]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.usefixtures("with_a_thread")
def test_a_server_with_threads_forks_nothing() -> None:
    with environment(CPU, 1):
        server = server_for(["with_a_thread"], os.environ)
        assert server is not None
        fork, _ = forked(server, "z")
        fork.join(PATIENCE)
        assert fork.refused and fork.exitcode == 1
        assert server_for(["with_a_thread"], os.environ) is None
    fork.close()
    server.kill()


@pytest.mark.slow
def test_no_descriptor_stays_after_1000_workers() -> None:
    def descriptors() -> list[int]:
        return [len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in (os.getpid(), server._process.pid)]

    with serving() as server:
        for number in range(1010):
            fork, pipe = forked(server, 0, silent)
            fork.join(PATIENCE)
            fork.close()
            pipe.close()
            if number == 9:
                first = descriptors()
        # the server closes its end of the last pipe after it has told
        assert wait_until(lambda: descriptors() <= first), descriptors()


def test_a_pickle_names_the_installed_modules_that_its_reader_needs() -> None:
    def objective(x: float) -> float:
        return float(np.sin(x)) + len(fork_server.__name__) + os.getpid()

    named = installed_modules_of(cloudpickle.dumps(objective))
    assert "numpy" in named and fork_server.__name__ not in named  # it is not installed here


def test_a_script_keeps_its_server_until_its_needs_change(monkeypatch: pytest.MonkeyPatch) -> None:
    with environment(CPU, 1):
        first = server_for(["json"], os.environ)
        assert server_for(["json.decoder"], os.environ) is first
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
        assert server_for(["json"], os.environ) is first
        assert server_for(["csv"], os.environ) is first and "csv" in first.modules
        monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
        second = server_for(["json"], os.environ)
        assert second is not first and second is not None
        first._process.join(PATIENCE)
        assert not first.is_alive and second.is_alive
        server_for(["json"], os.environ)
        assert first not in fork_server._ended  # it is no zombie


def test_a_server_stays_when_the_thread_that_started_it_ends() -> None:
    with environment(CPU, 1):
        environ = dict(os.environ)
    found = []

    def in_thread() -> None:
        server = server_for(["tests.mpitune.processes.test_fork_server"], environ)
        assert server is not None
        fork, pipe = forked(server, "x")
        pipe.recv()  # so it has begun
        found.append((server, fork, pipe))

    thread = Thread(target=in_thread)
    thread.start()
    thread.join()
    server, fork, pipe = found[0]
    time.sleep(0.5)
    assert fork.is_alive() and server_for(["tests.mpitune.processes.test_fork_server"], environ) is server
    pipe.send("end")
    fork.join(PATIENCE)
    fork.close()


def test_searches_of_several_threads_do_not_end_each_others_servers() -> None:
    before, at_once, kept = dict(os.environ), Barrier(3), []

    def search(number: int) -> None:
        at_once.wait()
        found = set()
        for _ in range(20):
            with environment(CPU, 1 + number):
                found.add(server_for(["json"], os.environ))
                assert os.environ["OMP_NUM_THREADS"] == str(1 + number)
        at_once.wait()
        (server,) = found
        kept.append(server is not None and server.is_alive)

    threads = [Thread(target=search, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kept == [True] * 3 and dict(os.environ) == before


@pytest.mark.parametrize("ranks", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_study_goes_on_when_its_server_is_killed(ranks: int, tmp_path: Path) -> None:
    """Each worker hangs in its first trial from t20 on, so that the study goes on until then and no further."""
    hang, n_workers = [f"t{number}" for number in range(20, 400)], 2 * max(ranks, 1)
    (marks := tmp_path / "marks").mkdir()
    job = start(tmp_path / "r", "400", "--at", *(f"{key}=hang" for key in hang), "--marks", marks, ranks=ranks)
    assert wait_until(lambda: len(list(marks.iterdir())) == n_workers)
    for key in hang:
        (marks / key).touch()
    servers = {parent_of(parent_of(parent_of(worker))): rank_of(worker) for worker in workers_of(job.pid)}
    assert len(servers) == max(ranks, 1) and not servers.keys() & set(servers.values())
    for server in servers:
        os.kill(server, signal.SIGKILL)
    _, stderr = job.communicate(timeout=600)
    assert job.returncode == Exit.DONE, stderr
    history = read_study(tmp_path / "r")
    assert len(history.results) == 400


SCRIPT = """
from mpitune import Int, search

def objective(trial):
    return {"loss": trial.params["n"] * shift}

shift = 2
print(len(search(objective, {"n": Int(0, 5)}, strategy="grid", minimize="loss", workers=2).trials), "trials")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "tool", ["coverage run --data-file=seen", "pdb -c continue", "cProfile", "trace --count -C seen"]
)
def test_scripts_run_under_tools_that_watch_them(tool: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", *tool.split(), "script.py"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, input="quit\n", capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0 and "6 trials" in done.stdout, done.stdout + done.stderr
