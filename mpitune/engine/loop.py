"""The loop of a rank: it takes messages, lets coordinator and agent act, and sleeps until there is more."""

from __future__ import annotations

import logging
import signal
import threading
from itertools import chain
from types import FrameType

from mpitune.engine.agent import Agent
from mpitune.engine.coordinator import Coordinator
from mpitune.engine.inline_agent import InlineAgent
from mpitune.engine.messages import Drain, Interrupted, Lend, Run, Stop
from mpitune.engine.progress import Progress
from mpitune.errors import Exit
from mpitune.processes.process import STOPS
from mpitune.processes.stops import is_another
from mpitune.ranks.transport import Transport

log = logging.getLogger(__name__)


def loop(
    transport: Transport,
    agent: Agent | InlineAgent,
    coordinator: Coordinator | None = None,
    progress: Progress | None = None,
) -> None:
    """Carry messages, results and deaths until the coordinator, which rank 0 has, says Stop."""
    signals: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        if not is_another(number):
            return
        signals.append(number)
        if len(signals) > 1:
            transport.abort(Exit.STOPPED)  # the journal is whole at any moment

    in_main = threading.current_thread() is threading.main_thread()  # only there can Python hear signals
    before = {number: signal.signal(number, hear) for number in STOPS if in_main}
    interrupted = stopping = False
    try:
        while True:
            # Twice, so that a worker has its next batch before its result is made durable, which waits for the disk.
            for sender, message in chain.from_iterable(transport.receive() for _ in range(2)):
                match message:
                    case Run() | Lend() | Drain() | Stop():
                        agent.handle(message)
                    case _ if coordinator is not None:
                        coordinator.handle(sender, message)
            if agent.stopped:
                return
            if signals and not interrupted:
                interrupted = True
                transport.send(0, Interrupted(signals[0]))
            behind = False
            if coordinator is not None:
                coordinator.step()
                behind = coordinator.is_behind
                if progress is not None:
                    progress.update(coordinator.overview, last=coordinator.finished)
                if coordinator.finished and not stopping:
                    stopping = True
                    for rank in range(transport.size):
                        transport.send(rank, Stop())
            agent.step(0 if behind or transport.pending else transport.poll_seconds)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
