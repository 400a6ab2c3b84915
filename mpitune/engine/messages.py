"""The conversation between the coordinator (on rank 0) and the agents (one on every rank).

    coordinator -> agent      Run, Lend, Drain, Stop
    agent -> coordinator      Returned, Died, Drained, Interrupted, Stepped

Messages between two ranks arrive in the order sent. That is all the protocol relies on. When `Died` arrives, every
result that the worker managed to send has arrived before it. So the coordinator knows which trials are open. Messages
in opposite directions may cross: a `Run` that was sent before the coordinator heard of a death must not be evaluated,
since its batch is back in the queue. So both sides count the deaths of a slot, and the agent drops a `Run` of an
earlier life.

Messages have no `slots=True`: pickle handles frozen dataclasses with slots by Python code, which takes longer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mpitune.trial import Batch, NoRoom, Result


@dataclass(frozen=True)
class Run:
    """Evaluate this batch after what the slot has already; its agent starts a worker process where it has none."""

    slot: int
    batch: Batch
    life: int = 0  # deaths of this slot that the coordinator has heard of
    beside: tuple[int, ...] = ()  # slots of the same rank whose devices it has as well, as a gang
    hosts: tuple[str, ...] = ()  # nodes that it has to itself, its own first
    news: tuple[bytes, ...] = ()  # for the objectives of this rank's workers, see `Port.news_for_workers`


@dataclass(frozen=True)
class Lend:
    """End the idle worker of this slot: a gang uses its device."""

    slot: int


@dataclass(frozen=True)
class Drain:
    """End each worker after the trial that it is running."""


@dataclass(frozen=True)
class Stop:
    """End all workers now, then yourself."""


@dataclass(frozen=True)
class Returned:
    """Trials that a slot has finished, in the order it did."""

    slot: int
    results: tuple[Result | NoRoom, ...]
    batches_done: int


@dataclass(frozen=True)
class Died:
    """A worker is gone; trials that it had not returned are open again."""

    slot: int
    cause: str
    building: bool  # it had not begun to evaluate
    lost: bool = False  # its process cannot be killed, so the slot is lost
    hung: bool = False  # it was killed since its trial took too long
    raised: bool = False  # the objective has, as it was made: the cause is a traceback


@dataclass(frozen=True)
class Drained:
    """A slot has ended as asked; trials that it had not returned are open again."""

    slot: int


@dataclass(frozen=True)
class Interrupted:
    """This rank was asked to end by a signal."""

    signal: int


@dataclass(frozen=True)
class WorkerProgress:
    """How far a slot is with what it computes: `done` of `total` units such as "epoch"; total 0: it is not known.

    Without both, the unit says what it does instead of computing, such as STARTING; "" means that it computes.
    """

    unit: str
    done: float = 0.0
    total: float = 0.0
    trials: int = 1  # of its batch, as many as take these steps together

    def __str__(self) -> str:
        done = f" {math.ceil(self.done)}" if self.done > 0 else ""
        return f"{self.unit}{done} of {self.total:g}" if self.total > 0 else f"{self.unit}{done}"


STARTING = "starting"
AT_WORK = WorkerProgress("")
STEP_SECONDS = 1.0  # at least, between two steps that a worker sends, and between two messages of a rank


@dataclass(frozen=True)
class Stepped:
    """How far slots are, those that have news, once a second at most. For people only: it may be lost."""

    steps: Mapping[int, WorkerProgress]


ToAgent = Run | Lend | Drain | Stop
ToCoordinator = Returned | Died | Drained | Interrupted | Stepped
