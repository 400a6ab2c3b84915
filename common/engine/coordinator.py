"""The coordinator, on rank 0: one queue of batches, pulled by the slots of all ranks.

    study --batches--> [ costliest first ] --Run--> slots
    slots --Returned--> journal (fsync) --results--> study --> more batches
    slots --Died-->     the running trial once more by itself, the rest back into the queue

The cost of a message is that of a heap operation, however many slots there are.
"""

from __future__ import annotations

import itertools
import logging
import signal
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace

from common.cluster.transport import Lost
from common.engine.gangs import Gangs
from common.engine.live import Overview, overview
from common.engine.messages import (
    Died,
    Drain,
    Drained,
    Interrupted,
    Lend,
    Returned,
    Run,
    Stepped,
    ToAgent,
    ToCoordinator,
)
from common.engine.pace import Pace
from common.engine.queue import GAIN, Costs, Kind, Queue, QueuedBatch, SlotId
from common.engine.slots import Given, SlotState
from common.engine.study import Study
from common.errors import UsageError
from common.storage.journal import Journal
from common.storage.table import last_line
from common.trial import Batch, Gang, NoRoom, Place, Result, Trial

log = logging.getLogger(__name__)

ATTEMPTS = 2
NO_SLOT_LEFT = "the slots that might have had room for it are gone"
DEATHS = 3  # in a row, after which a slot is given up


class Coordinator:
    """Runs one study to its end.

    Args:
        tell: delivers a message to the agent of a rank.
        slots: places of all slots by (rank, slot).
        costs: of trials and of what batches share.
        grace: seconds that running trials are left once the job is told to stop.
        gang_of: slots that a trial needs at a time, see `Experiment.gang`.
        examine: raises UsageError for a result with which the study must end, see `Experiment.examine`.
        end: Unix time by which all work must be done; a batch that would not be, by the running estimate of seconds per
            cost, is not begun.
        started: when this run did, by the monotonic clock.
        clock: seconds, as time.monotonic.
    """

    def __init__(
        self,
        study: Study,
        journal: Journal,
        *,
        tell: Callable[[int, ToAgent], None],
        slots: dict[SlotId, Place],
        costs: Costs,
        gang_of: Callable[[Trial], Gang | None] = lambda trial: None,
        examine: Callable[[Trial, Result, Result | None], None] = lambda trial, result, kept: None,
        grace: float = 30.0,
        end: float | None = None,
        started: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._study, self._journal, self._tell, self._started = study, journal, tell, started
        self._clock = clock
        self._slots = {slot: SlotState(place) for slot, place in slots.items()}
        # Those idle longest come first. A plain dict would look for its first item among all that were taken from it.
        self._idle = OrderedDict.fromkeys(self._slots)
        numbers = itertools.count()
        self._queue = Queue(costs, numbers)
        self._gangs = Gangs(gang_of, costs, numbers, self._slots, self._idle)
        self._fresh: list[tuple[Trial, Result]] = []
        # Failures before the first success wait here. If nothing works (a missing library, a broken driver), they are
        # not recorded, and the journal blames no trial.
        self._held: list[tuple[Trial, Result]] = []
        self._succeeded = False
        self._examine = examine
        self._sound = next((result for result in study.results.values() if not result.failed), None)
        self._refused: UsageError | None = None  # why the study must end
        self._grace, self._pace = grace, Pace(end)
        self.n_too_long = 0  # batches that were not begun, since the job ends too soon
        self.left_open: dict[str, str] = {}  # keys of trials that fit no slot, with the reason
        self._stop_at: float | None = None
        self.stopped_by: int | None = None  # signal
        self.first_cause = ""  # of the first death, for when no slot is left
        self.n_failed = 0
        self._enqueue(study.start())

    @property
    def finished(self) -> bool:
        """Whether there is nothing more to wait for: all that is to be run here is done, or no slot can go on."""
        at_rest = not self._slots or self._at_rest
        return not self._fresh and (self._study.n_open == 0 or at_rest or self._out_of_time)

    @property
    def _all_idle(self) -> bool:
        return len(self._idle) == len(self._slots)

    @property
    def _at_rest(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self._queue and not self._gangs and self._all_idle

    @property
    def n_slots(self) -> int:
        return len(self._slots)

    @property
    def _out_of_time(self) -> bool:
        return self._stop_at is not None and time.monotonic() >= self._stop_at

    def overview(self, total: int | None) -> Overview:
        """How the study stands, for people.

        Args:
            total: trials that it will have, None where that is not known.
        """
        study, now = self._study, self._clock()
        return overview(
            list(self._slots.values()), self._queue, self._pace.learnt, now,
            done=study.n_done, asked=study.n_asked, failed=self.n_failed, total=total,
        )  # fmt: skip

    def handle(self, sender: int, message: ToCoordinator) -> None:
        match message:
            case Returned(slot, results, batches_done):
                self._returned((sender, slot), results, batches_done)
            case Died(slot, cause, building, lost, seconds):
                self._died((sender, slot), cause, building, lost, seconds)
            case Drained(slot):
                self._remove((sender, slot))
            case Stepped(steps):
                for number, step in steps.items():
                    if (state := self._slots.get((sender, number))) is not None:
                        state.mark(self._clock(), step)
            case Interrupted(number):
                self._drain(number)
            case Lost():
                self._lost(sender)

    def step(self) -> None:
        """Give idle slots work, then store the results that have arrived and pass them on.

        Raises:
            UsageError: a result must end the study; all that may be kept is durable then.
        """
        self._assign()
        if self._slots and self._all_idle:  # what still waits has no room on any slot that is left
            for waiting in self._queue.clear():
                self.left_open.update((trial.key, NO_SLOT_LEFT) for trial in waiting.batch)
            self._assign()
        if self._held and (self._succeeded or self._at_rest):
            self._fresh, self._held = self._held + self._fresh, []
        while self._fresh:
            fresh, self._fresh = self._fresh, []
            for result in self._journal.append(fresh):
                self.n_failed += result.failed
                self._enqueue(self._study.record(result))
            self._assign()
        if self._refused is not None:
            raise self._refused

    # -- messages

    def _returned(self, slot: SlotId, results: Sequence[Result | NoRoom], batches_done: int) -> None:
        state = self._slots.get(slot)
        if state is None:
            return
        for returned in results:
            given = next(given for given in state.given if returned.key in given.open)
            trial = given.open.pop(returned.key)
            state.deaths = 0
            if isinstance(returned, NoRoom):
                self._no_room(slot, trial, given.waited, returned.reason)
                continue
            result = replace(returned, place=state.place, attempt=given.attempt)
            given.seconds += result.seconds
            given.since = self._clock()
            try:
                self._examine(trial, result, self._sound)
            except UsageError as error:
                self._refused = self._refused or error
                continue
            if result.error is not None:
                self._failed(slot, trial, result, result.error)
            else:
                self._succeeded, self._sound = True, result
                self._fresh.append((trial, result))
        state.mark(self._clock(), None)
        if batches_done and self._gangs.lent:
            self._gangs.ended(slot)
        for _ in range(batches_done):
            done, state.marks = state.given.popleft(), []
            if state.given:
                state.given[0].begun = state.given[0].since = self._clock()
            if done.seconds:
                self._pace.add(done.waited.cost, done.seconds)
        self._top_up(slot, state)

    def _died(self, slot: SlotId, cause: str, building: bool, lost: bool, seconds: float) -> None:
        state = self._slots.get(slot)
        if state is None:
            return
        state.life += 1
        self.first_cause = self.first_cause or f"{state.place}:\n{cause}"
        running = state.given[0] if state.given and not building else None
        self._note_death(state.place, running, seconds, cause)
        retry = running is not None and running.attempt == ATTEMPTS
        # A trial that fails on its retry is the trial's fault, any other death may be the slot's.
        if not (retry and self._succeeded):
            state.deaths += 1
        if running is not None and running.open:
            key = next(iter(running.open))
            trial = running.open.pop(key)
            self._failed(slot, trial, Result(key, place=state.place, attempt=running.attempt), cause)
        for given in state.given:
            if given.open:
                self._push(tuple(given.open.values()), given.attempt, no_room=given.waited.no_room)
        state.given.clear()
        state.step, state.marks = None, []
        self._gangs.ended(slot)
        if lost or state.deaths >= DEATHS:
            log.error("%s: given up after %d deaths in a row: %s", state.place, state.deaths, last_line(cause))
            self._remove(slot)
        elif not self._gangs.keeps(slot):
            self._idle[slot] = None

    def _remove(self, slot: SlotId) -> None:
        """Forget a slot."""
        self._slots.pop(slot, None)
        self._idle.pop(slot, None)
        self._gangs.gone(slot)

    def _lost(self, rank: int) -> None:
        """A node has gone, and its slots with it. No trial is to blame: its open trials run elsewhere."""
        log.error("rank %d is lost: its work goes to the others", rank)
        self.first_cause = self.first_cause or f"rank {rank} is lost"
        for slot in [slot for slot in self._slots if slot[0] == rank]:
            state = self._slots[slot]
            running = next(iter(state.given), None)
            seconds = self._clock() - running.since if running else 0.0
            self._note_death(state.place, running, seconds, f"rank {rank} is lost")
            self._remove(slot)
            for given in state.given:
                if given.open:
                    self._push(tuple(given.open.values()), given.attempt, no_room=given.waited.no_room)

    def _note_death(self, place: Place, running: Given | None, seconds: float, cause: str) -> None:
        """Into the journal, for those who want to see what a run met; nothing reads it to go on."""
        self._journal.note(death={
            "time": round(time.time(), 3), "seconds": round(seconds, 3), "cause": last_line(cause),
            "place": [place.host, place.rank, place.slot, place.device],
            "key": next(iter(running.open if running else ()), ""),
        })  # fmt: skip

    def _failed(self, slot: SlotId, trial: Trial, result: Result, cause: str) -> None:
        """Try the trial once more, by itself and elsewhere if possible; then record it as failed."""
        if result.attempt < ATTEMPTS:
            log.warning("trial %s failed and is tried once more: %s", trial.key, last_line(cause))
            self._push((trial,), result.attempt + 1, avoid=slot)
        else:
            log.error("trial %s failed: %s", trial.key, last_line(cause))
            self._held.append((trial, replace(result, values={}, arrays={}, error=cause)))

    def _no_room(self, slot: SlotId, trial: Trial, waited: QueuedBatch, reason: str) -> None:
        """Try the trial on another kind of slot; where none is left, leave it open for another layout."""
        refused = waited.no_room | {self._kind(slot)}
        if self._gangs.of((trial,)) or all(self._kind(other) in refused for other in self._slots):
            self.left_open[trial.key] = reason
            log.warning("trial %s fits no slot and is left open: %s", trial.key, reason)
        else:
            self._push((trial,), waited.attempt, no_room=refused)

    def _kind(self, slot: SlotId) -> tuple[int, str]:
        """Rank and device: what slots have in common that have room for the same trials."""
        return slot[0], self._slots[slot].place.device

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
        self._gangs.clear()
        for rank in sorted({rank for rank, _ in self._slots}):
            self._tell(rank, Drain())

    # -- the queue

    def _enqueue(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self._push(batch)

    def _push(
        self,
        batch: Batch,
        attempt: int = 1,
        avoid: SlotId | None = None,
        no_room: frozenset[Kind] = frozenset(),
    ) -> None:
        if self._gangs.of(batch) is None:
            self._queue.push(batch, attempt, avoid, no_room)
        else:
            self._gangs.push(batch, attempt)

    def _assign(self) -> None:
        """Hand out work to slots that have none."""
        if self.stopped_by is not None:
            return
        refused: list[SlotId] = []
        while self._idle:
            self._begin_gangs()
            if not self._queue or not self._idle:
                break
            slot, _ = self._idle.popitem(last=False)
            if not self._give(slot):
                refused.append(slot)
        self._idle.update(dict.fromkeys(refused))

    def _top_up(self, slot: SlotId, state: SlotState) -> None:
        """Keep enough batches at a slot that it never waits for a message."""
        if self.stopped_by is not None:
            return
        self._begin_gangs()
        ahead = -1 if self._gangs and self._gangs.keeps(slot) else self._pace.ahead
        # Ahead of time only while what waits lasts longer for all than what the slot is at: another may be free sooner.
        while state.n_open <= ahead:
            if state.n_open and self._queue.cost <= GAIN * len(self._slots) * state.given[-state.n_open].waited.cost:
                break
            if not self._queue or not self._give(slot):
                break
        if not state.given:
            self._idle[slot] = None

    def _give(self, slot: SlotId) -> bool:
        """Give the slot the first batch of the queue that it may have; False when there is none."""
        state = self._slots[slot]
        while True:
            waiting = self._queue.pop(slot, self._kind(slot), len(self._slots), lambda: self._free_in(slot))
            if waiting is None:
                return False
            if self._pace.is_too_late(waiting.cost):
                self.n_too_long += 1
                continue
            now = self._clock()
            state.given.append(Given({trial.key: trial for trial in waiting.batch}, waiting, now, now))
            self._tell(slot[0], Run(slot[1], waiting.batch, state.life))
            return True

    def _begin_gangs(self) -> None:
        """Give gangs the slots that they need, once these are idle."""
        if not self._gangs:
            return
        for waiting, slots, reason in self._gangs.ready(self._queue.first):
            if not slots:
                self.left_open.update((trial.key, reason) for trial in waiting.batch)
                log.warning("trial %s is left open: %s", waiting.batch[0].key, reason)
                continue
            lead, *others = slots
            state = self._slots[lead]
            if self._pace.is_too_late(waiting.cost):
                self.n_too_long += 1
                self._gangs.ended(lead)
                self._idle[lead] = None
                continue
            for rank, slot in others:
                self._tell(rank, Lend(slot))
            places = {rank: self._slots[rank, slot].place for rank, slot in slots}
            gang = self._gangs.of(waiting.batch)
            hosts = tuple(place.host for place in places.values()) if gang is not None and gang.nodes else ()
            now = self._clock()
            state.given.append(Given({trial.key: trial for trial in waiting.batch}, waiting, now, since=now))
            beside = tuple(slot for rank, slot in others if rank == lead[0])
            self._tell(lead[0], Run(lead[1], waiting.batch, state.life, beside, hosts))

    def _free_in(self, slot: SlotId) -> tuple[float, list[float]]:
        """When this slot and each other one will have finished their batches, in units of cost."""
        now = self._clock()
        return self._pace.left(self._slots[slot], now), [
            self._pace.left(state, now) for other, state in self._slots.items() if other != slot
        ]


def slots_of(places: Sequence[Sequence[Place]]) -> dict[SlotId, Place]:
    """All slots by (rank, slot), the first slot of every rank before the second of any."""
    slots: dict[SlotId, Place] = {}
    for number in range(max(map(len, places), default=0)):
        for rank, of_rank in enumerate(places):
            if number < len(of_rank):
                slots[rank, number] = of_rank[number]
    return slots
