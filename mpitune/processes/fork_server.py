"""Workers as forks of a process that has imported once what they need: they begin in milliseconds.

    rank -> server -> keeper -> worker

The server is that of `multiprocessing.forkserver`: a fresh process without MPI, CUDA or a thread of the user's, see
`mpitune.processes.preloaded`. It ends with its rank, and its workers end with it. Each worker has the environment that
it is given, the threads that this says, and random numbers of its own.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import random
import select
import signal
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import forkserver, popen_forkserver, reduction, spawn, util
from multiprocessing.connection import Connection
from multiprocessing.context import set_spawning_popen
from multiprocessing.process import BaseProcess
from typing import Any

from mpitune.processes import keeper
from mpitune.processes.preloaded import PRELOAD_VARIABLE, THREAD_ENDED, THREADED
from mpitune.processes.process import WORKERS_HERE, start_resource_tracker, stops_wait, without_main

# pandas imports Arrow, whose allocator would start a thread.
NO_THREADS = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
# How many threads a library has, by its name. A server's have one, and start none when they are imported.
THREADS = {
    "openmp": "OMP_NUM_THREADS", "mkl": "MKL_NUM_THREADS", "openblas": "OPENBLAS_NUM_THREADS",
    "numexpr": "NUMEXPR_NUM_THREADS",
}  # fmt: skip
# Variables of which each worker has its own, two that scikit-learn sets when a rank imports it, and one that changes
# with each test of a suite.
_KMP = ("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")
OWN_VARIABLES = {"CUDA_VISIBLE_DEVICES", WORKERS_HERE, *THREADS.values(), *_KMP, "PYTEST_CURRENT_TEST"}


class ForkServer(forkserver.ForkServer):
    """A server, which begins to import as soon as this exists.

    Args:
        modules: their names. One that cannot be imported is left out: the workers will say why.
        environ: variables of its workers, which libraries read when they are imported.

    Raises:
        OSError: it cannot listen, as where the path of the folder for temporary files is too long for a socket.
    """

    def __init__(self, modules: Iterable[str], environ: Mapping[str, str]) -> None:
        super().__init__()
        self.modules = frozenset(modules)
        self.exitcode: int | None = None
        self.set_forkserver_preload(["mpitune.processes.preloaded"])
        folder = "" if multiprocessing.parent_process() else util.get_temp_dir()  # which a child has from its parent
        order = os.getpid(), folder, sorted({__name__, *self.modules})
        start_resource_tracker()  # which would else be started with the server, and let signals to stop through to it
        before = dict(os.environ)
        own = {PRELOAD_VARIABLE: json.dumps(order), "PYTHONPATH": os.pathsep.join(sys.path)}
        try:
            _set_environ({**NO_THREADS, **environ, **dict.fromkeys(THREADS.values(), "1"), **own})
            with without_main(), stops_wait():
                super().ensure_running()
        finally:
            _set_environ(before)
        self.pid: int = self._forkserver_pid  # type: ignore[attr-defined]

    def ensure_running(self) -> None:
        """Nothing: a server that has ended is not begun again with the variables of a worker."""

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        try:
            if self.exitcode is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
                self.exitcode = os.waitstatus_to_exitcode(ended[1])
        except ChildProcessError:  # a wait of the user's for any child
            self.exitcode = 1
        return self.exitcode is None

    def fork(self, environ: Mapping[str, str], work: keeper.Later, pipes: Sequence[Connection]) -> BaseProcess | None:
        """Have it fork a worker, as soon as it has imported all; see `keeper.begin`.

        Args:
            environ: all variables of the worker.
            work: what it does.
            pipes: to the agent.

        Returns:
            The worker's keeper; None where it cannot be forked.
        """
        process = _Process(target=_begin, args=(self.pid, dict(environ), work, *pipes))
        try:
            process.start_by(self)
        except (OSError, EOFError, ValueError):  # it has ended, or there are more descriptors than one message takes
            return None
        return process

    def close(self) -> None:
        """Let it end with the last of its forks, which hold the other ends of this."""
        os.close(self._forkserver_alive_fd)  # type: ignore[attr-defined]


class _Process(multiprocessing.context.ForkServerProcess):
    def start_by(self, server: ForkServer) -> None:
        self._popen = _Popen(self, server)
        self._sentinel = self._popen.sentinel


class _Popen(popen_forkserver.Popen):
    """As multiprocessing's, of a server of our own."""

    def __init__(self, process: BaseProcess, server: ForkServer) -> None:
        self._server = server
        super().__init__(process)

    def _launch(self, process: BaseProcess) -> None:
        content = io.BytesIO()
        set_spawning_popen(self)
        try:
            with without_main():
                reduction.dump(spawn.get_preparation_data(process.name), content)
            reduction.dump(process, content)
        finally:
            set_spawning_popen(None)
        self.sentinel, written = self._server.connect_to_new_process(self._fds)  # type: ignore[attr-defined]
        parent = os.dup(written)  # by which the child knows that this process lives
        self.finalizer = util.Finalize(self, util.close_fds, (parent, self.sentinel))  # type: ignore[attr-defined]
        with open(written, "wb") as file:
            file.write(content.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)
        self._news = select.poll()  # `multiprocessing.connection.wait` makes a selector each time
        self._news.register(self.sentinel, select.POLLIN)

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        if self.returncode is None and flag == os.WNOHANG and not self._news.poll(0):
            return None
        return super().poll(flag)


_lock = threading.Lock()  # of these, as searches of several threads ask
os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]
_servers: dict[Any, ForkServer] = {}


def server_for(modules: Iterable[str], environ: Mapping[str, str]) -> ForkServer | None:
    """The server of this process that imports these modules with this environment; None where it cannot fork.

    It stays for the next search of a script, and for calls by joblib. One that lacks modules is replaced.
    """
    same = frozenset((name, value) for name, value in environ.items() if name not in OWN_VARIABLES)
    key = os.getpid(), os.getcwd(), tuple(sys.path), same
    with _lock:
        for other in [other for other in _servers if other[0] != key[0]]:  # of the process that this was forked from
            del _servers[other]
        known: frozenset[str] = frozenset()
        if (server := _servers.get(key)) is not None:
            usable = server.is_alive or server.exitcode == THREADED
            if usable and server.modules.issuperset(modules):
                return server if server.exitcode is None else None
            known = server.modules if server.exitcode is None else known
            server.close()
            del _servers[key]
        with suppress(OSError):
            _servers[key] = ForkServer(known.union(modules), environ)
        return _servers.get(key)


def _set_environ(environ: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environ)


def _with_its_threads(work: keeper.Later, *pipes: Connection) -> None:
    set_threads()
    work(*pipes)


def _begin(server: int, environ: Mapping[str, str], work: keeper.Later, *pipes: Connection) -> None:
    """In the fork."""
    signal.signal(THREAD_ENDED, signal.SIG_DFL)
    _set_environ(environ)
    # Global generators would else be the same in each worker. Python itself seeds `random` after a fork.
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if torch := sys.modules.get("torch"):
        torch.manual_seed(random.getrandbits(63))
    keeper.begin(server, _with_its_threads, work, *pipes)


def set_threads() -> None:
    """In a worker: libraries that are imported already get as many threads as its variables say."""
    numbers = {library: os.environ.get(name, "1").partition(",")[0] for library, name in THREADS.items()}
    if set(numbers.values()) != {"1"}:
        from threadpoolctl import ThreadpoolController

        with suppress(ValueError):  # the variable of a user, which libraries leave alone as well
            for library in ThreadpoolController().lib_controllers:
                library.set_num_threads(int(numbers.get(library.internal_api, numbers["openmp"])))
            for module, name in (("torch", "openmp"), ("numexpr", "numexpr")):
                if module in sys.modules:
                    sys.modules[module].set_num_threads(int(numbers[name]))
