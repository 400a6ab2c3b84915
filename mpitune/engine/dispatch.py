"""Which slot gets which batch, and when: the slots of all ranks, the queue, and gangs, which need several slots."""

from __future__ import annotations

import itertools
import logging
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from mpitune.engine.gangs import Gangs
from mpitune.engine.messages import Lend, Run
from mpitune.engine.queue import GAIN, Kind, Queue, QueuedBatch, SlotId
from mpitune.engine.slots import IN_A_ROW, Assigned, Pace, Resources, SlotState
from mpitune.port import Scheduling
from mpitune.trial import Batch, Trial

log = logging.getLogger(__name__)

NO_SLOT_LEFT = "the slots that might have had room for it are gone"


class Dispatch:
    """Gives batches to slots."""

    def __init__(self, scheduling: Scheduling, resources: Resources):
        self._tell, self._clock = resources.tell, resources.clock
        self.slots = {slot: SlotState(place) for slot, place in resources.slots.items()}  # those in use
        # Those idle longest come first. A plain dict would look for its first item among all that were taken from it.
        self._idle = OrderedDict.fromkeys(self.slots)
        numbers, most_workers = itertools.count(), resources.most_workers
        self.queue = Queue(scheduling, most_workers, numbers)  # of batches that wait for one slot
        self._gangs = Gangs(Queue(scheduling, most_workers, numbers), slots=self.slots, idle=self._idle)
        self.pace = Pace(resources.end)
        self.n_too_long = 0  # batches that were not begun, since the job ends too soon
        self.left_open: dict[str, str] = {}  # keys of trials that fit no slot, with the reason
        self.news: list[bytes] = []  # for all workers; a rank gets what is new to it with its next batch
        self._n_told: dict[int, int] = {}  # of a rank, how much of the news it has
        self._stopped = False

    @property
    def all_idle(self) -> bool:
        """Whether no slot has work or is kept for a gang."""
        return len(self._idle) == len(self.slots)

    @property
    def at_rest(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self.queue and not self._gangs and self.all_idle

    # -- what waits

    def add(self, batch: Batch, attempt: int = 1, **how: Any) -> None:
        """Add a batch, as `Queue.push`; after `stop` it is forgotten."""
        if not self._stopped:
            queue = self.queue if self._gangs.of(batch) is None else self._gangs.queue
            queue.push(batch, attempt, **how)

    def put_back(self, assigned: Iterable[Assigned]) -> None:
        """Add again what has not returned of batches that a slot had."""
        for batch in assigned:
            if batch.open:
                waited = batch.waited
                self.add(tuple(batch.open.values()), batch.attempt, avoid=waited.avoid, no_room=waited.no_room)

    def no_room(self, slot: SlotId, trial: Trial, waited: QueuedBatch, reason: str) -> bool:
        """Try a trial on another kind of slot; if none is left, leave it open for another layout, and return True."""
        refused = waited.no_room | {self._kind(slot)}
        if self._gangs.of((trial,)) or all(self._kind(other) in refused for other in self.slots):
            level = logging.DEBUG if self.left_open else logging.WARNING  # the end counts them
            log.log(level, "trial %s was not run, as no worker here has room for it: %s", trial.key, reason)
            self.left_open[trial.key] = reason
            return True
        self.add((trial,), waited.attempt, avoid=waited.avoid, no_room=refused)
        return False

    def stop(self) -> None:
        """Forget what waits, and give out nothing more."""
        self._stopped = True
        self.queue.clear()
        self._gangs.clear()

    # -- slots

    def assign(self, *, release_held: bool = False) -> None:
        """Give work to slots that have none; `release_held`: also to those that are held back, see `_give`."""
        if self._stopped:
            return
        refused: list[SlotId] = []
        while self._idle:
            self._begin_gangs()
            if not self.queue or not self._idle:
                break
            slot, _ = self._idle.popitem(last=False)
            if not self._give(slot, release_held):
                refused.append(slot)
        self._idle.update(dict.fromkeys(refused))

    def leave_open(self) -> None:
        """If all slots are idle after `assign`, what still waits has no room on any of them: leave it open."""
        if self.slots and self.all_idle and self.queue:
            self.assign(release_held=True)
        if self.slots and self.all_idle:
            for waiting in self.queue.clear():
                self.left_open.update((trial.key, NO_SLOT_LEFT) for trial in waiting.batch)
            self.assign()

    def done(self, slot: SlotId, n: int) -> None:
        """The first n batches of a slot are done: it gets enough others that it never waits for a message."""
        state = self.slots[slot]
        if n and self._gangs.lent:
            self._gangs.ended(slot)
        for _ in range(n):
            done = state.assigned.popleft()
            if state.assigned:
                state.assigned[0].begun = state.assigned[0].since = self._clock()
            if done.seconds:
                self.pace.add(done.waited.cost, done.seconds)
        self._top_up(slot, state)

    def died(self, slot: SlotId) -> None:
        """The worker of a slot has gone: what it had waits again."""
        state = self.slots[slot]
        self.put_back(state.assigned)
        state.assigned.clear()
        state.step = None
        self._gangs.ended(slot)

    def free(self, slot: SlotId) -> None:
        """This slot has no work."""
        if not self._gangs.has(slot):
            self._idle[slot] = None

    def remove(self, slot: SlotId) -> None:
        """Forget a slot."""
        self.slots.pop(slot, None)
        self._idle.pop(slot, None)
        self._gangs.gone(slot)

    def has_elsewhere(self, slot: SlotId) -> bool:
        """Whether there is a slot of another rank."""
        return any(rank != slot[0] and not state.is_bad for (rank, _), state in self.slots.items())

    def _refuses(self, slot: SlotId, waiting: QueuedBatch) -> bool:
        """Whether a slot leaves a batch to others: it has no room, or another can tell better whose failure it was."""
        if waiting.no_room and self._kind(slot) in waiting.no_room:
            return True
        if (failed := waiting.avoid) is None:
            return False
        own = self._can_tell(slot, failed)
        return any(
            not state.is_bad and self._can_tell(other, failed) > own and self._kind(other) not in waiting.no_room
            for other, state in self.slots.items()
        )

    def _can_tell(self, slot: SlotId, failed: SlotId) -> tuple[bool, bool, int]:
        """How well a retry on a slot tells whether a trial or the slot `failed` is at fault, to compare.

        Best on another node, as all slots of one may have the same fault, and where trials succeed.
        """
        return slot[0] != failed[0], slot != failed, self.slots[slot].standing

    def _kind(self, slot: SlotId) -> Kind:
        """Rank and device: what slots have in common that have room for the same trials."""
        return slot[0], self.slots[slot].place.device

    def _top_up(self, slot: SlotId, state: SlotState) -> None:
        if self._stopped:
            if not state.assigned:
                self._idle[slot] = None
            return
        self._begin_gangs()
        ahead = -1 if self._gangs and self._gangs.keeps(slot) else self.pace.ahead
        if len(self.slots) > 1:  # at most half of its part: the next may take a thousand times as long
            ahead = min(ahead, len(self.queue) // (2 * len(self.slots)))
        # Ahead of time only while what waits lasts longer for all than what the slot is at: another may be free sooner.
        while state.n_open <= ahead:
            if state.n_open and self.queue.cost <= GAIN * len(self.slots) * state.assigned[-state.n_open].waited.cost:
                break
            if not self.queue or not self._give(slot):
                break
        if not state.assigned:
            self._idle[slot] = None

    def _give(self, slot: SlotId, release_held: bool = False) -> bool:
        """Give the slot the first batch of the queue that it may have; False when there is none.

        A slot that only fails would be through with most trials before any is retried. So after three pending failures
        it is held back: it gets only retries, until it is known whose one of these was. `release_held`: it gets all.
        """
        state = self.slots[slot]
        while not state.is_bad:
            waiting = self.queue.pop(
                lambda waiting: self._refuses(slot, waiting), n_slots=len(self.slots),
                free_in=lambda: self._free_in(slot), retries_only=len(state.pending) >= IN_A_ROW and not release_held,
            )  # fmt: skip
            if waiting is None:
                return False
            if self.pace.is_too_late(waiting.cost):
                self.n_too_long += 1
                continue
            self._send(slot, waiting)
            return True
        return False

    def _send(
        self, slot: SlotId, waiting: QueuedBatch, beside: tuple[int, ...] = (), hosts: tuple[str, ...] = ()
    ) -> None:
        state, now = self.slots[slot], self._clock()
        state.assigned.append(Assigned({trial.key: trial for trial in waiting.batch}, waiting, now, now))
        news = tuple(self.news[self._n_told.get(slot[0], 0) :])
        self._n_told[slot[0]] = len(self.news)
        self._tell(slot[0], Run(slot[1], waiting.batch, state.life, beside, hosts, news))

    def _begin_gangs(self) -> None:
        """Give gangs the slots that they need, once these are idle."""
        if not self._gangs:
            return
        for waiting, slots, reason in self._gangs.ready(self.queue.first):
            if not slots:
                self.left_open.update((trial.key, reason) for trial in waiting.batch)
                log.warning("trial %s was not run: %s", waiting.batch[0].key, reason)
                continue
            lead, *others = slots
            if self.pace.is_too_late(waiting.cost):
                self.n_too_long += 1
                self._gangs.ended(lead)
                self._idle[lead] = None
                continue
            for rank, slot in others:
                self._tell(rank, Lend(slot))
            places = {rank: self.slots[rank, slot].place for rank, slot in slots}
            gang = self._gangs.of(waiting.batch)
            hosts = tuple(place.host for place in places.values()) if gang is not None and gang.nodes else ()
            self._send(lead, waiting, tuple(slot for rank, slot in others if rank == lead[0]), hosts)

    def _free_in(self, slot: SlotId) -> tuple[float, list[float]]:
        """When this slot and each other one will have finished their batches, in units of cost."""
        now = self._clock()
        return self.pace.left(self.slots[slot], now), [
            self.pace.left(state, now) for other, state in self.slots.items() if other != slot
        ]
