"""Processes that end with the one that started them."""

from __future__ import annotations

import ctypes
import functools
import io
import linecache
import multiprocessing
import operator
import os
import pickle
import pickletools
import random
import signal
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pkgutil import resolve_name
from typing import Any

import cloudpickle
import numpy as np

from mpitune.errors import UsageError

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # they ask a search to stop
WORKERS_HERE = "SEARCH_WORKERS_HERE"  # set for each worker: how many there are on its node
# As this process began: later, a thread that starts a worker sets it for a moment.
IN_WORKER = WORKERS_HERE in os.environ
_PR_SET_PDEATHSIG = 1
_FIRST = os.getpid()
LRU_CACHED = functools._lru_cache_wrapper
held: list[list[Any]] | None = None  # gets sources of random numbers that arrive, see `mpitune.engine.seeding`


def in_child() -> bool:
    """Whether another process has started this one: this is a worker, a fork, or a process of multiprocessing."""
    return IN_WORKER or os.getpid() != _FIRST or multiprocessing.parent_process() is not None


class WithSource(cloudpickle.Pickler):
    """Code that goes by value takes its file's name and lines along, so that a traceback shows them: also a cell's.

    What a script or a notebook defines under a name is under that name in a worker, too; see `Main`. Modules of own
    classes, which libraries put into `sys.modules`, go by name, a function with a cache with an empty one.
    """

    def __init__(self, *how: Any, **more: Any) -> None:
        own, everybodys = cloudpickle.Pickler.dispatch_table.maps  # which would be searched in Python for each object
        of_torch = getattr(sys.modules.get("torch"), "Generator", random.Random)
        sources = dict.fromkeys((random.Random, np.random.RandomState, np.random.Generator, of_torch), _source)
        self.dispatch_table = {**everybodys, **own, types.CodeType: _sent, **sources}
        super().__init__(*how, **more)

    def reducer_override(self, thing: Any) -> Any:
        kind = type(thing)
        if kind is not types.ModuleType and issubclass(kind, types.ModuleType) and kind.__reduce__ is object.__reduce__:
            return resolve_name, (thing.__name__,)
        reduced = _cached(thing) if kind is LRU_CACHED else super().reducer_override(thing)
        if reduced is NotImplemented or not _is_of_main(thing):
            return reduced
        make, arguments, *rest = reduced
        return _named, (thing.__name__, make, *arguments), *rest


def _cached(function: Any) -> Any:
    with suppress(AttributeError):  # its module has none of that name
        imported = operator.attrgetter(function.__qualname__)(sys.modules.get(function.__module__))
        if imported is function and function.__module__ not in {
            "__main__",
            *cloudpickle.list_registry_pickle_by_value(),
        }:
            return NotImplemented
    return _cached_again, (function.__wrapped__, function.cache_parameters())


def _cached_again(function: Callable[..., Any], how: dict[str, Any]) -> Any:
    return functools.lru_cache(**how)(function)


def _source(source: Any) -> Any:
    """A source of random numbers, which is `held` where it arrives. The hidden ones of modules are known by that."""
    hidden = "hidden" if source in (random.random.__self__, np.random.mtrand._rand) else ""  # type: ignore[attr-defined]
    make, arguments, *rest = source.__reduce_ex__(5)
    return _held, (hidden, make, *arguments), *rest


def _held(first: str, make: Callable[..., Any], *arguments: Any) -> Any:
    source = make(*arguments)
    if held is not None:
        held.append([source, first])
    return source


def _is_of_main(thing: Any) -> bool:
    if not isinstance(thing, types.FunctionType | type | LRU_CACHED) or thing.__module__ != "__main__":
        return False
    return getattr(sys.modules["__main__"], thing.__qualname__, None) is thing


def _named(name: str, make: Callable[..., Any], *arguments: Any) -> Any:
    thing = make(*arguments)
    if isinstance(main := sys.modules["__main__"], Main):
        setattr(main, name, thing)
    return thing


class Main(types.ModuleType):
    """The `__main__` of a worker, in which pickle finds what a script defines: a pool of processes in a trial needs it.

    Forks of the worker have it. A process that is spawned there gets it before its target.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        things = {name: thing for name, thing in vars(self).items() if _is_of_main(thing)}
        return begin_main, (packed(things) if can_be_sent(things) else b"",)


def begin_main(content: bytes = b"") -> None:
    """This process is a worker, or one that a worker has spawned: it has a `Main`, with this in it."""
    main = sys.modules["__main__"] = Main("__main__")
    setattr(BaseProcess, "__getstate__", lambda process: {"_main": main, **vars(process)})  # noqa: B010 - for mypy
    if content:
        pickle.loads(content)


def _sent(code: types.CodeType) -> tuple[Any, ...]:
    how = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    return _arrived, (*how[:2], code.co_filename, linecache.getlines(code.co_filename))


def _arrived(make: Callable[..., types.CodeType], parts: Any, file: str, lines: list[str]) -> types.CodeType:
    if lines:
        linecache.cache.setdefault(file, (sum(map(len, lines)), None, lines, file))
    return make(*parts).replace(co_filename=file)


def packed(thing: object, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
    """A thing for another process, which pickle alone unpacks: what a script or a notebook defines goes by value."""
    file = io.BytesIO()
    WithSource(file, 5, buffer_callback).dump(thing)
    return file.getvalue()


def can_be_sent(thing: object, pack: Callable[[Any], bytes] = packed) -> bool:
    """Whether this can go to another process, as functions and classes of scripts and notebooks can."""
    try:
        pack(thing)
    except Exception:  # whatever the thing's own pickling raises
        return False
    return True


def as_sent(number: int | None, things: dict[str, Any]) -> dict[str, Any]:
    """What trial `number` leaves, with texts for what cannot go to another process, such as a lock; a line says so."""
    if lost := [name for name, value in things.items() if not can_be_sent(value)]:
        print(f"trial {number}: {', '.join(lost)} cannot be sent from its worker, so it is a text", file=sys.stderr)
    return things | {name: str(things[name]) for name in lost}


def sendable(name: str, thing: Any, fix: str, pack: Callable[[Any], bytes] = packed) -> bytes:
    """A thing as it goes to other processes. Raises UsageError where it cannot, which names the part that cannot."""
    try:
        return pack(thing)
    except Exception as error:  # whatever the thing's own pickling raises
        culprit = next((part for part, value in _parts(thing) if not can_be_sent(value, pack)), "")
        what = f"{culprit} of {name}" if culprit else name
        raise UsageError(f"{what} cannot be sent to workers ({error}): {fix}") from error


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """What an object or a function consists of: attributes, what it closes over, globals that it names."""
    yield from getattr(thing, "__dict__", {}).items()
    function = getattr(thing, "__func__", thing)
    code = getattr(function, "__code__", None)
    if code is not None:
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            yield name, cell.cell_contents
        for name in code.co_names:
            if name in function.__globals__:
                yield name, function.__globals__[name]


def installed_modules_of(pickled: bytes) -> list[str]:
    """Installed modules that a pickle names, of those that this process has imported: its reader needs them too.

    Not those beside a script: who changes them while a server lives would have the old ones.
    """
    folders = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib")})
    words = {word for _, word, _ in pickletools.genops(pickled) if isinstance(word, str)}
    files = {word: getattr(sys.modules.get(word), "__file__", None) for word in words}
    return sorted(word for word, file in files.items() if file and file.startswith(folders))


class _Error:
    """An exception by its class, arguments and attributes."""

    def __init__(self, error: BaseException):
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (type(self._error), self._error.args, vars(self._error))


def _remade(kind: type[BaseException], arguments: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind)
    error.args = arguments
    vars(error).update(state)
    return error


def packed_error(error: BaseException, text: str) -> bytes:
    """An exception for another process, with its traceback; one that cannot be pickled is a RuntimeError with this."""
    # By name if possible: a script's class is known where it runs. Some classes take other arguments than they keep.
    for sent, dumps in ((error, pickle.dumps), (error, cloudpickle.dumps), (_Error(error), cloudpickle.dumps)):
        with suppress(Exception):  # whatever its own pickling raises
            content = bytes(dumps((sent, text)))
            pickle.loads(content)
            return content
    return pickle.dumps((RuntimeError(text), text))


def unpacked_error(content: bytes) -> Any:
    """The exception that `packed_error` has packed in a process of this job, caused by its traceback there."""
    from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]

    error, text = pickle.loads(content)
    error.__cause__ = RemoteTraceback(f'\n"""\n{text}"""')
    return error


def of_this_process(end: Callable[[], None]) -> Callable[[], None]:
    """What ends something as Python ends, for `atexit`: a fork of this process, which also calls it, ends nothing."""
    pid = os.getpid()
    return lambda: end() if os.getpid() == pid else None


def require_linux() -> None:
    """Raise UsageError on other systems: there processes would outlive their parent and could not share memory."""
    if sys.platform != "linux":
        raise UsageError(
            f"this runs on Linux (x86-64 or aarch64), not on {sys.platform}: use a container or a virtual machine"
        )


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Be killed when the thread of process `parent` that started this one ends, or get another signal.

    The kernel does it, so it also holds while this process is inside a library that never returns.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:  # it ended before we could ask
        os._exit(1)


@contextmanager
def without_main() -> Iterator[None]:
    """A process started now does not run the main script again, which may have no `if __name__ == "__main__"`.

    cloudpickle sends what it needs of the script.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def stops_wait() -> Iterator[None]:
    """A process started now is not ended by signals to stop before its first call; this one hears them afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class OnImport(MetaPathFinder):
    """Calls something with a module once it is imported: who does not use it does not wait for it."""

    def __init__(self, name: str, then: Callable[[types.ModuleType], None]):
        self._name, self._then = name, then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        try:
            spec = find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)  # who only asks whether the module is there imports nothing
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def executed(module: types.ModuleType) -> None:
                execute(module)
                sys.meta_path.remove(self)
                self._then(module)

            spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def start_resource_tracker() -> None:
    """Start the process in which multiprocessing keeps track of shared memory, so that SIGUSR1 does not end it.

    mpirun sends that signal to a rank's whole process group. A worker that starts after it would say that the tracker
    has died.
    """
    with stops_wait():
        resource_tracker.ensure_running()
