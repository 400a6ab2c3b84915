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
from multiprocessing import util
from multiprocessing.connection import Pipe
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import cloudpickle
import numpy as np
import pytest
from threadpoolctl import threadpool_info

from mpitune.devices.choose import CPU, environment
from mpitune.options import RunOptions
from mpitune.port import Scheduling
from mpitune.processes import fork_server
from mpitune.processes.fork_server import ForkServer, server_for
from mpitune.processes.keeper import Later
from mpitune.processes.process import installed_modules_of
from mpitune.studies import run_study
from tests.helpers import PATIENCE, ROOT, parent_of, wait_for_the_end_of, wait_until
from tests.toys import Toy

WITH_ROOT = {**os.environ, "PYTHONPATH": str(ROOT)}


def report(what: Any, pipe: Any) -> None:
    """What a worker does here: say what it is."""
    known = "colorsys" in sys.modules, {library["num_threads"] for library in threadpool_info()}
    pipe.send((os.getpid(), os.environ.get("OWN"), random.random(), np.random.rand(), *known))
    pipe.recv()


def silent(what: Any, pipe: Any) -> None:
    os._exit(what)


def serves(what: Any, pipe: Any) -> None:
    pipe.send(ForkServer((), os.environ).pid)


@contextmanager
def serving(*modules: str) -> Iterator[ForkServer]:
    """A server that has imported numpy, whose workers would else have the same random numbers."""
    with environment(CPU, 1):
        server = ForkServer(("numpy", "tests.mpitune.processes.test_fork_server", *modules), os.environ)
    yield server
    server.close()
    assert wait_until(lambda: not server.is_alive)


def forked(server: ForkServer, what: Any, function: Any = report, own: str = "", threads: int = 1) -> tuple[Any, Any]:
    """A worker and the pipe to it."""
    ours, theirs = Pipe()
    with environment(CPU, threads):
        fork = server.fork({**os.environ, "OWN": own}, Later(function, what), [theirs])
    theirs.close()
    assert fork is not None
    return fork, ours


def test_workers_have_their_own_environment_random_numbers_threads_and_status() -> None:
    with serving("colorsys", "no_such_module") as server:
        workers = [forked(server, None, own=str(number), threads=1 + number) for number in range(3)]
        pids, own, first, second, known, threads = zip(*[pipe.recv() for _, pipe in workers], strict=True)
        assert own == ("0", "1", "2") and known == (True,) * 3 and threads == ({1}, {2}, {3})
        assert len({*first}) == len({*second}) == len({*pids}) == 3
        assert {parent_of(parent_of(pid)) for pid in pids} == {server.pid}
        for fork, pipe in workers:
            assert fork.is_alive()
            pipe.send("end")
            fork.join(PATIENCE)
            assert fork.exitcode == 0  # a worker never comes back into the server's code
        may = resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 1200
        many = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100 * may)]
        try:  # a rank may have many files open
            fork, _ = forked(server, 7, silent)
            fork.join(PATIENCE)
            assert fork.exitcode == 7 and not fork.is_alive() and (fork.sentinel > 1023) == may
        finally:
            for number in many:
                os.close(number)
        fork, pipe = forked(server, None)
        pipe.recv()
        os.kill(fork.pid, signal.SIGKILL)
        fork.join(PATIENCE)
        assert fork.exitcode == -signal.SIGKILL
        wait_for_the_end_of({forked(server, None, serves)[1].recv()})
        assert Path(util.get_temp_dir()).exists(), "the folder is not a worker's"


def test_workers_end_with_their_server() -> None:
    with serving() as server:
        workers = [forked(server, None) for _ in range(2)]
        pids = {pipe.recv()[0] for _, pipe in workers}
        os.kill(server.pid, signal.SIGKILL)
        wait_for_the_end_of(pids)
        for fork, _ in workers:
            fork.join(PATIENCE)
            assert fork.exitcode
        assert server.fork(os.environ, Later(silent, 0), []) is None


KILLED = """
import os, signal, time
from mpitune.processes.fork_server import ForkServer
from mpitune.processes.keeper import Later
server = ForkServer(["json"], os.environ)
fork = server.fork(os.environ, Later(time.sleep, 1111), [])
print(fork.pid, server.pid, os.path.dirname(server._forkserver_address), flush=True)
if END:
    os.kill(fork.pid, signal.SIGKILL)
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("status", [-signal.SIGKILL, 0])
def test_nothing_stays_of_a_rank_that_is_killed_or_leaves_at_once(status: int) -> None:
    code = KILLED.replace("END", str(status == 0))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=WITH_ROOT, timeout=600)
    keeper, server, folder = done.stdout.split()
    assert done.returncode == status
    wait_for_the_end_of({int(keeper), int(server)})
    assert not Path(folder).exists()


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


def test_no_descriptor_stays_of_a_worker() -> None:
    def descriptors() -> list[int]:
        return [len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in (os.getpid(), server.pid)]

    with serving() as server:
        for number in range(30):
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
    monkeypatch.setattr("mpitune.processes.fork_server._servers", {})  # not with the modules of tests before
    with environment(CPU, 1):
        first = server_for(["json", "csv"], os.environ)
        assert first is not None
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
        assert server_for(["csv"], os.environ) is first
        monkeypatch.setenv("OF_THIS_TEST", "1")
        assert server_for(["json"], os.environ) not in (first, None) and first.is_alive
        monkeypatch.delenv("OF_THIS_TEST")
        second = server_for(["colorsys"], os.environ)
        assert second is not None and second.modules == {*first.modules, "colorsys"}
        assert wait_until(lambda: not first.is_alive)


def test_a_server_stays_when_the_thread_that_started_it_ends() -> None:
    with environment(CPU, 1):
        environ = dict(os.environ)
    found: list[Any] = []

    def in_thread() -> None:
        found.append(server := server_for(["tests.mpitune.processes.test_fork_server"], environ))
        found.extend(forked(server, None))
        found[2].recv()  # so it has begun

    thread = Thread(target=in_thread)
    thread.start()
    thread.join()
    server, fork, pipe = found
    time.sleep(0.5)
    assert fork.is_alive() and server_for(["tests.mpitune.processes.test_fork_server"], environ) is server
    pipe.send("end")
    fork.join(PATIENCE)


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
