"""The parent of a worker, which sees to it that nothing that the worker has started outlives it.

    rank -> keeper -> worker -> programs, forks, daemons: whatever a trial starts

The keeper is a child subreaper: what the worker's descendants leave behind becomes the keeper's child, in whatever
session it is. So all descendants of a keeper are its worker's, and nobody else's. When the worker has ended, when the
agent says so (END), and when the rank has ended in any way, the keeper kills the worker and sends SIGTERM to all that
is left, then SIGKILL after a moment. It ends when nothing is left, as the worker did: with its status or by its signal.

Keeper and worker lead sessions of their own, so signals to the rank's process group do not reach them. If somebody
kills the keeper itself, the worker ends with it, but not what the worker has started.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import resource
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import assert_spawning
from multiprocessing.reduction import ForkingPickler
from types import FrameType
from typing import Any, NoReturn

from mpitune.processes.process import STOPS, die_with

END = signal.SIGRTMIN  # to a keeper: end the worker and all that it has started
GRACE_S = 2.0  # from SIGTERM to SIGKILL
LONGEST_PAUSE_S = 5.0  # between two looks at what SIGKILL has not ended, such as a process in the kernel
_PR_SET_CHILD_SUBREAPER = 36
_kept, _scratch = False, ""


class Later:
    """A call that is pickled as bytes, so that a keeper imports nothing of what its worker needs."""

    def __init__(self, function: Callable[..., None], argument: Any) -> None:
        self._content: Any = (function, argument)

    def __reduce__(self) -> tuple[Any, ...]:
        assert_spawning(self)  # file descriptors in it are handed on
        return _later, (bytes(ForkingPickler.dumps(self._content)),)

    def __call__(self, *more: Any) -> None:
        function, argument = pickle.loads(self._content)
        function(argument, *more)


def _later(content: bytes) -> Later:
    later = Later.__new__(Later)
    later._content = content
    return later


def has_keeper() -> bool:
    """Whether this process is a worker whose keeper ends what it starts."""
    return _kept


def scratch_folder() -> str | None:
    """A folder for temporary files of this worker, which go with it however it ends; None in other processes."""
    if _kept:
        os.makedirs(_scratch, 0o700, exist_ok=True)
    return _scratch or None


def begin(parent: int, work: Callable[..., None], *arguments: Any) -> None:
    """Entry point of the keeper of process `parent`, whose child calls `work`.

    Of the arguments the child alone keeps the pipes open.
    """
    # From here on it does not end by END alone. The rank's end sends it too.
    signal.pthread_sigmask(signal.SIG_BLOCK, {END, signal.SIGCHLD})
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the rank may have been started with this signal ignored
    global _scratch
    _scratch = os.path.join(tempfile.gettempdir(), f"mpitune-{os.urandom(8).hex()}")
    die_with(parent, END)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.setsid()
    keeper = os.getpid()
    if child := os.fork():
        _become_keeper(pipe for pipe in arguments if isinstance(pipe, Connection))
        status = _keep(child)
        shutil.rmtree(_scratch, ignore_errors=True)
        _end_as(status)
    _become_worker(keeper)
    work(*arguments)


def _become_keeper(pipes: Iterable[Connection]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    for pipe in pipes:
        pipe.close()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)


def _become_worker(keeper: int) -> None:
    global _kept
    _kept = True
    os.setsid()
    die_with(keeper)
    for number in STOPS:
        # A scheduler may send them to all processes of a job; the rank decides. Signals that are ignored would stay
        # ignored in the programs that this process starts; those with a function have their usual effect there.
        signal.signal(number, _unheard)
        signal.siginterrupt(number, False)
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {END, signal.SIGCHLD, *STOPS})


def _unheard(number: int, frame: FrameType | None) -> None:
    pass


# Signals to stop end a fork of the worker, such as one of a pool of processes, which its parent ends by SIGTERM. They
# wait until that is so.
_forking = threading.local()


def _before_fork() -> None:
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _after_fork_in_child() -> None:
    for number in STOPS:
        if signal.getsignal(number) is _unheard:
            signal.signal(number, signal.SIG_DFL)
    _after_fork()


def _keep(worker: int) -> int:
    """Wait until the worker has ended, or is to end, and end all that it has left. Returns its status, as of wait."""
    ended: dict[int, int] = {}
    while _has_children(ended) and worker not in ended:
        if signal.sigwait({signal.SIGCHLD, END}) == END:
            os.kill(worker, signal.SIGKILL)
            break  # it may wait in the kernel for its own child, which must end first
    if _has_children(ended):
        _send(signal.SIGTERM)
    deadline, pause = time.monotonic() + GRACE_S, 0.05
    while _has_children(ended):
        if (left := deadline - time.monotonic()) <= 0:
            if not _send(signal.SIGKILL):  # what is left belongs to another user, as programs of sudo do
                break
            left = pause = min(2 * pause, LONGEST_PAUSE_S)
        signal.sigtimedwait({signal.SIGCHLD}, left)
    return ended.get(worker, signal.SIGKILL)


def _has_children(ended: dict[int, int]) -> bool:
    """Note the children that have ended, with their status. Returns whether there are others."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return True
            ended[pid] = status
    return False


def _send(number: int) -> int:
    """Send a signal to all descendants of this process. Returns how many could be sent it."""
    sent = 0
    for pid, born in _descendants().items():
        with suppress(OSError):  # it has ended, or belongs to another user
            if _parent_and_birth(pid)[1] == born:  # not one that has got the number since
                os.kill(pid, number)
                sent += 1
    return sent


def _descendants() -> dict[int, str]:
    """The numbers of all processes below this one, and when each was born."""
    known = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):  # it has just ended
                known[int(name)] = _parent_and_birth(int(name))
    descendants: dict[int, str] = {}
    above = {os.getpid()}
    while above:
        below = {pid: born for pid, (parent, born) in known.items() if parent in above}
        descendants |= below
        above = set(below)
    return descendants


def _parent_and_birth(pid: int) -> tuple[int, str]:
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b") ")[2].split()  # its name may have blanks and brackets
    return int(fields[1]), fields[19].decode()


def _end_as(status: int) -> NoReturn:
    """End this process as one of which `wait` gave this status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core of this process tells nothing
        with suppress(OSError):  # SIGKILL is as it is
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os._exit(os.waitstatus_to_exitcode(status))
