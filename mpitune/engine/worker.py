"""A worker: the process of one slot. It builds the objective once, then evaluates batches until told to end.

    agent -> worker    Work                 a batch, and the nodes that it has to itself, see `Gang`; or None: end
    worker -> agent    Forked(pid)          its process
                       Built()              the objective stands
                       Packed, NoRoom       one trial, as soon as it is known; the coordinator adds place and attempt.
                                            That of the last trial of a batch means that the objective is done with it
                       Logged(level, text)  a line of its log
                       WorkerProgress(unit, ...)   how far it is, once a second at most, for people
                       Error(traceback)     the objective raised where that ends the worker, see `answers`

Messages are pickles. Each one to the agent comes after its length, so that the agent never waits for the rest of a
message, as it would in `Connection.recv`.

A worker ends with its rank, even if the rank is killed, and what its trials have started ends with it: its parent sees
to that, see `mpitune.processes.keeper`. Its stdout and stderr go through a pipe to the agent, which
shows them with the trial's key, see `mpitune.engine.printed`, and keeps the last lines for the report of a crash.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import pickle
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import chain, count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

import numpy as np

from mpitune.devices.choose import hosts_here, set_hosts, workers_here
from mpitune.engine import seeding
from mpitune.engine.messages import STEP_SECONDS, WorkerProgress
from mpitune.engine.printed import Printed
from mpitune.errors import UsageError, named, own_traceback
from mpitune.experiment import Experiment, Objective, WorkerContext
from mpitune.memory.shared_arrays import MemoryFile, SharedArrays, Spec
from mpitune.processes import process
from mpitune.processes.process import begin_main
from mpitune.storage.files import read_at_most, written_whole
from mpitune.trial import PLAIN, Batch, Ending, Evaluation, Fault, NoRoom, Result, Trial, halves, is_group, trial_of

COPIED_SIZE = 1 << 26  # bytes of a file that each worker has a copy of
COPIES = ".copies"  # the file that has their names, and how each was
LENGTH = 8  # bytes before each message to the agent, which say how long it is
# In plain types: with classes, which pickle looks up by name, sending and receiving take twice as long.
Packed = tuple[Any, ...]  # a result
# Trials, see `Trial.plain`; hosts; what the objective hears before
Work = tuple[tuple[tuple[Any, ...], ...], tuple[str, ...], tuple[bytes, ...]]


@dataclass(frozen=True)
class Setup:
    """All a worker needs to know, pickled to it at its start."""

    experiment: bytes  # pickled by cloudpickle, so that its class may be defined in a script or a notebook
    data: Mapping[str, Spec]
    device: str  # "cpu" or "cuda"
    parent: int  # process id of the rank
    node_memory: MemoryFile | None = None  # see `WorkerContext`
    memory: int = 0  # bytes that were free on the node when its rank began
    folder: Path | None = None  # to work in


@dataclass(frozen=True, slots=True)
class Forked:
    """The process runs."""

    pid: int


@dataclass(frozen=True, slots=True)
class Built:
    """The objective stands."""


@dataclass(frozen=True, slots=True)
class Logged:
    """A line of the worker's log, with its level."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class ObjectiveRaised:
    """The objective raised, and the worker ends."""

    traceback: str


class _Gone(OSError):
    """The agent has gone, or has no use for this worker any more."""


def write(file: int, content: bytes) -> None:
    """Write all of it to a file. Raises OSError where nobody reads any more."""
    while content:
        content = content[os.write(file, content) :]


class _Wire(logging.Handler):
    """The pipe to the agent, which any thread may send to, and which the log goes to as well.

    A fork of this process says nothing there: its words could stand in the middle of others.
    """

    def __init__(self, pipe: Connection):
        super().__init__()
        self._pipe, self._pid = pipe.fileno(), os.getpid()
        self._next_step = 0.0  # when it may be sent

    @property
    def in_fork(self) -> bool:
        """Whether this process is a fork of the one that made this."""
        return os.getpid() != self._pid

    def send(self, message: Any) -> None:
        """Send one message."""
        if self.in_fork:
            return
        pickled = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        with self.lock or nullcontext():
            try:
                write(self._pipe, len(pickled).to_bytes(LENGTH, "big") + pickled)
            except BrokenPipeError:
                raise _Gone from None

    def report_step(self, done: float, total: float = 0.0, unit: str = "step", trials: int = 1) -> None:
        """See `WorkerContext`: send a step when the last one is old enough."""
        now = time.monotonic()
        if now >= self._next_step:
            self._next_step = now + STEP_SECONDS
            with suppress(_Gone):  # the next result finds that out
                self.send(WorkerProgress(str(unit)[:40], float(done), float(total), int(trials)))

    def emit(self, record: logging.LogRecord) -> None:
        """Called by `logging`, with the lock taken (it can be taken again)."""
        try:
            if self.in_fork:
                print(self.format(record), file=sys.stderr)
            self.send(Logged(record.levelno, self.format(record)))
        except Exception:
            self.handleError(record)


def enter(folder: Path) -> None:
    """Work in this folder, or in the next one that no worker of another job has.

    It gets what the present one has, each time anew: small files as copies, all else as links. What others have made or
    changed there, such as trials, stays.
    """
    for number in count(2):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.is_symlink() or folder.lstat().st_uid != os.getuid():
            raise UsageError(f"{folder} is a link or belongs to another user: give another worker_folders")
        try:
            fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends
            break
        except BlockingIOError:
            folder = folder.with_name(f"{folder.name.partition('+')[0]}+{number}")
    note, part, made, kept = folder / COPIES, folder / f"{COPIES}.part", {}, []
    with suppress(OSError):  # not of a link or a pipe
        words = iter(os.fsdecode(read_at_most(note, 1 << 30)).split("/"))
        made = dict(zip(words, words, strict=False))
    paths = {path.name: path for path in Path.cwd().iterdir() if not folder.is_relative_to(path)}
    for name in {*paths, *made} - {COPIES}:
        path, there = paths.get(name), folder / name
        if _stamp(there) not in ("", made.pop(name, ""), path and _stamp(path)):
            kept += [name] * bool(path and path.lstat().st_mtime > there.lstat().st_mtime)
        elif path:
            part.unlink(missing_ok=True)
            if path.is_file() and path.stat().st_size <= COPIED_SIZE:
                shutil.copy2(path, part)
            else:
                part.symlink_to(path)
            part.replace(there)  # as a part of a copy would stay
            made[name] = _stamp(there)
        else:
            there.unlink(missing_ok=True)
    with written_whole(note, durable=False) as file:
        file.write(os.fsencode("/".join(chain.from_iterable(made.items()))))
    if kept:
        logging.warning("%s: not copied anew, as changed in %s (delete it there)", named(sorted(kept)), folder.parent)
    os.chdir(folder)


def _stamp(path: Path) -> str:
    """What tells a file or link from a changed one; "" where there is none."""
    with suppress(FileNotFoundError):
        return f"{(status := path.lstat()).st_size} {status.st_mtime_ns}"
    return ""


class BuiltObjective:
    """An objective that stands, in a worker or in the rank's own process.

    held: sources of random numbers that it has, which begin anew with each trial, as the global ones do.
    """

    def __init__(self, experiment: Experiment, context: WorkerContext, held: list[list[Any]]):
        self._experiment, self._held = experiment, held
        seeding.begin(experiment, "setup", held)
        process.held = held
        self.function, process.held = experiment.objective(context), None

    def begin(self, trial: Trial) -> None:
        """Begin it, or its group, which may be divided."""
        seeding.begin(self._experiment, "group" if is_group((trial,)) else trial.key, self._held)

    def take(self, news: Iterable[bytes]) -> None:
        """See `Port.news_for_workers`."""
        for content in news:
            self.function.on_news(content)  # type: ignore[attr-defined]


def main(setup: Setup, batches: Connection, results: Connection, output: Connection) -> None:
    """Entry point of the process."""
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    begin_main()
    wire = _Wire(results)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[wire])
    logging.captureWarnings(True)
    printed = Printed()
    try:
        wire.send(Forked(os.getpid()))
        if setup.folder:
            enter(setup.folder)
        shared = SharedArrays(setup.data, writeable=False)
        share = setup.memory // workers_here()
        context = WorkerContext(setup.device, shared.arrays, setup.node_memory, workers_here(), wire.report_step, share)
        held: list[list[Any]] = []
        process.held = held
        experiment: Experiment = pickle.loads(setup.experiment)
        objective = BuiltObjective(experiment, context, held)
        keeps = bool(getattr(objective.function, "keeps_worker", setup.device == "cpu"))
        goes_on = lambda error: keeps and isinstance(error, Exception) and not isinstance(error, MemoryError)  # noqa: E731

        def begin(trial: Trial) -> None:
            printed.begin(trial.key)
            objective.begin(trial)

        known = hosts_here()
        wire.send(Built())
        incoming = open(batches.fileno(), "rb", closefd=False)  # noqa: SIM115 - until this process ends
        while (work := _next(incoming)) is not None:
            trials, hosts, told = work
            objective.take(told)
            if hosts != known:
                known = hosts
                set_hosts(hosts)
            batch = tuple([trial_of(*trial) for trial in trials])
            for answer in answers(objective.function, batch, goes_on, begin):
                wire.send(answer)
                if wire.in_fork:  # the objective has forked, and returned in the child as well
                    os._exit(0)
    except _Gone:
        pass
    except BaseException as error:
        with suppress(_Gone):
            wire.send(ObjectiveRaised(own_traceback(error)))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # without waiting for threads or destructors of the libraries used


def _next(incoming: IO[bytes]) -> Work | None:
    try:
        work: Work | None = pickle.load(incoming)
    except EOFError:
        raise _Gone from None
    return work


def answers(
    objective: Objective, batch: Batch, goes_on: Callable[[BaseException], bool], begin: Callable[[Trial], None]
) -> Iterator[Packed | NoRoom]:
    """As `evaluated`. An exception is the failure of the first trial without an answer, and the others go on.

    Of a group it is that of none: each half goes on by itself.
    A worker must be as good as before: it is not after a CUDA error, nor where memory has run out. So it is raised
    unless the worker `goes_on` after it, which an objective's attribute `keeps_worker` says: by default on CPUs.
    `begin` is called with each trial before it is evaluated.
    """
    left = {trial.key: trial for trial in batch}
    while left:
        begin(next(iter(left.values())))
        start = time.perf_counter()
        try:
            for answer in evaluated(objective, tuple(left.values())):
                del left[answer.key if isinstance(answer, NoRoom) else answer[0]]
                yield answer
                if left:
                    begin(next(iter(left.values())))
                start = time.perf_counter()
        except (Exception, SystemExit) as error:
            if not goes_on(error):
                raise
            if is_group(batch) and len(left) > 1:
                for part in halves(tuple(left.values())):
                    yield from answers(objective, part, goes_on, begin)
                return
            ending = Ending(fault=Fault.EXIT) if isinstance(error, SystemExit) else PLAIN
            failure = Evaluation(next(iter(left)), error=own_traceback(error), ending=ending)
        else:
            return
        del left[failure.key]
        yield _packed(failure, time.perf_counter() - start, raised=True)


def evaluated(objective: Objective, batch: Batch) -> Iterator[Packed | NoRoom]:
    """The results of a batch: each evaluation of the objective, checked, in plain types and timed.

    The last one comes when the objective has ended, and those of a group all of them, each with its share of the time.
    A value that is NaN makes the result a failed one.
    """
    if not is_group(batch):
        yield from _timed(objective, batch)
        return
    timed = list(_timed(objective, batch))
    yield from (answer for answer in timed if isinstance(answer, NoRoom))
    shared = [answer for answer in timed if not isinstance(answer, NoRoom)]
    share = sum(seconds for *_, seconds, _, _ in shared) / max(1, len(shared))
    for number, (*outcome, _, _, raised) in enumerate(shared, 1):
        *_, last, _ = shared[-1]
        yield *outcome, share, last - (len(shared) - number) * share, raised  # as if in turn


def _timed(objective: Objective, batch: Batch) -> Iterator[Packed | NoRoom]:
    open_keys = {trial.key for trial in batch}
    start = time.perf_counter()
    for answer in objective(batch):
        if answer.key not in open_keys:
            raise ValueError(f"the objective returned {answer.key!r}, which is not an open trial of its batch")
        open_keys.remove(answer.key)
        last = answer if isinstance(answer, NoRoom) else _packed(answer, time.perf_counter() - start)
        if open_keys:
            yield last
            start = time.perf_counter()
    if open_keys:
        raise ValueError(f"the objective returned nothing for {sorted(open_keys)[0]!r}")
    yield last


class Peak:
    """The most memory that the process `pid` has had, pages that it shares included, as its agent reads it.

    For a worker a look takes as long as a third of what it does between two trials. `getrusage` would count the process
    that it was forked from as well.
    """

    def __init__(self, pid: int) -> None:
        self._path, self._looked = f"/proc/{pid}/status", -math.inf
        self._bytes: int | None = None

    def read(self) -> int | None:
        """Bytes, at most a second old; of a process that has ended the last known ones, or None."""
        now = time.monotonic()
        if now - self._looked >= 1.0:
            self._looked = now
            with suppress(OSError), open(self._path, "rb", buffering=0) as file:
                if peak := re.search(rb"VmHWM:\s*(\d+)", file.read()):
                    self._bytes = int(peak[1]) << 10
        return self._bytes


def unpacked(answer: Packed | NoRoom, peak_bytes: int | None) -> Result | NoRoom:
    """What a worker has sent of a trial, with its peak of memory."""
    if isinstance(answer, NoRoom):
        return answer
    *outcome, ending, seconds, ended, raised = answer
    outcome.append(PLAIN if ending is None else Ending(*ending))
    return Result(*outcome, seconds=seconds, ended=ended, peak_bytes=peak_bytes, raised=raised)


def _packed(evaluation: Evaluation, seconds: float, *, raised: bool = False) -> Packed:
    values = {name: float(value) for name, value in evaluation.values.items()}
    error = evaluation.error
    if error is None and any(map(math.isnan, values.values())):
        error = f"the objective returned NaN as {', '.join(name for name in values if math.isnan(values[name]))}"
    arrays = {name: _plain(name, array) for name, array in evaluation.arrays.items()}
    outcome = {} if error else values, arrays, error, evaluation.doubt, evaluation.messages, evaluation.read
    ending = None if evaluation.ending is PLAIN else tuple(vars(evaluation.ending).values())
    return evaluation.key, *outcome, evaluation.user_attrs, ending, seconds, time.time(), raised


def _plain(name: str, array: Any) -> np.ndarray:
    array = np.asarray(array)
    if array.dtype.hasobject:
        raise TypeError(f"array {name!r} of a result holds objects: give numbers or fixed-width strings")
    return array
