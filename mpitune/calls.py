"""Calls of functions on the workers of all nodes, which stay for the next calls: what `mpitune.joblib` stands on.

One thread of rank 0 runs a study whose trials are the calls (`mpitune.engine.arrivals`). It begins with the first call,
and ends when none has come for a while, when another study of this process begins, or with the script. A call and its
result are pickles. Large arrays in a call are sent to each node once, and lie in memory that all of its workers see.
"""

from __future__ import annotations

import atexit
import hashlib
import io
import itertools
import pickle
import socket
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import cloudpickle
import numpy as np

from mpitune import studies
from mpitune.engine import node
from mpitune.engine.arrivals import Arrivals
from mpitune.engine.options import RunOptions
from mpitune.errors import Exit, StudyError, UsageError, own_traceback
from mpitune.experiment import Data, Experiment, Objective, Scheduling, WorkerContext
from mpitune.ranks.fork_server import installed_modules_of
from mpitune.ranks.process import WithSource
from mpitune.ranks.transport import Transport
from mpitune.trial import Batch, Evaluation, Result, Rounds, Trial

IDLE = 60.0  # seconds without a call after which workers end
LARGE = 1 << 20  # bytes of an array that is sent once


# -- in a worker


@dataclass(frozen=True)
class Calls(Experiment):
    """The study of calls. modules: that its workers import."""

    modules: tuple[str, ...] = ()

    def searches(self) -> Iterator[Rounds]:
        return iter(())

    def scheduling(self) -> Scheduling:
        return Scheduling(preload=(__name__, *self.modules), prints_plainly=True)

    def objective(self, worker: WorkerContext) -> Objective:
        begun: set[str] = set()

        def objective(batch: Batch) -> Iterator[Evaluation]:
            for trial in batch:
                yield _called(trial, worker.data, begun)

        return objective


class _Reader(pickle.Unpickler):
    """Reads a call; its large arrays are read-only views, or copies where that is asked for."""

    def __init__(self, content: bytes, data: Data, writeable: bool) -> None:
        super().__init__(io.BytesIO(content))
        self._data, self._writeable = data, writeable

    def persistent_load(self, pid: Any) -> np.ndarray:
        name, dtype, shape, order = pid
        array: np.ndarray = self._data[name].view(dtype).reshape(shape, order=order)
        return array.copy(order="K") if self._writeable else array


def _called(trial: Trial, data: Data, begun: set[str]) -> Evaluation:
    """The pickled result of a call, or its exception, which another node may not have."""
    try:
        begin = str(trial.params["begin"])
        if begin and begin not in begun:
            pickle.loads(begin.encode("latin-1"))()
            begun.add(begin)
        content = str(trial.params["call"]).encode("latin-1")
        result = _Reader(content, data, bool(trial.params["writeable"])).load()()
        buffers: list[pickle.PickleBuffer] = []
        file = io.BytesIO()
        WithSource(file, 5, buffer_callback=buffers.append).dump(result)
    except BaseException as error:  # also KeyboardInterrupt and SystemExit, as by joblib's own processes
        return Evaluation(trial.key, arrays={"raised": _pickled_error(error)}, doubt=own_traceback(error))
    arrays = {f"buffer{number:06}": np.frombuffer(buffer.raw(), np.uint8) for number, buffer in enumerate(buffers)}
    return Evaluation(trial.key, arrays={"result": np.frombuffer(file.getbuffer(), np.uint8), **arrays})


def _pickled_error(error: BaseException) -> np.ndarray:
    text = own_traceback(error)
    try:
        content = cloudpickle.dumps((error, text))
        pickle.loads(content)
    except Exception:  # whatever its own pickling raises
        content = cloudpickle.dumps((RuntimeError(text), text))
    return np.frombuffer(content, np.uint8)


# -- on rank 0


class RemoteTraceback(Exception):
    """The traceback of a call as its worker had it: the cause of the exception here."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def value_of(result: Result | Exception) -> Any:
    """What a call has returned. Raises what it has raised, or StudyError where its worker died each time."""
    if isinstance(result, Exception):
        raise result
    if result.failed:
        tries = "each of its tries" if result.attempt > 1 else "its try"
        raise StudyError(f"a call has no result, as the worker of {tries} ended: {result.error}")
    if "raised" in result.arrays:
        error, text = pickle.loads(np.asarray(result.arrays["raised"]).tobytes())
        error.__cause__ = RemoteTraceback(text)
        error.add_note(f"raised at {result.place} (host/rank/slot/device)")
        raise error
    buffers = [array for name, array in sorted(result.arrays.items()) if name != "result"]
    return pickle.loads(result.arrays["result"].data, buffers=buffers)


class Writer(WithSource):
    """Pickles a call without its large arrays, which `shared` keeps."""

    def __init__(self, file: io.BytesIO, keep: Callable[[np.ndarray], str], large: float) -> None:
        super().__init__(file, 5)
        self._keep, self._large = keep, large
        self.names: list[str] = []

    def persistent_id(self, thing: Any) -> Any:
        if type(thing) not in (np.ndarray, np.memmap) or thing.nbytes < self._large or thing.dtype.hasobject:
            return None
        order = "F" if thing.flags.f_contiguous and not thing.flags.c_contiguous else "C"
        name = self._keep(thing)
        self.names.append(name)
        return name, thing.dtype, thing.shape, order


class _Arrays:
    """The large arrays of calls: each is known by a digest, and stays for the next call that has it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._content: dict[str, np.ndarray] = {}  # flat bytes, while a caller is at work
        self._users: dict[str, set[object]] = {}
        self._recent: list[set[str]] = [set(), set()]  # names of the last two callers

    def keep(self, array: np.ndarray, user: object, known: dict[int, tuple[np.ndarray, str]]) -> str:
        """Its name, by which a node has its bytes. known: arrays of this caller, by identity."""
        if (before := known.get(id(array))) is not None:
            return before[1]
        flat = np.ascontiguousarray(array) if not array.flags.f_contiguous else array.T
        content = np.ascontiguousarray(flat).reshape(-1).view(np.uint8)
        name = f"{hashlib.blake2b(content.data, digest_size=16).hexdigest()}-{content.size}"
        known[id(array)] = array, name
        with self._lock:
            self._content[name] = content
            self._users.setdefault(name, set()).add(user)
        return name

    def content(self, name: str) -> memoryview:
        with self._lock:
            return self._content[name].data

    def leave(self, user: object, forget: Callable[[Sequence[str]], None]) -> None:
        """A caller has ended: `forget` arrays that none of the last callers had."""
        with self._lock:
            mine = {name for name, users in self._users.items() if user in users}
            if mine:
                self._recent = [self._recent[1], mine]
            for name in mine:
                self._users[name].discard(user)
            recent = set().union(*self._recent)
            gone = [name for name, users in self._users.items() if not users and name not in recent]
            for name in [name for name, users in self._users.items() if not users]:
                self._content.pop(name, None)
            for name in gone:
                del self._users[name]
            forget(gone)


class Service:
    """The workers of all nodes, as callers see them. One serves a process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._runs: SimpleQueue[Callable[[], None]] | None = None
        self._arrivals: Arrivals | None = None
        self._ended = threading.Event()
        self._ended.set()
        self._asked: tuple[Any, ...] = ()
        self.arrays = _Arrays()

    def call(
        self,
        content: bytes,
        names: Sequence[str],
        done: Callable[[Result | Exception], None],
        *,
        begin: bytes,
        writeable: bool,
        **options: Any,
    ) -> None:
        """Have a pickled call made.

        Args:
            content: the call.
            names: of the arrays that it needs.
            done: gets the result, in another thread.
            begin: a pickled call that each worker makes before the first one with it.
            writeable: whether the call has copies of the arrays.
            options: of the run.
        """
        texts = {"call": content.decode("latin-1"), "begin": begin.decode("latin-1"), "arrays": " ".join(names)}
        trial = Trial(f"call{next(self._numbers)}", {**texts, "writeable": writeable})
        asked = tuple(sorted(options.items()))
        if threading.current_thread().name == THREAD:  # it ends its own run, so it waits for none
            if self._arrivals is None or not self._arrivals.add(trial, done):
                done(StudyError(ENDED))
            return
        with self._lock:
            if asked != self._asked:
                self.close()
            while self._arrivals is None or not self._arrivals.add(trial, done):
                self._begin(content, asked)

    def leave(self, user: object) -> None:
        """A caller has ended."""
        arrivals = self._arrivals
        self.arrays.leave(user, lambda names: None if arrivals is None else arrivals.forget(names))

    def close(self) -> None:
        """End all calls and all workers, on all nodes, and wait for that."""
        if self._arrivals is not None:
            self._arrivals.close()
        if threading.current_thread().name != THREAD:
            self._ended.wait()

    def _begin(self, content: bytes, asked: tuple[Any, ...]) -> None:
        self._ended.wait()
        options = RunOptions(quiet=True, **dict(asked))
        transport = studies.join(options)  # by this thread: MPI ends in the one that began it
        if self._runs is None:
            self._runs = SimpleQueue()
            threading.Thread(target=self._work, name=THREAD, daemon=True).start()
            atexit.register(self.close)
            studies.before.append(self.close)
        experiment = Calls(tuple(installed_modules_of(content)))
        arrivals = Arrivals(IDLE, self.arrays.content, lambda trial: str(trial.params["arrays"]).split())
        self._arrivals, self._asked = arrivals, asked
        self._ended.clear()
        if transport.size > 1:
            transport.broadcast(("calls", experiment, options))

        def run() -> None:
            why: Exception = StudyError(ENDED)
            try:
                if cause := take_part(transport, experiment, options, arrivals):
                    why = StudyError(cause)
            except Exception as error:
                why = error
            finally:
                arrivals.end(why)
                self._ended.set()

        self._runs.put(run)

    def _work(self) -> None:
        """All runs have one thread: the server that forks workers ends with the thread that started it."""
        assert self._runs is not None
        while True:
            self._runs.get()()


THREAD = "mpitune-calls"
ENDED = "the workers of this call were ended"
service = Service()


def take_part(transport: Transport, experiment: Calls, options: RunOptions, arrivals: Arrivals | None = None) -> str:
    """One rank's part of a run. arrivals: on rank 0. Returns why it could not go on; raises UsageError."""
    host = socket.gethostname().split(".")[0]
    try:
        ended = node.run(
            experiment, "calls", options=options, transport=transport, host=host, load_finish=None, arrivals=arrivals
        )
    except UsageError:
        transport.settle()
        raise
    except BaseException:
        if transport.size > 1:  # the other ranks would wait for this one
            traceback.print_exc()
            transport.abort(Exit.ERROR)
        raise
    transport.settle()
    return ended.cause
