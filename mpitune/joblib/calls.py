"""Calls of functions on the workers of all nodes, which stay for the next calls: what `mpitune.joblib` stands on.

One thread of rank 0 runs a study whose trials are the calls (`arrivals.py`). It begins with the first call,
and ends when none has come for a while, when another study of this process begins, or with the script. A call and its
result are pickles. Large arrays in a call are sent to each node once, and lie in memory that all of its workers see.
"""

from __future__ import annotations

import atexit
import functools
import io
import itertools
import logging
import os
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from queue import SimpleQueue
from typing import Any, NoReturn

import numpy as np

from mpitune import studies
from mpitune.engine import rank
from mpitune.errors import StudyError, own_traceback
from mpitune.experiment import Data, Experiment, Objective, WorkerContext
from mpitune.joblib.arrays import Arrays
from mpitune.joblib.arrivals import Arrivals
from mpitune.options import RunOptions
from mpitune.port import Scheduling
from mpitune.processes.fork_server import set_threads
from mpitune.processes.pickles import read_call
from mpitune.processes.process import WithSource, in_child, installed_modules_of, packed_error
from mpitune.trial import Batch, Evaluation, Result, Rounds, Trial

log = logging.getLogger(__name__)

IDLE = 60.0  # seconds without a call after which workers end


@dataclass(frozen=True)
class Calls(Experiment):
    """The study of calls. modules: that its workers import. environ: their variables."""

    modules: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()

    def searches(self) -> Iterator[Rounds]:
        return iter(())

    def scheduling(self) -> Scheduling:
        return Scheduling(preload=(__name__, *self.modules), prints_plainly=True)

    def objective(self, worker: WorkerContext) -> Objective:
        import_module("mpitune.joblib")  # a call may name the backend
        if self.environ:
            os.environ.update(self.environ)
            set_threads()
        begun: set[str] = set()

        def objective(batch: Batch) -> Iterator[Evaluation]:
            for trial in batch:
                yield _called(trial, worker.data, begun)

        return objective


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


class Service:
    """The workers of all nodes, as callers see them. One serves a process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._starting = threading.Lock()  # of who begins a run
        self._numbers = itertools.count()
        self._has_threads = False  # each empties one of these
        self._runs, self._answers = SimpleQueue[Callable[[], None]](), SimpleQueue[Callable[[], None]]()
        self._run: tuple[tuple[Any, ...], Arrivals] | None = None  # options, and the study that has these
        self._ended = threading.Event()
        self._ended.set()
        self._is_over = False
        self._callers: Counter[threading.Thread] = Counter()  # how many calls of each are open
        # Held while a call is added, and while a run is closed that has none; told when a thread has none any more.
        self._changed = threading.Condition()
        self.arrays = Arrays()

    @property
    def is_open(self) -> bool:
        """Whether this thread may have calls made: not in a worker, a fork or another child, nor within a study."""
        return not studies.stays()

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

        settings = tuple(sorted(options.items()))

        def add() -> bool:
            with self._changed:
                if self._run is None or self._run[0] != settings or not self._run[1].add(trial, ended):
                    return False
                self._count(caller, 1)
            return True

        if add():
            return
        try:
            with self._starting:
                while not add():
                    self._begin(content, settings)
        except Exception as error:
            self._count(caller, 1)
            ended(error)

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
        if in_child():  # which has none
            return
        self._close_run()
        self._ended.wait()

    def end(self) -> None:
        """As `close`, and no call begins another run."""
        with self._lock:
            self._is_over = True
            self.close()

    def abort(self, caller: threading.Thread) -> None:
        """End the run, unless other threads have calls in it, too."""
        with self._changed:
            if self.works_for_others(caller):
                return
            self._close_run()
        self._ended.wait()

    def _start_threads(self) -> None:
        """Once in a process. All runs have one thread: a worker that is spawned ends with the one that started it.

        The calling thread joins the ranks, as MPI ends in the thread that began it.
        """
        if self._has_threads:
            return
        with studies.alone(asks=False):
            studies.join(RunOptions(heartbeat_timeout=0.0))
        self._has_threads = True
        for name, queue in {"mpitune-calls": self._runs, "mpitune-answers": self._answers}.items():
            threading.Thread(target=_work, args=(queue,), name=name, daemon=True).start()
        atexit.register(self.close)
        studies.before.append(self.make_way)

    def _begin(self, content: bytes, settings: tuple[Any, ...]) -> None:
        """Begin a run with these options, once no calls are open in one with others.

        What it waits for is done in the thread of the run. So the caller may hold a lock that answers need.
        """
        self._start_threads()
        self._close_once_idle()
        arguments = dict(settings)
        experiment = Calls(tuple(installed_modules_of(content)), arguments.pop("environ"))
        options = RunOptions(quiet=True, **arguments)
        with self._lock:
            if self._is_over:
                raise StudyError(WORKERS_ENDED)
            arrays = self.arrays.content, lambda trial: str(trial.params["arrays"]).split()
            arrivals = Arrivals(IDLE, *arrays, port=experiment)
            self._run = settings, arrivals
            self._ended.clear()

        def run() -> None:
            why: Exception = StudyError(WORKERS_ENDED)
            try:
                with studies.alone(asks=False):
                    studies.ask(functools.partial(take_part, experiment, options))
                    if cause := take_part(experiment, options, arrivals):
                        why = StudyError(cause)
            except BaseException as error:
                why = (
                    error if isinstance(error, Exception) else StudyError(f"{WORKERS_ENDED} by {type(error).__name__}")
                )
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


WORKERS_ENDED = "the workers of this call were ended"
service = Service()


def take_part(experiment: Calls, options: RunOptions, arrivals: Arrivals | None = None) -> str:
    """One rank's part of a run. arrivals: on rank 0. Returns why it could not go on; raises UsageError."""
    transport = studies.join(options)
    with rank.taking_part("calls", transport):
        lead = None if arrivals is None else arrivals.run
        return rank.run(experiment, "calls", options=options, transport=transport, finish=None, lead=lead).cause
