"""A process that has imported once what workers need, and then forks each worker in milliseconds.

    rank -> server -> keeper -> keeper -> worker

The server is spawned, so it knows nothing of its rank: no MPI, no CUDA, no thread of the user's. It has one thread
itself, and says no where a library has started others, since a fork keeps their locks but not them. Random numbers
begin anew in each fork, and libraries get the threads of its environment. The server ends with its rank, and its
workers end with it. Without workers it ends after a minute.

    rank -> server     names of modules to import; one packet for each worker: file descriptors, the first of them a
                       file with the rest
    server -> rank     through a pipe of that worker: its process id, or NO; later its status, as of `os.wait`
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import multiprocessing
import os
import pickle
import random
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import set_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

from mpitune.processes import keeper
from mpitune.processes.process import STOPS, WORKERS_HERE, die_with, start_resource_tracker, stops_wait, without_main

MOST_DESCRIPTORS = 250  # the kernel takes 253 in a packet
NO = 0  # in place of a process id: the server has several threads
NUMBER = 8  # bytes of a number in a worker's pipe
IDLE_S = 60.0  # for which a server without workers waits for the next search
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
OWN = {"CUDA_VISIBLE_DEVICES", WORKERS_HERE, *THREADS.values(), *_KMP, "PYTEST_CURRENT_TEST"}
THREAD_ENDED = signal.SIGRTMIN + 1  # to a server: the thread that it belongs to has ended, and perhaps the rank
LONGEST = 1 << 20  # bytes of a packet


class Fork:
    """A worker's keeper that a server forks; it has the methods of a process of multiprocessing that an agent needs.

    Attributes:
        sentinel: descriptor that can be read when there is news: the process runs, or it has ended.
        exitcode: None while it lives; negative for a signal. SIGKILL also where the server has ended.
        refused: the server has other threads, so there is no process.
    """

    def __init__(self, sentinel: int, server: ForkServer) -> None:
        self.sentinel = sentinel
        self.exitcode: int | None = None
        self.refused = False
        self._server, self._file = server, -1
        self._numbers = b""
        self._news = select.poll()  # `select.select` takes no descriptor above 1023, and a user may have many
        self._news.register(sentinel, select.POLLIN)

    def is_alive(self) -> bool:
        """Whether it lives, or is to be forked."""
        while self.exitcode is None and self._news.poll(0):
            content = os.read(self.sentinel, NUMBER)
            self._numbers += content
            if not content:
                self.exitcode = -signal.SIGKILL
            elif len(self._numbers) == NUMBER:
                self._begun(int.from_bytes(self._numbers, "big"))
            elif len(self._numbers) == 2 * NUMBER:
                self.exitcode = os.waitstatus_to_exitcode(int.from_bytes(self._numbers[NUMBER:], "big"))
        return self.exitcode is None

    def _begun(self, pid: int) -> None:
        if pid == NO:
            self.refused, self.exitcode, self._server.is_fit = True, 1, False
            return
        with suppress(OSError):  # it has ended already
            self._file = os.pidfd_open(pid)

    def send_signal(self, number: int) -> None:
        """Send it a signal. If it does not run yet, the server ends, which has nothing else to do then."""
        if self.is_alive() and self._file < 0:
            self._news.poll(500)
        if self.is_alive():
            if self._file < 0:
                self._server.kill()
            else:
                signal.pidfd_send_signal(self._file, number)

    def join(self, seconds: float) -> None:
        """Wait so long at most until it has ended."""
        deadline = time.monotonic() + seconds
        while self.is_alive() and (left := deadline - time.monotonic()) > 0:
            self._news.poll(1000 * left)

    def close(self) -> None:
        """Forget it."""
        self._server.forget(self)
        for number in (self.sentinel, self._file):
            if number >= 0:
                os.close(number)


class ForkServer:
    """A server, which begins to import as soon as this exists.

    Args:
        modules: their names. One that cannot be imported is left out: the workers will say why.
        environ: variables of its workers, which libraries read when they are imported.
        idle_seconds: for which it waits for work before it ends.

    Attributes:
        modules: as given, and those since.
        forks: what it has forked, until it is closed.
        is_fit: whether it can fork, as far as is known.
        is_dismissed: whether it ends with the last of its forks.
    """

    def __init__(self, modules: Sequence[str], environ: Mapping[str, str], idle_seconds: float = IDLE_S) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests.setblocking(False)
        self.modules, self.is_fit, self.is_dismissed = frozenset[str](), True, False
        self.forks: set[Fork] = set()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_serve, args=(os.getpid(), theirs, idle_seconds))
        start_resource_tracker()  # which would else be started with the server, and let signals to stop through to it
        before = dict(os.environ)
        try:
            _set_environ({**NO_THREADS, **environ, **dict.fromkeys(THREADS.values(), "1")})
            with without_main(), stops_wait():
                self._process.start()
        finally:
            _set_environ(before)
        theirs.close()
        multiprocessing.process._children.discard(self._process)  # type: ignore[attr-defined]  # joined at exit
        self.add(modules)

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.is_alive()

    def fork(self, environ: Mapping[str, str], work: keeper.Later, pipes: Sequence[Connection]) -> Fork | None:
        """Have it fork a worker; see `keeper.begin`.

        Args:
            environ: all variables of the worker.
            work: what it does.
            pipes: to the agent.

        Returns:
            None where it cannot be asked.
        """
        passed = _Passed()
        set_spawning_popen(passed)  # type: ignore[arg-type]  # it asks for no more
        try:
            content = bytes(ForkingPickler.dumps((dict(environ), work, tuple(pipes))))
        finally:
            set_spawning_popen(None)
        if len(passed.descriptors) > MOST_DESCRIPTORS:
            return None
        file = os.memfd_create("worker")
        status, theirs = os.pipe()
        try:
            with open(file, "wb", closefd=False) as written:
                written.write(content)
            socket.send_fds(self._requests, [b"1"], [file, theirs, *passed.descriptors])
        except OSError:  # it has ended, or very many wait
            os.close(status)
            return None
        finally:
            os.close(file)
            os.close(theirs)
        fork = Fork(status, self)
        self.forks.add(fork)
        return fork

    def add(self, modules: Iterable[str]) -> None:
        """Have it import these, too, before it forks the next worker."""
        if new := sorted({*modules} - self.modules):
            with suppress(OSError):  # it has ended, or very many wait
                self._requests.send("\n".join(new).encode())
                self.modules = self.modules.union(new)

    def forget(self, fork: Fork) -> None:
        """Forget a fork that has ended."""
        self.forks.discard(fork)
        if self.is_dismissed and not self.forks:
            self.close()

    def kill(self) -> None:
        """End it now, and its workers."""
        self._process.kill()

    def close(self) -> None:
        """Let it end."""
        self._requests.close()


class _Passed:
    """Collects the descriptors that a pickle is to hand on, as multiprocessing asks for it."""

    def __init__(self) -> None:
        self.descriptors: list[int] = []

    def duplicate_for_child(self, descriptor: int) -> int:
        self.descriptors.append(descriptor)
        return len(self.descriptors) - 1

    def DupFd(self, place: int) -> _Descriptor:
        return _Descriptor(place)


class _Descriptor:
    """A descriptor in a pickle: its place among those that came with it."""

    arrived: Sequence[int] = ()

    def __init__(self, place: int) -> None:
        self._place = place

    def detach(self) -> int:
        return self.arrived[self._place]


_lock = threading.Lock()  # of these two, as searches of several threads ask
os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]
_servers: dict[Any, ForkServer] = {}
_ended: list[ForkServer] = []  # or are about to


def server_for(modules: Sequence[str], environ: Mapping[str, str]) -> ForkServer | None:
    """The server of this process that imports these modules with this environment; None where it cannot fork.

    It stays for the next search of a script, and for calls by joblib, whose modules it imports, too.
    """
    same = frozenset((name, value) for name, value in environ.items() if name not in OWN)
    key = os.getpid(), os.getcwd(), tuple(sys.path), same
    with _lock:
        for other, server in list(_servers.items()):
            if other[0] != key[0]:  # of the process that this one was forked from
                del _servers[other]
            elif not server.is_alive or (other != key and not server.forks):
                _end(_servers.pop(other))
        _ended[:] = [server for server in _ended if server.is_alive]  # which takes notice of those that have ended
        if key in _servers:
            _servers[key].add(modules)
        else:
            _servers[key] = ForkServer(modules, environ)
        return _servers[key] if _servers[key].is_fit else None


def _end(server: ForkServer) -> None:
    """Let a server end when the last of its forks is forgotten."""
    server.is_dismissed = True
    _ended.append(server)
    if not server.forks:
        server.close()


@atexit.register
def _close() -> None:
    for server in [*_servers.values(), *_ended]:
        server.close()


def _set_environ(environ: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environ)


def _serve(rank: int, requests: socket.socket, idle_seconds: float) -> NoReturn:
    """The server's life: import or fork at each request, until the rank ends or closes its end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # they reach whole process groups; the rank decides
    signal.signal(THREAD_ENDED, lambda number, frame: None if os.getppid() == rank else os._exit(0))
    die_with(rank, THREAD_ENDED)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    pipes: dict[int, int] = {}  # of each fork
    news = select.poll()
    for number in (requests.fileno(), woken):
        news.register(number, select.POLLIN)
    while True:
        ready = [number for number, _ in news.poll(None if pipes else 1000 * idle_seconds)]
        if not ready:
            os._exit(0)
        if woken in ready:
            os.read(woken, 1 << 12)
            _tell_ended(pipes)
        if requests.fileno() in ready:
            message, descriptors, *_ = socket.recv_fds(requests, LONGEST, MOST_DESCRIPTORS + 2, socket.MSG_CMSG_CLOEXEC)
            if not message:
                os._exit(0)
            if not descriptors:
                _import(rank, message.decode().split("\n"))
                continue
            content, pipe, *others = descriptors
            if len(os.listdir("/proc/self/task")) > 1:
                os.write(pipe, NO.to_bytes(NUMBER, "big"))
                os.close(pipe)
            elif pid := os.fork():
                pipes[pid] = pipe
                os.write(pipe, pid.to_bytes(NUMBER, "big"))
            else:
                for number in (requests.detach(), woken, wake, pipe, *pipes.values()):
                    os.close(number)
                _become_worker(content, others)
            for number in (content, *others):
                os.close(number)


def _import(rank: int, modules: Iterable[str]) -> None:
    die_with(rank)  # even if an import never returns
    for name in modules:
        with suppress(Exception):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a worker would else write to each page that it shares with the others
    die_with(rank, THREAD_ENDED)


def _tell_ended(pipes: dict[int, int]) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pipe = pipes.pop(ended[0])
            with suppress(OSError):  # nobody waits for it
                os.write(pipe, ended[1].to_bytes(NUMBER, "big"))
            os.close(pipe)


def _become_worker(content: int, descriptors: Sequence[int]) -> NoReturn:
    """In the fork."""
    try:
        server = os.getppid()
        signal.set_wakeup_fd(-1)
        _Descriptor.arrived = descriptors
        with open(content, "rb") as from_rank:
            from_rank.seek(0)
            environ, work, pipes = pickle.load(from_rank)
        _set_environ(environ)
        _begin_random_numbers()
        keeper.begin(server, functools.partial(_with_its_threads, work), *pipes)
    finally:
        os._exit(1)


def _with_its_threads(work: keeper.Later, *pipes: Connection) -> None:
    """In the worker itself: libraries that the server has imported get as many threads as its variables say."""
    numbers = {library: os.environ.get(name, "1").partition(",")[0] for library, name in THREADS.items()}
    if set(numbers.values()) != {"1"}:
        from threadpoolctl import ThreadpoolController

        with suppress(ValueError):  # the variable of a user, which libraries leave alone as well
            for library in ThreadpoolController().lib_controllers:
                library.set_num_threads(int(numbers.get(library.internal_api, numbers["openmp"])))
            for module, name in (("torch", "openmp"), ("numexpr", "numexpr")):
                if module in sys.modules:
                    sys.modules[module].set_num_threads(int(numbers[name]))
    work(*pipes)


def _begin_random_numbers() -> None:
    """Of global generators, which would else be the same in each worker. Python itself seeds `random` after a fork."""
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if torch := sys.modules.get("torch"):
        torch.manual_seed(random.getrandbits(63))
