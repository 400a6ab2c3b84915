"""Batches evaluated in the rank's own process: an agent without workers, for a debugger, a notebook, a test.

A trial fails as in a worker; only to `debug` its exception is raised where it happens. Nothing ends one that hangs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack

from mpitune.devices.choose import set_hosts
from mpitune.engine import seeding
from mpitune.engine.messages import Drain, Drained, Returned, Run, Stop, ToAgent, ToCoordinator
from mpitune.engine.worker import BuiltObjective, Peak, answers, unpacked
from mpitune.experiment import Data, Experiment, WorkerContext


class InlineAgent:
    """The one slot of a rank with `workers=0`; it has the methods of `Agent`."""

    def __init__(self, tell: Callable[[ToCoordinator], None], experiment: Experiment, data: Data, *, debug: bool):
        self._tell, self._experiment, self._data, self._debug = tell, experiment, data, debug
        self._objective: BuiltObjective | None = None
        self._peak = Peak(os.getpid())
        self.stopped = False

    def handle(self, message: ToAgent) -> None:
        match message:
            case Run(slot, batch, hosts=hosts, news=news):
                set_hosts(hosts)
                with ExitStack() as stack:
                    stack.callback(set_hosts, ())
                    stack.enter_context(seeding.restored())
                    if self._objective is None:
                        context = WorkerContext("cpu", self._data)
                        self._objective = BuiltObjective(self._experiment, context, [])
                    objective = self._objective
                    objective.take(news)
                    goes_on = lambda error: not self._debug  # noqa: E731
                    for answer in answers(objective.function, batch, goes_on, objective.begin):
                        self._tell(Returned(slot, (unpacked(answer, self._peak.read()),), 0))
                self._tell(Returned(slot, (), 1))
            case Drain():
                self._tell(Drained(0))
            case Stop():
                self.stopped = True

    def step(self, seconds: float) -> None:
        time.sleep(seconds)
