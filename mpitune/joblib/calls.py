"""Calls of functions on the workers of all nodes, which stay for the next calls: what `mpitune.joblib` stands on.

One thread of rank 0 runs a study whose trials are the calls (`mpitune.engine.arrivals`). It begins with the first call,
and ends when none has come for a while, when another study of this process begins, or with the script. A call and its
result are pickles. Large arrays in a call are sent to each node once, and lie in memory that all of its workers see.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import io
import itertools
import logging
import multiprocessing
import os
import pickle
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from queue import SimpleQueue
from typing import Any, NoReturn

import numpy as np
from joblib._memmapping_reducer import _get_backing_memmap, _reduce_memmap_backed

from mpitune import studies
from mpitune.devices.choose import free_memory
from mpitune.engine import rank
from mpitune.engine.arrivals import Arrivals
from mpitune.errors import StudyError, own_traceback
from mpitune.experiment import Data, Experiment, Objective, Scheduling, WorkerContext
from mpitune.memory.shared_arrays import SharedArrays
from mpitune.options import RunOptions
from mpitune.processes.process import IN_WORKER, WithSource, installed_modules_of, packed_error, unpacked_error
from mpitune.sklearn import callbacks
from mpitune.trial import Batch, Evaluation, Result, Rounds, Trial

log = logging.getLogger(__name__)

IDLE = 60.0  # seconds without a call after which workers end
LARGE = 1 << 20  # bytes of an array that is sent once
MOST_IDLE = 8  # arrays kept for later calls
SMALL = 1 << 28  # bytes of them for which there always is room

# Arrays that one caller has sent, with their names, by identity.
Known = dict[int, tuple[weakref.ref[np.ndarray], str]]


# -- in a worker


@dataclass(frozen=True)
class Calls(Experiment):
    """The study of calls. modules: that its workers import. environ: their variables."""

    modules: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()

    def searches(self) -> Iterator[Rounds]:
        return iter(())

    def scheduling(self) -> Scheduling:
        return Scheduling(preload=(__name__, *self.modules), prints_plainly=True, environ=dict(self.environ))

    def objective(self, worker: WorkerContext) -> Objective:
        import_module("mpitune.joblib")  # a call may name the backend

        begun: set[str] = set()

        def objective(batch: Batch) -> Iterator[Evaluation]:
            for trial in batch:
                relays = "sklearn.callback" in str(trial.params["call"])
                with callbacks.relayed(worker.tell) if relays else nullcontext(bytes) as messages:
                    answer = _called(trial, worker.data, begun)
                yield replace(answer, messages=messages())

        return objective


_reading: tuple[Data, bool] = {}, False  # of the call that is read: its arrays, and whether it may write to them


def _large(name: str, dtype: np.dtype, shape: tuple[int, ...], order: Any) -> np.ndarray:
    """A large array of the call that is read: a read-only view, or a copy where that is asked for."""
    data, writeable = _reading
    array: np.ndarray = data[name].view(dtype).reshape(shape, order=order)
    return array.copy(order="K") if writeable else array


def _called(trial: Trial, data: Data, begun: set[str]) -> Evaluation:
    """The pickled result of a call, or its exception, which another node may not have."""
    try:
        begin = str(trial.params["begin"])
        if begin and begin not in begun:
            pickle.loads(begin.encode("latin-1"))()
            begun.add(begin)
        call = str(trial.params["call"]).encode("latin-1")
        result = read_call(call, data, bool(trial.params["writeable"]))()
        buffers: list[pickle.PickleBuffer] = []
        file = io.BytesIO()
        WithSource(file, 5, buffer_callback=buffers.append).dump(result)
    except BaseException as error:  # also KeyboardInterrupt and SystemExit, as by joblib's own processes
        text = own_traceback(error)
        return Evaluation(trial.key, arrays={"raised": np.frombuffer(packed_error(error, text), np.uint8)}, doubt=text)
    arrays = {f"buffer{number:06}": np.frombuffer(buffer.raw(), np.uint8) for number, buffer in enumerate(buffers)}
    return Evaluation(trial.key, arrays={"result": np.frombuffer(file.getbuffer(), np.uint8), **arrays})


def read_call(content: bytes, data: Data, writeable: bool = False) -> Any:
    """What `packed_call` has packed, with views of the arrays, or with copies."""
    global _reading
    _reading = data, writeable
    return pickle.loads(content)


# -- on rank 0


def packed_call(thing: Any, arrays: dict[str, np.ndarray]) -> bytes:
    """A thing without its large arrays, whose contents are added to those of that name."""

    def keep(array: np.ndarray) -> str:
        content = np.ascontiguousarray(array if not array.flags.f_contiguous else array.T).reshape(-1).view(np.uint8)
        name = f"{hashlib.blake2b(content.data, digest_size=16).hexdigest()}-{content.size}"
        arrays[name] = content
        return name

    file = io.BytesIO()
    Writer(file, keep, LARGE).dump(thing)
    return file.getvalue()


def value_of(result: Result | Exception) -> Any:
    """What a call has returned. Raises what it has raised, or StudyError where its worker died each time."""
    if isinstance(result, Exception):
        raise result
    if result.failed:
        tries = "each of its tries" if result.attempt > 1 else "its try"
        raise StudyError(f"a call has no result, as the worker of {tries} ended: {result.error}")
    if "raised" in result.arrays:
        error = unpacked_error(np.asarray(result.arrays["raised"]).tobytes())
        error.add_note(f"raised at {result.place} (host/rank/slot/device)")
        raise error
    buffers = [array for name, array in sorted(result.arrays.items()) if name != "result"]
    return pickle.loads(result.arrays["result"].data, buffers=buffers)


class Writer(WithSource):
    """Pickles a call without its arrays of at least `large` bytes: `keep` gives each the name that stands for it.

    An array in a file that may be written to goes as the file's path, as by joblib's own processes.
    """

    def __init__(self, file: io.BytesIO, keep: Callable[[np.ndarray], str], large: float) -> None:
        super().__init__(file, 5)
        self._keep, self._large = keep, large
        self.names: list[str] = []

    def reducer_override(self, thing: Any) -> Any:
        if not isinstance(thing, np.ndarray):
            return super().reducer_override(thing)
        if (file := _file_of(thing)) is not None:
            return _reduce_memmap_backed(thing, file)
        plain = type(thing) in (np.ndarray, np.memmap) and not thing.dtype.hasobject
        if not plain or thing.nbytes < max(self._large, 1):
            return NotImplemented
        order = "F" if thing.flags.f_contiguous and not thing.flags.c_contiguous else "C"
        name = self._keep(thing)
        self.names.append(name)
        return _large, (name, thing.dtype, thing.shape, order)


def _file_of(array: np.ndarray) -> np.memmap | None:
    """The file that an array is a part of, if it may be written to."""
    file = _get_backing_memmap(array)
    return file if isinstance(file, np.memmap) and file.mode in ("r+", "w+") and file.filename is not None else None


class _Arrays:
    """The large arrays of open calls and of late ones, each known by a digest, in memory that workers can see."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, SharedArrays] = {}  # the one used last is the last
        self._n_open: Counter[str] = Counter()  # calls that need it

    def keep(self, array: np.ndarray, known: Known) -> str:
        """The name under which nodes get an array for one call, which `done` ends. known: arrays of one caller."""
        seen, name = known.get(id(array), (None, ""))
        with self._lock:
            if seen is not None and seen() is array and name in self._kept:
                self._n_open[name] += 1
                return name
        flat = np.ascontiguousarray(array) if not array.flags.f_contiguous else array.T
        content = np.ascontiguousarray(flat).reshape(-1).view(np.uint8)
        name = f"{hashlib.blake2b(content.data, digest_size=16).hexdigest()}-{content.size}"
        known[id(array)] = weakref.ref(array), name
        with self._lock:
            if name not in self._kept:
                kept = SharedArrays.of_bytes(name, content.size)
                kept.arrays[name][:] = content  # a copy: the caller may write to its array
                self._kept[name] = kept  # not before it is whole: Ctrl-C may come at any moment
            self._n_open[name] += 1
        return name

    def content(self, name: str) -> SharedArrays:
        with self._lock:
            return self._kept[name]

    def done(self, names: Sequence[str], forget: Callable[[Sequence[str]], None], most: int = MOST_IDLE) -> None:
        """A call with these arrays has ended. `forget` those not used for longest, beyond so many in no open call."""
        with self._lock:
            for name in names:
                self._n_open[name] -= 1
                self._kept[name] = self._kept.pop(name)
            idle = [name for name in self._kept if not self._n_open[name]]
            n_bytes = sum(self._kept[name].specs[name].nbytes for name in idle)
            if n_bytes > SMALL and n_bytes > free_memory():
                most = 0
            gone = idle[: max(len(idle) - most, 0)]
            for name in gone:
                self._kept.pop(name).close()
                del self._n_open[name]
            forget(gone)  # before another call can need one of them


class Service:
    """The workers of all nodes, as callers see them. One serves a process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._starting = threading.Lock()
        self._numbers = itertools.count()
        self._has_threads = False  # each empties one of these
        self._runs, self._late, self._answers = (SimpleQueue[Callable[[], None]]() for _ in range(3))
        self._run: tuple[tuple[Any, ...], Arrivals] | None = None  # options, and the study that has these
        self._ended = threading.Event()
        self._ended.set()
        self._is_over = False
        self._pid = os.getpid()
        self._callers: Counter[threading.Thread] = Counter()  # how many calls of each are open
        # Held while a call is added, and while a run is closed that has none; told when a thread has none any more.
        self._changed = threading.Condition()
        self._aborted: weakref.WeakKeyDictionary[threading.Thread, int] = weakref.WeakKeyDictionary()  # how often
        self.arrays = _Arrays()

    @property
    def is_open(self) -> bool:
        """Whether this thread may have calls made: not in a worker, a fork or another child, nor within a study."""
        is_child = multiprocessing.parent_process() is not None or os.getpid() != self._pid
        return not is_child and not IN_WORKER and not studies.leads()

    def works_for_others(self, caller: threading.Thread | None) -> bool:
        """Whether calls of other threads than this one are open, which still live."""
        return any(other is not caller and other.is_alive() for other in list(self._callers))

    def call(
        self,
        content: bytes,
        names: Sequence[str],
        done: Callable[[Result | Exception], None],
        caller: threading.Thread,
        *,
        begin: bytes,
        writeable: bool,
        **options: Any,
    ) -> None:
        """Have a pickled call made.

        Args:
            content: the call.
            names: of the arrays that it needs.
            done: gets the result, in a thread that all callers share and that may wait.
            caller: who waits for it. Its calls are not ended by those of others.
            begin: a pickled call that each worker makes before the first one with it.
            writeable: whether the call has copies of the arrays.
            options: of the run, and `environ` of its workers.
        """
        texts = {"call": content.decode("latin-1"), "begin": begin.decode("latin-1"), "arrays": " ".join(names)}
        trial = Trial(f"call{next(self._numbers)}", {**texts, "writeable": writeable})

        def ended(result: Result | Exception) -> None:
            self.arrays.done(names, self.forget)
            # The caller may hold a lock that `done` takes, or make calls in it: the thread of the run never waits.
            self._answers.put(lambda: done(result))
            self._count(caller, -1)

        asked = tuple(sorted(options.items()))

        def add() -> bool:
            with self._changed:
                if self._run is None or self._run[0] != asked or not self._run[1].add(trial, ended):
                    return False
                self._count(caller, 1)
            return True

        n_aborted = self._aborted.get(caller, 0)

        def begin_for_it() -> None:
            try:
                while self._aborted.get(caller, 0) == n_aborted:
                    if add():
                        return
                    self._begin(content, asked)
                raise StudyError(ENDED)
            except Exception as error:
                self._count(caller, 1)
                ended(error)

        if not add():
            # For the same reason the caller does not wait for the end of a run: another thread does.
            self._start_threads()
            self._late.put(begin_for_it)

    def _count(self, caller: threading.Thread, more: int) -> None:
        """Note that a thread has more open calls, or fewer."""
        with self._changed:
            self._callers[caller] += more
            if not self._callers[caller]:
                del self._callers[caller]
                self._changed.notify_all()

    def make_way(self) -> None:
        """Another study begins: end, once no calls are open, those of this thread neither."""
        if self.is_open and not self._ended.is_set():
            self._close_once_idle()

    def _close_once_idle(self) -> None:
        with self._changed:
            while self.works_for_others(None):
                self._changed.wait(timeout=1.0)  # a thread may end
            self._close_run()
        self._ended.wait()

    def _close_run(self) -> None:
        if self._run is not None:
            self._run[1].close()

    def forget(self, names: Sequence[str]) -> None:
        """Let all nodes give up the memory of these arrays."""
        if self._run is not None:
            self._run[1].forget(names)

    def close(self) -> None:
        """End all calls and all workers, on all nodes, and wait for that."""
        if os.getpid() != self._pid:  # a fork, which has none
            return
        self._close_run()
        self._ended.wait()

    def end(self) -> None:
        """As `close`, and no call begins another run."""
        with self._lock:
            self._is_over = True
            self.close()

    def abort(self, caller: threading.Thread) -> None:
        """End the calls of this thread that wait for a run; and the run, unless others have calls in it, too."""
        self._aborted[caller] = self._aborted.get(caller, 0) + 1
        with self._changed:
            if self.works_for_others(caller):
                return
            self._close_run()
        self._ended.wait()

    def _start_threads(self) -> None:
        """Once in a process. All runs have one thread: a worker that is spawned ends with the one that started it.

        The calling thread joins the ranks, as MPI ends in the thread that began it.
        """
        with self._starting:
            if self._has_threads:
                return
            with studies.alone(asks=False):
                studies.join(RunOptions(heartbeat_timeout=0.0))
            self._has_threads = True
            queues = {"mpitune-calls": self._runs, "mpitune-late-calls": self._late, "mpitune-answers": self._answers}
            for name, queue in queues.items():
                threading.Thread(target=_work, args=(queue,), name=name, daemon=True).start()
            atexit.register(self.close)
            studies.before.append(self.make_way)

    def _begin(self, content: bytes, asked: tuple[Any, ...]) -> None:
        """Begin a run with these options, once no calls are open in one with others."""
        self._close_once_idle()
        given = dict(asked)
        experiment = Calls(tuple(installed_modules_of(content)), given.pop("environ"))
        options = RunOptions(quiet=True, **given)
        with self._lock:
            if self._is_over:
                raise StudyError(ENDED)
            arrays = self.arrays.content, lambda trial: str(trial.params["arrays"]).split()
            arrivals = Arrivals(IDLE, *arrays, hear=callbacks.deliver)
            self._run = asked, arrivals
            self._ended.clear()

        def run() -> None:
            why: Exception = StudyError(ENDED)
            try:
                with studies.alone(asks=False):
                    studies.ask(functools.partial(take_part, experiment, options))
                    if cause := take_part(experiment, options, arrivals):
                        why = StudyError(cause)
            except BaseException as error:
                why = error if isinstance(error, Exception) else StudyError(f"{ENDED} by {type(error).__name__}")
            finally:
                arrivals.end(why)
                self.arrays.done((), arrivals.forget, most=0)
                self._ended.set()

        self._runs.put(run)


def _work(queue: SimpleQueue[Callable[[], None]]) -> NoReturn:
    while True:
        try:
            queue.get()()
        except BaseException:  # of a caller's own: the thread is for all of them
            log.exception("a result could not be passed on")


ENDED = "the workers of this call were ended"
service = Service()


def take_part(experiment: Calls, options: RunOptions, arrivals: Arrivals | None = None) -> str:
    """One rank's part of a run. arrivals: on rank 0. Returns why it could not go on; raises UsageError."""
    transport = studies.join(options)
    with rank.taking_part("calls", transport):
        return rank.run(
            experiment, "calls", options=options, transport=transport, load_finish=None, arrivals=arrivals
        ).cause
