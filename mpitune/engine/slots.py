"""What the coordinator knows of each slot: its batches, its deaths, how far it is; and how fast batches are done."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mpitune.devices.choose import CPU
from mpitune.engine.messages import ToAgent, WorkerProgress
from mpitune.engine.queue import QueuedBatch, SlotId
from mpitune.trial import Place, Trial

IN_A_ROW = 3  # failures of its own, after which a slot is given up
LATENCY = 0.02  # seconds from a slot's last result to its next batch when both sleep between messages
SHORT = 2.0  # batches shorter than this are worth fetching ahead
MOST_AHEAD = 63


@dataclass(frozen=True)
class Resources:
    """What the coordinator has for a study: slots, and time."""

    slots: Mapping[SlotId, Place]
    tell: Callable[[int, ToAgent], None]  # delivers a message to the agent of a rank
    grace: float = 30.0  # seconds left to running trials once the job is told to stop
    end: float | None = None  # Unix time; a batch that would take longer, as far as is known, is not begun
    started: float = 0.0  # when this run did, by the monotonic clock
    clock: Callable[[], float] = time.monotonic

    @property
    def most_workers(self) -> int:
        """Of a node, on its CPU."""
        of_rank = Counter(rank for (rank, _), place in self.slots.items() if place.device == CPU.name)
        return max(of_rank.values(), default=0)


def slots_of(places: Sequence[Sequence[Place]]) -> dict[SlotId, Place]:
    """All slots by (rank, slot), the first slot of every rank before the second of any."""
    slots: dict[SlotId, Place] = {}
    for number in range(max(map(len, places), default=0)):
        for of_rank in places:
            if number < len(of_rank):
                slots[of_rank[number].rank, number] = of_rank[number]
    return slots


@dataclass
class Assigned:
    """A batch at a slot, with those of its trials that have not returned. Times are of the coordinator's clock."""

    open: dict[str, Trial]
    waited: QueuedBatch
    begun: float  # when it was given, or the one before it had ended
    since: float  # as `begun`, or when its last result came
    seconds: float = 0.0

    @property
    def attempt(self) -> int:
        return self.waited.attempt


@dataclass
class SlotState:
    """A slot that is in use."""

    place: Place
    assigned: deque[Assigned] = field(default_factory=deque)
    failures: int = 0  # in a row that are its own: nothing was running, or the trial succeeded elsewhere
    pending: set[str] = field(default_factory=set)  # trials that failed since its last success, tried elsewhere
    has_succeeded: bool = False  # any trial, here
    is_failing: bool = False  # its last trial or worker has failed
    in_vain: int = 0  # deaths and exceptions while no trial of the run had succeeded anywhere
    cause: str = ""  # of its last failure
    life: int = 0  # deaths in all
    step: WorkerProgress | None = None  # its last report of progress, if there was one since its last result

    @property
    def is_bad(self) -> bool:
        """Whether it is to be given up once it has no work."""
        return self.failures >= IN_A_ROW

    @property
    def standing(self) -> int:
        """How much there is to say for it: 3 succeeds, 2 did so before, 1 has no trial ended yet, 0 has only failed."""
        return 2 * self.has_succeeded + (not self.is_failing)

    @property
    def n_open(self) -> int:
        """Batches that it has; one whose trials have all returned is as good as done, and its worker wants the next."""
        return len(self.assigned) - (bool(self.assigned) and not self.assigned[0].open)

    @property
    def is_computing(self) -> bool:
        """Whether it has work and computes: by its last message it is not starting or waiting."""
        step = self.step
        return bool(self.assigned) and (step is None or not step.unit or step.done > 0 or step.total > 0)


class Pace:
    """Seconds of a batch and of a unit of cost, as moving averages; `end`: Unix time by which all must be done."""

    def __init__(self, end: float | None):
        self._end = end
        self._batch_seconds: float | None = None
        self.seconds_per_cost: float | None = None  # None before a batch is done

    def add(self, cost: float, seconds: float) -> None:
        """Take note of a batch that is done."""
        self._batch_seconds = _moved(self._batch_seconds, seconds)
        self.seconds_per_cost = _moved(self.seconds_per_cost, seconds / max(cost, 1e-300))

    @property
    def ahead(self) -> int:
        """How many batches a slot should have beside the one it works on, so that it never waits for a message."""
        if self._batch_seconds is None or self._batch_seconds >= SHORT:
            return 0
        return min(MOST_AHEAD, math.ceil(LATENCY / max(self._batch_seconds, 1e-6)))

    def is_too_late(self, cost: float) -> bool:
        """Whether a batch that is begun now would not be done by the end, as far as is known."""
        return self._end is not None and time.time() + cost * (self.seconds_per_cost or 0.0) > self._end

    def left(self, state: SlotState, now: float) -> float:
        """Cost of what a slot has not done of the batches that it was given."""
        if not state.assigned:
            return 0.0
        first, *others = state.assigned
        spent = (now - first.begun) / self.seconds_per_cost if self.seconds_per_cost else 0.0
        return max(0.0, first.waited.cost - spent) + sum(assigned.waited.cost for assigned in others)


def _moved(mean: float | None, value: float) -> float:
    """A moving average over about the last ten values."""
    return value if mean is None else mean + 0.1 * (value - mean)
