"""scikit-learn's callbacks (since its version 1.9) in workers: what they tell comes to the script by the engine.

A callback in another process is a copy, which sends messages to the script's process, by a socket of one machine
(`sklearn.callback._transport`). The engine takes the place of this socket. What a progress bar shows goes at once: it
may begin anew. All else goes with the answer of a call or a fit, so that one that is made once more is told once.
"""

from __future__ import annotations

import io
import logging
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import zip_longest
from typing import Any

import cloudpickle

from mpitune.processes.process import can_be_sent, packed

log = logging.getLogger(__name__)

TRANSPORT = "sklearn.callback._transport"
PROGRESS_BAR = "sklearn.callback._progressbar"


class _Connection:
    """Stands for a connection to the process that made a callback. A message counts as taken when it is sent."""

    def __init__(self, send: Callable[[Any], None]) -> None:
        self.send = send

    def recv(self) -> None:
        pass

    def close(self) -> None:
        pass


@contextmanager
def relayed(tell: Callable[[bytes], None] = lambda content: None) -> Iterator[Callable[[], bytes]]:
    """Have messages of callbacks relayed: `tell` sends what goes at once. Yields what takes the others so far."""
    try:
        transport, bar = import_module(TRANSPORT), import_module(PROGRESS_BAR)
    except ImportError:  # scikit-learn has none yet
        yield bytes
        return
    kept: list[bytes] = []
    of_bars: set[str] = set()  # addresses, each of which is of one callback

    def send_of_bar(handle: Any, message: Any) -> None:
        of_bars.add(handle.address)
        transport.send(handle, message)

    def connect(address: str, authkey: bytes) -> _Connection:
        def send(message: Any) -> None:
            content = packed((address, authkey, message))
            if address in of_bars:
                tell(pickle.dumps([content]))
            else:
                kept.append(content)

        return _Connection(send)

    def taken() -> bytes:
        messages = [kept.pop(0) for _ in range(len(kept))]  # other threads may add some
        return pickle.dumps(messages) if messages else b""

    before = transport.Client, transport._worker_connections, bar.send
    transport.Client, transport._worker_connections, bar.send = connect, {}, send_of_bar  # type: ignore[attr-defined]
    try:
        yield taken
    finally:
        transport.Client, transport._worker_connections, bar.send = before  # type: ignore[attr-defined]


def deliver(content: bytes) -> None:
    """Hand messages to those who wait for them in this process."""
    transport = import_module(TRANSPORT)
    for message in pickle.loads(content):
        try:
            address, authkey, what = pickle.loads(message)
            transport.send(transport.ListenerHandle(address, authkey), what)
        except Exception as error:  # whatever the callback's own code raises
            log.warning("a message of a callback is lost: %s: %s", type(error).__name__, error)


# -- for the other ranks, where the same script has callbacks of its own


class _Pickler(cloudpickle.Pickler):
    """Pickles numbers for the callbacks."""

    def __init__(self, file: io.BytesIO, callbacks: Sequence[Any]) -> None:
        super().__init__(file)
        self._numbers = {id(callback): number for number, callback in enumerate(callbacks)}

    def persistent_id(self, thing: Any) -> int | None:
        return self._numbers.get(id(thing))


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, callbacks: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(content))
        self._callbacks = callbacks

    def persistent_load(self, pid: int) -> Any:
        return self._callbacks[pid]


def packed_for(callbacks: Sequence[Any], attributes: Mapping[str, Any]) -> bytes:
    """Attributes for another rank, with these callbacks and what they have heard; for what cannot be pickled, why."""
    content: dict[str, Any] = {}
    for name, value in attributes.items():
        try:
            _Pickler(file := io.BytesIO(), callbacks).dump(value)
            content[name] = file.getvalue()
        except Exception as error:  # whatever the thing's own pickling raises
            content[name] = error.__class__.__name__, str(error)
    return pickle.dumps((content, [packed(callback) if can_be_sent(callback) else b"" for callback in callbacks]))


def unpacked_for(callbacks: Sequence[Any], content: bytes) -> dict[str, Any]:
    """The attributes, in which callbacks are those of this rank where it has them too: they have now heard the same."""
    attributes, them = pickle.loads(content)
    known = [_taught(mine, pickle.loads(its) if its else mine) for mine, its in zip_longest(callbacks, them)]
    read = {}
    for name, value in attributes.items():
        try:
            read[name] = _Unpickler(value, known).load()
        except Exception as error:
            why = ": ".join(value) if isinstance(value, tuple) else f"{type(error).__name__}: {error}"
            warnings.warn(f"{name} is on rank 0 alone, as it cannot be pickled: {why}", UserWarning, stacklevel=4)
    return read


def _taught(mine: Any, theirs: Any) -> Any:
    """This rank's callback, which now knows what rank 0's knows; rank 0's, if this rank has another. Listeners stay."""
    if type(mine).__qualname__ != type(theirs).__qualname__:
        return theirs
    have = getattr(mine, "__dict__", {})
    for name, value in getattr(theirs, "__dict__", {}).items():
        if isinstance(value, list) and isinstance(have.get(name), list):
            have[name][:] = value  # a listener may add to this list
        elif type(value).__module__ != TRANSPORT:
            have[name] = value
    return mine
