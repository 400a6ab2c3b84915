"""The coordinator's queue: costliest batches first, divided only where a slot would be idle otherwise."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from mpitune.port import Scheduling
from mpitune.trial import Batch, is_group

SlotId = tuple[int, int]  # rank, slot
Kind = tuple[int, str]  # rank and device: slots that have the same of everything
# When this slot and each other one will have finished their batches, in units of cost; asked only if that matters.
FreeIn = Callable[[], tuple[float, list[float]]]
HALVED = 1e300  # a cost above all others: of batches that were halved the smallest shows first whose failure it was
GAIN = 1.02  # all work must end so much sooner for a batch to be divided further: common work is computed again


@dataclass(order=True)
class QueuedBatch:
    """A batch in the queue; the order of its fields is the order of the queue."""

    priority: float
    number: int
    batch: Batch = field(compare=False)
    queue: Queue = field(compare=False, repr=False)  # which knows what batches cost
    attempt: int = field(compare=False, default=1)
    avoid: SlotId | None = field(compare=False, default=None)  # a slot where it failed
    no_room: frozenset[Kind] = field(compare=False, default=frozenset())  # slots that its trial does not fit
    inherited: float = field(compare=False, default=0.0)  # cost of what it has in common with chunks of its batch

    @cached_property
    def parts(self) -> Sequence[Batch]:
        """The smallest parts of the batch, itself where it cannot be divided or is tried once more."""
        whole = len(self.batch) == 1 or self.attempt > 1
        return [self.batch] if whole else self.queue.scheduling.split_batch(self.batch)

    @cached_property
    def shared(self) -> float:
        """Cost of what the parts have in common, or this part with others."""
        if len(self.parts) == 1:
            return self.inherited
        return self.queue.scheduling.shared_cost_of(self.batch, self.queue.most_workers)

    @cached_property
    def part_costs(self) -> list[float]:
        """Cost of each part, without their common work."""
        of_part = max if is_group(self.batch) else sum
        return [of_part(map(self.queue.scheduling.cost, part)) for part in self.parts]

    @cached_property
    def cost(self) -> float:
        """Cost of the whole batch."""
        if len(self.batch) == 1:
            return self.inherited + self.queue.scheduling.cost(self.batch[0])
        return self.shared + sum(self.part_costs)

    def chunks(self, n: int) -> list[Batch]:
        """The batch in n chunks of neighbouring parts, n at most the number of parts."""
        return [tuple(t for part in self.parts[a:b] for t in part) for a, b in _cuts(len(self.parts), n)]

    def chunk_costs(self, n: int) -> list[float]:
        """The cost of each of n chunks, with their common work."""
        return [self.shared + sum(self.part_costs[a:b]) for a, b in _cuts(len(self.parts), n)]

    def costs_within(self, limit: float) -> list[float]:
        """The costs of the fewest chunks of which none costs more than `limit`; of the smallest parts at worst."""
        if self.cost <= limit:
            return [self.cost]
        n = len(self.parts)
        return next((c for k in range(2, n) if max(c := self.chunk_costs(k)) <= limit), self.chunk_costs(n))


class Queue:
    """Batches that wait for a slot, the costliest first; what may fail again comes before all others.

    Args:
        most_workers: of a node, on its CPU.
        numbers: of batches, in the order of their coming; two queues may share them.
    """

    def __init__(self, scheduling: Scheduling, most_workers: int = 1, numbers: itertools.count[int] | None = None):
        self.scheduling, self.most_workers = scheduling, most_workers
        self._heap: list[tuple[float, int, QueuedBatch]] = []  # by priority and number, which tuples compare fastest
        self._numbers = itertools.count() if numbers is None else numbers
        self.cost = 0.0  # of all that waits

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def first(self) -> QueuedBatch | None:
        """The first batch, for any slot."""
        return self._heap[0][2] if self._heap else None

    def push(
        self,
        batch: Batch,
        attempt: int = 1,
        *,
        avoid: SlotId | None = None,
        no_room: frozenset[Kind] = frozenset(),
        inherited: float = 0.0,
        halved: bool = False,
    ) -> None:
        """Add a batch. The arguments are the fields of `QueuedBatch`; one that was `halved` has failed as a whole."""
        waiting = QueuedBatch(
            0.0, next(self._numbers), batch, self,
            attempt=attempt, avoid=avoid, no_room=no_room, inherited=inherited,
        )  # fmt: skip
        # What may fail again is done first, so that a broken study shows early.
        waiting.priority = -math.inf if attempt > 1 else -HALVED / len(batch) if halved else -waiting.cost
        self.put_back(waiting)

    def pop(
        self,
        refuses: Callable[[QueuedBatch], bool],  # which batches the slot may not have
        *,
        n_slots: int,  # that there are
        free_in: FreeIn,
        retries_only: bool = False,  # it may have only what has failed before, which comes first
    ) -> QueuedBatch | None:
        """Take the first batch that a slot may have, or a chunk of it; None where there is none."""
        passed: list[QueuedBatch] = []
        taken: QueuedBatch | None = None
        while self._heap and taken is None and not (retries_only and self._heap[0][2].attempt == 1):
            waiting = self.take()
            if refuses(waiting):
                passed.append(waiting)
                continue
            n = self._n_chunks(waiting, n_slots, free_in)
            if n == 1:
                taken = waiting
                break
            for chunk in waiting.chunks(n):
                self.push(chunk, no_room=waiting.no_room, inherited=waiting.shared)
        for waiting in passed:
            self.put_back(waiting)
        return taken

    @property
    def longest(self) -> float:
        """The cost of the largest part that waits, with all batches divided as far as possible."""
        return 0.0 if self.first is None else self.first.shared + max(self.first.part_costs)

    def clear(self) -> list[QueuedBatch]:
        """Take out all batches."""
        waiting, self._heap, self.cost = self._heap, [], 0.0
        return [batch for _, _, batch in waiting]

    def put_back(self, waiting: QueuedBatch) -> None:
        """Add a batch that was taken."""
        heapq.heappush(self._heap, (waiting.priority, waiting.number, waiting))
        self.cost += waiting.cost

    def take(self) -> QueuedBatch:
        """Take the first batch."""
        _, _, waiting = heapq.heappop(self._heap)
        self.cost = self.cost - waiting.cost if self._heap else 0.0
        return waiting

    def _n_chunks(self, waiting: QueuedBatch, n_slots: int, free_in: FreeIn) -> int:
        """Into how many chunks to divide a batch, which has just been taken out, before a slot begins it."""
        if n_slots == 1 or len(waiting.batch) == 1 or len(waiting.parts) == 1:
            return 1
        if waiting.shared == 0:
            return len(waiting.parts)
        # Enough work is left for every other slot until this batch has ended: the others may be divided later.
        if self.cost >= n_slots * self.scheduling.cost_uncertainty * waiting.cost:
            return 1
        own, others = free_in()
        return best_division(waiting, [batch for _, _, batch in self._heap], own=own, others=others)


def best_division(first: QueuedBatch, rest: Sequence[QueuedBatch], *, own: float, others: Sequence[float]) -> int:
    """Into how many chunks to divide `first` so that all work ends soonest; the fewest of about equally good answers.

    The rest can still be divided later. So each answer is tried with the rest undivided, and with the rest in chunks as
    small as those of `first`: a batch stays whole as long as dividing others later ends as soon. It is tried as if this
    batch took `uncertainty` times as long as expected: all slots may have to wait for a long batch that begins late,
    while a division that was not needed costs little. The chunks are placed by list scheduling, the costliest first
    (R. L. Graham, "Bounds on multiprocessing timing anomalies", 1969). `own` is when the slot of `first` is free, in
    units of cost from now, `others` the same for each other slot.
    """
    numbers = range(1, len(first.parts) + 1)
    limits = {n: GAIN * max(first.chunk_costs(n)) for n in numbers}
    rests = {n: [cost for waiting in rest for cost in waiting.costs_within(limits[n])] for n in numbers}
    uncertainty = first.queue.scheduling.cost_uncertainty
    chunks = {n: [uncertainty * cost for cost in first.chunk_costs(n)] for n in numbers}
    after = [own + uncertainty * first.cost, *others]
    ends = {1: min(end_of(after, rests[n]) for n in numbers)}
    slots = [own, *others]
    for n in numbers[1:]:
        ends[n] = end_of(slots, [*chunks[n], *rests[n]])
    soonest = min(ends.values())
    return next(n for n in numbers if ends[n] <= soonest * GAIN)


def end_of(free: Iterable[float], costs: Iterable[float]) -> float:
    """When the last chunk of work ends, if each slot that is free takes the costliest chunk that is left."""
    heap = list(free)
    heapq.heapify(heap)
    end = max(heap)
    for cost in sorted(costs, reverse=True):
        done = heap[0] + cost
        heapq.heapreplace(heap, done)
        end = max(end, done)
    return end


def _cuts(n_parts: int, n: int) -> list[tuple[int, int]]:
    """Begin and end of each of n chunks of n_parts; their sizes differ by one at most."""
    bounds = [n_parts * i // n for i in range(n + 1)]
    return list(itertools.pairwise(bounds))
