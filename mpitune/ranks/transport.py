"""How ranks send messages: the class for a single rank is here, that for MPI is in mpi.py."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from mpitune.errors import UsageError


@dataclass(frozen=True, slots=True)
class Parting:
    """The last message of a rank in a study. Rank 0 sends it to all when all have sent it."""


class Transport(ABC):
    """Messages between two ranks, in order and without blocking, and the exchanges at a start and an end."""

    rank: int
    size: int
    poll_seconds: float  # how long a rank may sleep before it has to look for messages

    @abstractmethod
    def send(self, to: int, message: Any) -> None:
        """Send to a rank, which may be this one; returns at once."""

    @abstractmethod
    def receive(self) -> list[tuple[int, Any]]:
        """All (sender, message) that have arrived; returns at once."""

    @property
    @abstractmethod
    def pending(self) -> bool:
        """Whether a message from this rank to itself waits, so that there is no time to sleep."""

    @abstractmethod
    def gather(self, thing: Any) -> list[Any]:
        """On rank 0 the values of all ranks, in their order; elsewhere an empty list. Waits asleep."""

    @abstractmethod
    def broadcast(self, thing: Any) -> Any:
        """On every rank the value that rank 0 gave. Waits asleep."""

    @contextmanager
    def refusing_together(self, host: str = "") -> Iterator[None]:
        """Where a rank raises UsageError in this context, all do: that of the first rank, with the name of its host."""
        problem = ""
        try:
            yield
        except UsageError as error:
            problem = f"{host}: {error}" if host and self.size > 1 else str(error)
        if first := self.broadcast(next(filter(None, self.gather(problem)), "")):
            raise UsageError(first)

    @abstractmethod
    def broadcast_array(self, array: np.ndarray) -> None:
        """Fill the contiguous array on every rank with rank 0's content."""

    @abstractmethod
    def watch(self, heartbeat_timeout: float) -> None:
        """A study begins: from now on a rank that is silent for so many seconds counts as dead; 0 for never."""

    @abstractmethod
    def settle(self) -> None:
        """A study ends: wait asleep until every rank has come here.

        After that no message is on its way, and no heartbeat is needed until the next study.
        """

    @abstractmethod
    def close(self) -> None:
        """As `settle`, and MPI ends."""

    @abstractmethod
    def abort(self, status: int) -> NoReturn:
        """End all ranks now."""


class LocalTransport(Transport):
    """One rank, which talks to itself."""

    rank, size, poll_seconds = 0, 1, 0.1

    def __init__(self) -> None:
        self._queue: deque[Any] = deque()

    def send(self, to: int, message: Any) -> None:
        self._queue.append(message)

    def receive(self) -> list[tuple[int, Any]]:
        arrived = [(0, message) for message in self._queue]
        self._queue.clear()
        return arrived

    @property
    def pending(self) -> bool:
        return bool(self._queue)

    def gather(self, thing: Any) -> list[Any]:
        return [thing]

    def broadcast(self, thing: Any) -> Any:
        return thing

    def broadcast_array(self, array: np.ndarray) -> None:
        pass

    def watch(self, heartbeat_timeout: float) -> None:
        pass

    def settle(self) -> None:
        self._queue.clear()

    def close(self) -> None:
        pass

    def abort(self, status: int) -> NoReturn:
        sys.exit(status)
