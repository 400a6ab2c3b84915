"""A study whose trials arrive while it runs, from other threads of rank 0. It has no journal, and nothing is kept."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence, Set
from typing import Any

from mpitune.engine.agent import Agent
from mpitune.engine.coordinator import Coordinator
from mpitune.engine.inline_agent import InlineAgent
from mpitune.engine.loop import loop
from mpitune.engine.messages import Forget, Run, Share, ToAgent
from mpitune.engine.preflight import Node
from mpitune.engine.slots import Resources, slots_of
from mpitune.engine.study import Coordinated
from mpitune.memory.shared_arrays import SharedArrays
from mpitune.port import Port, Scheduling
from mpitune.ranks.transport import Transport
from mpitune.trial import Batch, Result, Trial

CHUNK_BYTES = 64 << 20  # bytes of an array in one message
Done = Callable[[Result | Exception], None]


class Arrivals(Coordinated):
    """The trials of such a study, as the coordinator asks for them, and the arrays that they need.

    Args:
        idle: seconds without a trial after which the study ends.
        content: an array of bytes, by name. Each node gets it before the first trial that needs it.
        arrays_of: the names of the arrays that a trial needs.
        port: of its experiment.
    """

    def __init__(
        self,
        idle: float,
        content: Callable[[str], SharedArrays],
        arrays_of: Callable[[Trial], Sequence[str]],
        port: Port,
    ) -> None:
        self.port, self.results = port, {}
        self._idle, self._content, self._arrays_of = idle, content, arrays_of
        self._lock = threading.Lock()
        self._new: list[Trial] = []
        self._open: dict[str, Done] = {}
        self._had: dict[int, set[str]] = {}  # arrays of each rank
        self._unwanted: list[str] = []
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._busy = time.monotonic()  # when it last had a trial
        self.is_closed = False

    # -- from any thread

    def add(self, trial: Trial, done: Done) -> bool:
        """Ask for a trial; `done` gets its result, in the study's thread, and raises nothing. False: it has ended."""
        with self._lock:
            if self.is_closed:
                return False
            self._open[trial.key] = done
            self._new.append(trial)
            os.eventfd_write(self._bell, 1)
        return True

    def forget(self, names: Sequence[str]) -> None:
        """Give up the memory of arrays that no open trial needs."""
        with self._lock:
            if names and not self.is_closed:
                self._unwanted += names
                os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """End the study, and all trials with it."""
        with self._lock:
            if not self.is_closed:
                self.is_closed = True
                os.eventfd_write(self._bell, 1)

    def end(self, why: Exception) -> None:
        """The study has ended: say to all whose trials are open why that was."""
        with self._lock:
            self.is_closed = True
            left, self._open = self._open, {}
            os.close(self._bell)
        for done in left.values():
            done(why)

    # -- in the study's thread

    def run(self, agent: Agent | InlineAgent, transport: Transport, nodes: Sequence[Node]) -> str:
        """Lead the study to its end. Returns why it could not go on, "" if it was closed."""
        assert isinstance(agent, Agent)
        slots = slots_of([node.places for node in nodes])

        def tell(rank: int, message: ToAgent) -> None:
            for name in self._missing(rank, message):
                shared = self._content(name)
                content = shared.arrays[name]
                if rank == transport.rank:
                    transport.send(rank, Share(name, len(content), 0, shared.again()))
                    continue
                for start in range(0, len(content), CHUNK_BYTES):
                    transport.send(rank, Share(name, len(content), start, content[start : start + CHUNK_BYTES]))
            transport.send(rank, message)

        # The script that adds trials hears a signal, too, and ends the study.
        coordinator = Coordinator(self, self, Scheduling(), Resources(slots, tell, grace=None))
        self._tell = tell
        agent.listen(self._bell)
        loop(transport, agent, coordinator)
        return "" if coordinator.dispatch.slots else coordinator.why_over()

    def _missing(self, rank: int, message: ToAgent) -> list[str]:
        if not isinstance(message, Run):
            return []
        had = self._had.setdefault(rank, set())
        missing = [name for trial in message.batch for name in self._arrays_of(trial) if name not in had]
        had.update(missing)
        return list(dict.fromkeys(missing))

    # -- as a study, see `Coordinated`

    has_more = True

    @property
    def waits(self) -> bool:
        """Whether it goes on while nothing is open. A pause that is long enough closes it."""
        with self._lock:
            if not self._open and time.monotonic() - self._busy > self._idle:
                self.is_closed = True
        return not self.is_closed

    @property
    def n_open(self) -> int:
        return 0 if self.is_closed else len(self._open) + 1

    @property
    def n_asked(self) -> int:
        return len(self._open)

    def arrived(self, held: Set[str] = frozenset()) -> list[Batch]:
        """The trials that have arrived since the last call."""
        if not self._new and not self._unwanted:
            return []
        with self._lock:
            new, self._new = self._new, []
            unwanted, self._unwanted = self._unwanted, []
        for rank, had in self._had.items() if unwanted else ():
            self._tell(rank, Forget(tuple(had.intersection(unwanted))))
            had.difference_update(unwanted)
        return [(trial,) for trial in new]

    def record(self, result: Result) -> list[Batch]:
        with self._lock:
            done = self._open.pop(result.key, None)
        self._busy = time.monotonic()
        if done is not None:
            done(result)
        return []

    # -- as a journal that keeps nothing, see `KeepsResults`

    def append(self, outcomes: Sequence[tuple[Trial, Result]]) -> list[Result]:
        return [result for _, result in outcomes]

    def note(self, **record: Any) -> None:
        pass
