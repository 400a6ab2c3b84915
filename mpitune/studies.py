"""Studies from Python code, without a command line."""

from __future__ import annotations

import atexit
import functools
import inspect
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from mpitune.engine import rank
from mpitune.engine.progress import logging_here
from mpitune.engine.rank_zero import Ended
from mpitune.errors import Exit, StudyError, StudyInterrupted, UsageError, is_kept, keeping, mended, typed
from mpitune.experiment import Experiment
from mpitune.options import RunOptions, usual_options
from mpitune.processes.output import outliving
from mpitune.processes.process import in_child, of_this_process, sendable
from mpitune.processes.stops import Stopped
from mpitune.ranks import launch
from mpitune.ranks.launch import connect, launched
from mpitune.ranks.transport import Transport
from mpitune.report import write_page
from mpitune.scripts import errors_in_one_line
from mpitune.trial import Outcome, Result

P = ParamSpec("P")
T = TypeVar("T")


def advice() -> str:
    """What to do after no trial has succeeded."""
    then = f"; {debug} raises it in this process, where a debugger can stop" if (debug := typed("debug")) else ""
    return f"Correct that and run it again{then}."


def on_all_ranks(*but: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorates what every rank of a user's script calls.

    Where rank 0 alone runs the script, the others are asked to call it, too, without the keyword arguments `but`. What
    ends the script there is said in plain words, also an argument that it does not have.
    """

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        known = inspect.signature(function).parameters

        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> T:
            positional = tuple(map(_listed, args))
            named: dict[str, Any] = {name: _listed(value) for name, value in kwargs.items()}
            for_others = {name: value for name, value in named.items() if name not in but}
            with outliving(), errors_in_one_line(), alone():
                if (name := next((name for name in kwargs if name not in known), None)) is not None:
                    raise UsageError(f"{function.__name__}() has no argument {name}: {mended(name, known)}")
                ask(functools.partial(called, *positional, **for_others))
                return function(*positional, **named)

        return called

    return decorated


def _listed(argument: Any) -> Any:
    """An argument that can be sent, and read more than once."""
    return list(argument) if isinstance(argument, Iterator) else argument


@on_all_ranks()
def run_study(experiment: Experiment, options: RunOptions | None = None) -> list[Outcome]:
    """Run a study on all devices that `options` name, as a program of its own would, and return what it found.

    Under mpirun or srun every rank calls it, as often as the others, and all get the outcomes. Classes, functions and
    lambdas of a script or a notebook reach the workers; a script needs no `if __name__ == "__main__"`.

    Args:
        experiment: Frozen dataclass; the same on all ranks.
        options: How it is run. `results` is the folder that keeps the study, so that the same call continues it, and
            where its report goes; without one nothing is kept and there is no report. `workers=0` evaluates in this
            process, where no time limit holds; `debug=True`, too, and raises what the objective raises.

    Returns:
        Every trial with its result, in the order asked, failed ones too.

    Raises:
        UsageError: The options, the machine or the results folder are not as they should be.
        StudyError: No trial succeeds, as the objective raises or no worker is left.
        KeyboardInterrupt, SystemExit: The study was told to stop by SIGINT, or by SIGTERM, SIGUSR1 or a time limit.
            What was finished is in the results folder; with one, a script that is ended by this has status 75.
    """
    options = options or usual_options(keeps=False)
    if options.workers != 0 and multiprocessing.current_process().daemon:
        raise UsageError("a process of a Pool may start no workers: give workers=0, or take a ProcessPoolExecutor")
    name = type(experiment).__name__
    with ExitStack() as stack:
        transport = join(options)
        stack.enter_context(logging_here(transport.rank, options))
        keep = options.results is not None
        stack.enter_context(keeping(keep and (is_kept() or threading.get_ident() in _studying)))
        if transport.rank == 0 and not keep:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="study-")))
            options = replace(options, results=folder)
        _studying.add(threading.get_ident())
        stack.callback(_studying.discard, threading.get_ident())
        try:
            with rank.taking_part(name, transport):
                answer: Ended | UsageError
                try:
                    finish = write_page if keep else None
                    answer = rank.run(experiment, name, options=options, transport=transport, finish=finish)
                    if transport.size > 1 or not keep:  # files that others cannot see
                        answer = replace(answer, outcomes=[_read(outcome) for outcome in answer.outcomes])
                except UsageError as error:
                    answer = error
                answer = transport.broadcast(answer)
                transport.settle()  # a long message needs its sender until it has arrived
        except Stopped as stopped:
            if stopped.number != signal.SIGINT:  # whose exception says it
                print(f"{name}: {stopped}", file=sys.stderr)
            raise _stop(stopped.number, keep) from None
    if isinstance(answer, UsageError):
        raise answer
    if answer.status == Exit.ERROR:
        raise StudyError(f"{answer.cause}\n{advice()}")
    if answer.status == Exit.STOPPED:
        raise _stop(answer.stopped_by, keep)
    return list(answer.outcomes)


def join(options: RunOptions) -> Transport:
    """The wires to the other ranks of a script, for who is `alone`. Raises UsageError."""
    if in_child() and any(other.size > 1 for other in _parting):
        raise UsageError("a study begins in a child of the script, on several ranks: begin it in the script itself")
    transport = connect(launched(), options.expect_nodes, options.heartbeat_timeout)
    if transport.size > 1 and threading.get_ident() in _studying:
        raise UsageError("a study begins within another one, on several ranks: begin it when that has ended")
    if not _parting:
        _part_at_the_end(transport)
    return transport


def ask(task: Callable[[], Any]) -> None:
    """Have the other ranks do this, where they wait for it. For who is `alone`, and has asked for nothing around it."""
    if not launch.others_wait or len(_leaders) > 1:
        return
    content = sendable("what the other ranks need", task, "make it in setup(device), or in objective()")
    join(RunOptions(heartbeat_timeout=0.0)).broadcast(content)


def serve(transport: Transport) -> None:
    """On a rank other than 0: do what rank 0, which alone runs the script, asks for; until it `dismiss`es."""
    while content := transport.broadcast(None):
        try:
            task = pickle.loads(content)
        except Exception as error:  # whatever the thing's own unpickling raises
            print(f"what rank 0 sends for a study cannot be read: {type(error).__name__}: {error}", file=sys.stderr)
            transport.abort(Exit.USAGE)
        with suppress(UsageError, StudyError, KeyboardInterrupt, SystemExit):  # rank 0 has it, too
            task()
    transport.settle()


def dismiss(transport: Transport) -> None:
    """On rank 0: it will ask for nothing more."""
    with alone():
        transport.broadcast(b"")
        transport.settle()


@contextmanager
def led(transport: Transport) -> Iterator[bool]:
    """Whether this is rank 0, which alone does what follows. The others do what it asks for, until this ends."""
    if transport.rank:
        serve(transport)
    leads = transport.rank == 0
    if not leads or launch.others_wait or transport.size == 1:  # as under python -m mpitune
        yield leads
        return
    launch.others_wait = True
    try:
        yield True
    finally:
        launch.others_wait = False
        dismiss(transport)


def n_ranks() -> int:
    """How many there are: a launcher may not say it, but they do."""
    return launched().size or join(RunOptions(heartbeat_timeout=0.0)).size


def _read(outcome: Outcome) -> Outcome:
    result: Result = outcome.result
    return Outcome(outcome.trial, replace(result, arrays=dict(result.arrays)))


def _stop(number: int | None, keep: bool) -> BaseException:
    """What ends a script whose study was told to stop. `keep`: whether it can continue."""
    if number != signal.SIGINT:
        return SystemExit(int(Exit.STOPPED))
    return StudyInterrupted(Stopped(number)) if keep else KeyboardInterrupt()


@contextmanager
def alone() -> Iterator[None]:
    """Studies of several threads run one after the other: they have the same wires, environment and devices."""
    with _one:
        _leaders.append(threading.get_ident())
        try:
            yield
        finally:
            _leaders.pop()


def leads() -> bool:
    """Whether this thread is in a study."""
    return threading.get_ident() in _leaders


def stays() -> bool:
    """Whether a call of another library is its own, as it is made within a trial, or in a child of the script."""
    return leads() or in_child()


def _begin_child() -> None:
    """In a fork no other thread lives that may have had the lock."""
    if not leads():
        _one._at_fork_reinit()  # type: ignore[attr-defined]
        for kept in (_leaders, _studying):
            kept.clear()


_one = threading.RLock()
_leaders: list[int] = []  # threads that have it, one as often as it does
_studying: set[int] = set()  # threads that run a study
os.register_at_fork(after_in_child=_begin_child)
_parting: list[Transport] = []  # the transport that is closed when this script ends


def _part_at_the_end(transport: Transport) -> None:
    """A script's ranks wait for each other at its end, and an exception in one of them ends all."""
    _parting.append(transport)
    if transport.size == 1:
        return
    shown, abort = sys.excepthook, of_this_process(lambda: transport.abort(Exit.ERROR))

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        with outliving():
            shown(kind, error, trace)
        abort()

    sys.excepthook = excepthook
    atexit.register(of_this_process(transport.close))
