"""The coordinator, on rank 0: one queue of batches, pulled by the slots of all ranks.

    study --batches--> [ costliest first ] --Run--> slots
    slots --Returned--> journal (fsync) --results--> study --> more batches
    slots --Died-->     the running trial once more by itself, the rest back into the queue

The cost of a message is that of a heap operation, however many slots there are.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from common.cluster.transport import Lost
from common.engine.messages import Died, Drain, Drained, Interrupted, Returned, Run, ToAgent, ToCoordinator
from common.engine.study import Study
from common.storage.journal import Journal
from common.storage.table import last_line
from common.trial import Batch, Place, Result, Trial

log = logging.getLogger(__name__)

LATENCY = 0.02  # seconds from a slot's last result to its next batch when both sleep between messages
SHORT = 2.0  # batches shorter than this are worth fetching ahead
MOST_AHEAD = 63
FEW = 8  # batches per slot, below which they are divided, so that no slot waits for the last ones
ATTEMPTS = 2
DEATHS = 3  # in a row, after which a slot is given up

SlotId = tuple[int, int]  # rank, slot


@dataclass(order=True)
class _Waiting:
    """A batch in the queue; the order of its fields is the order of the queue."""

    priority: float
    number: int
    batch: Batch = field(compare=False)
    attempt: int = field(compare=False)
    avoid: SlotId | None = field(compare=False, default=None)


@dataclass
class _Given:
    """A batch at a slot, with those of its trials that have not returned."""

    open: dict[str, Trial]
    attempt: int
    cost: float
    seconds: float = 0.0


@dataclass
class _SlotState:
    place: Place
    given: deque[_Given] = field(default_factory=deque)
    deaths: int = 0  # in a row
    life: int = 0  # deaths in all


class Coordinator:
    """Runs one study to its end.

    tell: delivers a message to the agent of a rank.
    slots: places of all slots by (rank, slot).
    cost: of a trial, in any unit.
    split_batch: the parts of a batch, asked for where there are few batches for so many slots.
    grace: seconds that running trials are left once the job is told to stop.
    end: Unix time by which all work must be done; a batch that would not be, by the running estimate of
        seconds per cost, is not begun.
    started: when this run did, by the monotonic clock.
    """

    def __init__(
        self,
        study: Study,
        journal: Journal,
        tell: Callable[[int, ToAgent], None],
        slots: dict[SlotId, Place],
        cost: Callable[[Trial], float],
        split_batch: Callable[[Batch], Sequence[Batch]] = lambda batch: [batch],
        grace: float = 30.0,
        end: float | None = None,
        started: float = 0.0,
    ):
        self._study, self._journal, self._tell, self._started = study, journal, tell, started
        self._cost, self._split_batch = cost, split_batch
        self._slots = {slot: _SlotState(place) for slot, place in slots.items()}
        self._idle = dict.fromkeys(self._slots)  # ordered, so that those idle longest come first
        self._queue: list[_Waiting] = []
        self._numbers = itertools.count()
        self._fresh: list[tuple[Trial, Result]] = []
        # Failures before the first success wait here: should it turn out that nothing works (a missing
        # library, a broken driver), they are forgotten with the run, and no trial is blamed for good.
        self._held: list[tuple[Trial, Result]] = []
        self._succeeded = False
        self._batch_seconds: float | None = None  # moving average
        self._grace, self._end = grace, end
        self._seconds_per_cost: float | None = None  # moving average
        self.n_too_long = 0  # batches that were not begun, since the job ends too soon
        self._stop_at: float | None = None
        self.stopped_by: int | None = None  # signal
        self.first_cause = ""  # of the first death, for when no slot is left
        self.n_failed = 0
        self._enqueue(study.start())

    @property
    def finished(self) -> bool:
        """Whether there is nothing more to wait for: all that is to be run here is done, or no slot can go on."""
        at_rest = not self._slots or bool(self.n_too_long and not self._queue and self._all_idle)
        return not self._fresh and (self._study.n_open == 0 or at_rest or self._out_of_time)

    @property
    def _all_idle(self) -> bool:
        return len(self._idle) == len(self._slots)

    @property
    def n_slots(self) -> int:
        return len(self._slots)

    @property
    def _out_of_time(self) -> bool:
        return self._stop_at is not None and time.monotonic() >= self._stop_at

    def handle(self, sender: int, message: ToCoordinator) -> None:
        match message:
            case Returned(slot, results, batches_done):
                self._returned((sender, slot), results, batches_done)
            case Died(slot, cause, building, lost):
                self._died((sender, slot), cause, building, lost)
            case Drained(slot):
                self._slots.pop((sender, slot), None)
                self._idle.pop((sender, slot), None)
            case Interrupted(number):
                self._drain(number)
            case Lost():
                self._lost(sender)

    def step(self) -> None:
        """Give idle slots work, then make durable and pass on what has arrived."""
        self._assign()
        if self._held and (self._succeeded or (not self._queue and self._all_idle)):
            self._fresh, self._held = self._held + self._fresh, []
        while self._fresh:
            fresh, self._fresh = self._fresh, []
            for result in self._journal.append(fresh):
                self.n_failed += result.failed
                self._enqueue(self._study.record(result))
            self._assign()

    # -- messages

    def _returned(self, slot: SlotId, results: Sequence[Result], batches_done: int) -> None:
        state = self._slots.get(slot)
        if state is None:
            return
        for result in results:
            given = next(given for given in state.given if result.key in given.open)
            trial = given.open.pop(result.key)
            given.seconds += result.seconds
            state.deaths = 0
            if result.error is not None:
                self._failed(slot, trial, result.attempt, result.error, result)
            else:
                self._succeeded = True
                self._fresh.append((trial, result))
        for _ in range(batches_done):
            done = state.given.popleft()
            self._batch_seconds = _moved(self._batch_seconds, done.seconds)
            self._seconds_per_cost = _moved(self._seconds_per_cost, done.seconds / max(done.cost, 1e-300))
        self._top_up(slot, state)

    def _died(self, slot: SlotId, cause: str, building: bool, lost: bool) -> None:
        state = self._slots.get(slot)
        if state is None:
            return
        state.life += 1
        self.first_cause = self.first_cause or f"{state.place}:\n{cause}"
        running = state.given[0] if state.given and not building else None
        retry = running is not None and running.attempt == ATTEMPTS
        # A trial that fails on its retry is the trial's fault, any other death may be the slot's.
        state.deaths += not (retry and self._succeeded)
        if running is not None and running.open:
            key = next(iter(running.open))
            trial = running.open.pop(key)
            self._failed(slot, trial, running.attempt, cause, Result(key, place=state.place))
        for given in state.given:
            if given.open:
                self._push(tuple(given.open.values()), given.attempt)
        state.given.clear()
        if lost or state.deaths >= DEATHS:
            log.error("%s: given up after %d deaths in a row: %s", state.place, state.deaths, last_line(cause))
            del self._slots[slot]
            self._idle.pop(slot, None)
        else:
            self._idle[slot] = None

    def _lost(self, rank: int) -> None:
        """A node has gone, and its slots with it. No trial is to blame: what was open is run elsewhere."""
        log.error("rank %d is lost: its work goes to the others", rank)
        self.first_cause = self.first_cause or f"rank {rank} is lost"
        for slot in [slot for slot in self._slots if slot[0] == rank]:
            for given in self._slots.pop(slot).given:
                if given.open:
                    self._push(tuple(given.open.values()), given.attempt)
            self._idle.pop(slot, None)

    def _failed(self, slot: SlotId, trial: Trial, attempt: int, cause: str, result: Result) -> None:
        """Try the trial once more, by itself and elsewhere if possible; then record it as failed."""
        if attempt < ATTEMPTS:
            log.warning("trial %s failed and is tried once more: %s", trial.key, last_line(cause))
            self._push((trial,), attempt + 1, avoid=slot)
        else:
            log.error("trial %s failed: %s", trial.key, last_line(cause))
            failure = Result(trial.key, {}, {}, result.seconds, result.place, attempt, cause)
            self._held.append((trial, failure))

    def _drain(self, number: int) -> None:
        if self.stopped_by is not None:
            return
        name = signal.Signals(number).name
        log.warning("%s: running trials may finish within %g s; run the same command to continue", name, self._grace)
        # Now, as Open MPI's mpirun kills its ranks a quarter of a second after SIGTERM. A later end takes its place.
        self._journal.note(end={"complete": False, "seconds": round(time.monotonic() - self._started, 3)})
        self.stopped_by = number
        self._stop_at = time.monotonic() + self._grace
        self._queue.clear()
        for rank in sorted({rank for rank, _ in self._slots}):
            self._tell(rank, Drain())

    # -- the queue

    def _enqueue(self, batches: Sequence[Batch]) -> None:
        if len(batches) < FEW * len(self._slots):
            batches = [part for batch in batches for part in self._split_batch(batch)]
        for batch in batches:
            self._push(batch, attempt=1)

    def _push(self, batch: Batch, attempt: int, avoid: SlotId | None = None) -> None:
        # What may fail again is done first, so that a broken study shows early.
        priority = -math.inf if attempt > 1 else -sum(self._cost(trial) for trial in batch)
        heapq.heappush(self._queue, _Waiting(priority, next(self._numbers), batch, attempt, avoid))

    def _too_long(self, cost: float) -> bool:
        if self._end is None:
            return False
        return time.time() + cost * (self._seconds_per_cost or 0.0) > self._end

    def _assign(self) -> None:
        """Hand out work to slots that have none."""
        if self.stopped_by is not None:
            return
        refused: list[SlotId] = []
        while self._queue and self._idle:
            slot = next(iter(self._idle))
            del self._idle[slot]
            if not self._give(slot):
                refused.append(slot)
        self._idle.update(dict.fromkeys(refused))

    def _top_up(self, slot: SlotId, state: _SlotState) -> None:
        """Keep enough batches at a slot that it never waits for a message."""
        if self.stopped_by is not None:
            return
        ahead = 0
        if self._batch_seconds is not None and self._batch_seconds < SHORT:
            ahead = min(MOST_AHEAD, math.ceil(LATENCY / max(self._batch_seconds, 1e-6)))
        while len(state.given) <= ahead and (len(self._queue) > len(self._slots) or not state.given):
            if not self._queue or not self._give(slot):
                break
        if not state.given:
            self._idle[slot] = None

    def _give(self, slot: SlotId) -> bool:
        """Give the slot the first batch of the queue that it may have; False when there is none."""
        passed: list[_Waiting] = []
        given = False
        while self._queue and not given:
            waiting = heapq.heappop(self._queue)
            if waiting.avoid == slot and len(self._slots) > 1:
                passed.append(waiting)
                continue
            cost = sum(self._cost(trial) for trial in waiting.batch)
            if self._too_long(cost):
                self.n_too_long += 1
                continue
            given_now = _Given({trial.key: trial for trial in waiting.batch}, waiting.attempt, cost)
            state = self._slots[slot]
            state.given.append(given_now)
            self._tell(slot[0], Run(slot[1], waiting.batch, waiting.attempt, state.life))
            given = True
        for waiting in passed:
            heapq.heappush(self._queue, waiting)
        return given


def _moved(mean: float | None, value: float) -> float:
    """A moving average over about the last ten values."""
    return value if mean is None else mean + 0.1 * (value - mean)


def slots_of(places: Sequence[Sequence[Place]]) -> dict[SlotId, Place]:
    """All slots by (rank, slot), the first slot of every rank before the second of any."""
    slots: dict[SlotId, Place] = {}
    for number in range(max(map(len, places), default=0)):
        for rank, of_rank in enumerate(places):
            if number < len(of_rank):
                slots[rank, number] = of_rank[number]
    return slots
