"""The loop of a rank: it takes messages, lets coordinator and agent act, and sleeps until there is more."""

from __future__ import annotations

import logging
import signal
import threading
from itertools import chain
from types import FrameType
from typing import NamedTuple

from mpitune.engine.agent import Agent
from mpitune.engine.coordinator import Coordinator
from mpitune.engine.inline_agent import InlineAgent
from mpitune.engine.messages import Drain, Interrupted, Lend, Run, Stop
from mpitune.engine.progress import Progress
from mpitune.errors import Exit
from mpitune.ranks.process import STOPS
from mpitune.ranks.transport import GivenUp, Transport

log = logging.getLogger(__name__)


class Leader(NamedTuple):
    """The parts of rank 0 beside its agent."""

    coordinator: Coordinator
    progress: Progress
    total: int | None  # trials that the study will have, if that is known

    def step(self) -> bool:
        """Act on what has arrived, show it; whether the study has ended."""
        coordinator, progress, total = self
        coordinator.step()
        progress.update(lambda: coordinator.overview(total), last=coordinator.finished)
        return coordinator.finished


def loop(transport: Transport, agent: Agent | InlineAgent, leader: Leader | None = None) -> None:
    """Carry messages, results and deaths until the coordinator has said Stop."""
    signals: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        if len(signals) > 1:
            transport.abort(Exit.STOPPED)  # the journal is whole at any moment

    in_main = threading.current_thread() is threading.main_thread()  # only there can Python hear signals
    before = {number: signal.signal(number, hear) for number in STOPS if in_main}
    told = stopping = False
    try:
        while True:
            # Twice, so that a worker has its next batch before its result is made durable, which waits for the disk.
            for sender, message in chain.from_iterable(transport.receive() for _ in range(2)):
                match message:
                    case Run() | Lend() | Drain() | Stop():
                        agent.handle(message)
                    case GivenUp():
                        log.info("this rank was silent for so long that rank 0 has given it up: its work ends here")
                        agent.handle(Stop())
                    case _ if leader is not None:
                        leader.coordinator.handle(sender, message)
            if agent.stopped:
                return
            if signals and not told:
                told = True
                transport.send(0, Interrupted(signals[0]))
            if leader is not None and leader.step() and not stopping:
                stopping = True
                for rank in range(transport.size):
                    transport.send(rank, Stop())
            busy = transport.pending or (leader is not None and leader.coordinator.is_behind)
            agent.step(0 if busy else transport.poll_seconds)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
