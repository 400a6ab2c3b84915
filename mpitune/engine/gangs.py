"""Trials that need several slots at a time: a gang of devices of one node, or of whole nodes.

Gangs choose their ranks in the order in which they come, and keep the slots there as they become idle; a gang begins
once it has all that it needs. On a rank slots are kept for one gang at a time, so two of them never wait for each
other. All other slots go on with other work: what needs a single slot is delayed only by what comes before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, MutableMapping
from dataclasses import dataclass, field

from mpitune.engine.queue import Queue, QueuedBatch, SlotId
from mpitune.trial import Batch, Gang


@dataclass
class KeptSlots:
    """Slots that are kept for a gang."""

    waited: QueuedBatch
    missing: dict[int, int]  # how many it still needs of each rank
    taken: list[SlotId] = field(default_factory=list)

    def wants(self, slot: SlotId) -> bool:
        """Whether it needs this slot."""
        return self.missing.get(slot[0], 0) > 0


class Gangs:
    """The gangs that wait, and the slots that are kept or lent."""

    def __init__(
        self,
        queue: Queue,  # of batches that wait for a gang
        *,
        slots: Collection[SlotId],  # all that there are
        idle: MutableMapping[SlotId, None],  # those without work, from which slots are taken and to which they return
    ):
        self.queue, self._slots, self._idle = queue, slots, idle
        self._kept: list[KeptSlots] = []
        self._lead_of: dict[SlotId, SlotId] = {}  # of slots that are lent

    def __bool__(self) -> bool:
        return bool(self.queue) or bool(self._kept)

    def of(self, batch: Batch) -> Gang | None:
        """The gang that a batch needs: that of its first trial, or None for a single slot."""
        gang = self.queue.scheduling.gang(batch[0])
        return None if gang is None or gang == Gang() else gang

    def clear(self) -> None:
        """Forget all that wait, and the slots kept for them."""
        self._cancel(self._kept)
        self.queue.clear()

    def keeps(self, slot: SlotId) -> bool:
        """Whether a slot is lent or kept for a gang. Then it gets no other work."""
        return self.has(slot) or any(kept.wants(slot) for kept in self._kept)

    def has(self, slot: SlotId) -> bool:
        """Whether a gang uses the slot or has taken it, so that it is not idle."""
        return slot in self._lead_of or any(slot in kept.taken for kept in self._kept)

    def ready(self, single: QueuedBatch | None) -> list[tuple[QueuedBatch, list[SlotId], str]]:
        """Keep idle slots for gangs in their order. Those that come after `single`, which needs one slot, wait.

        Returns the gangs that begin now, each with its slots, and those that can never begin, without slots and with
        the reason.
        """
        decided: list[tuple[QueuedBatch, list[SlotId], str]] = []
        for kept in list(self._kept):
            self._fill(kept, decided)
        while (first := self.queue.first) is not None and not (single is not None and single < first):
            gang = self.of(first.batch) or Gang()
            if reason := self._lacks(gang):
                decided.append((self.queue.take(), [], reason))
            elif ranks := self._chosen(gang):
                self._kept.append(KeptSlots(self.queue.take(), ranks))
                self._fill(self._kept[-1], decided)
            else:
                break
        return decided

    @property
    def lent(self) -> bool:
        """Whether any slot is lent."""
        return bool(self._lead_of)

    def ended(self, lead: SlotId) -> None:
        """What ran at this slot has ended: slots that were lent to it are idle again."""
        for slot in [slot for slot, other in self._lead_of.items() if other == lead]:
            del self._lead_of[slot]
            if slot in self._slots:
                self._idle[slot] = None

    def gone(self, slot: SlotId) -> None:
        """This slot is lost, and `slots` no longer has it."""
        self.ended(slot)
        self._lead_of.pop(slot, None)
        self._cancel([kept for kept in self._kept if slot[0] in kept.missing])

    def _fill(self, kept: KeptSlots, begun: list[tuple[QueuedBatch, list[SlotId], str]]) -> None:
        """Take the idle slots that it wants; it begins once it has all."""
        for slot in list(self._idle):
            if kept.wants(slot):
                kept.taken.append(slot)
                kept.missing[slot[0]] -= 1
                del self._idle[slot]
        if not any(kept.missing.values()):
            self._kept.remove(kept)
            lead, *others = sorted(kept.taken)
            self._lead_of.update(dict.fromkeys(others, lead))
            begun.append((kept.waited, [lead, *others], ""))

    def _cancel(self, some: list[KeptSlots]) -> None:
        """Give back the slots of these gangs, which choose again later."""
        for kept in list(some):
            self._kept.remove(kept)
            self._idle.update(dict.fromkeys(slot for slot in kept.taken if slot in self._slots))
            self.queue.put_back(kept.waited)

    def _lacks(self, gang: Gang) -> str:
        """Why this job can never run a gang; "" where it can."""
        slots = Counter(rank for rank, _ in self._slots)
        if gang.nodes > len(slots):
            return f"it needs {gang.nodes} nodes, and this job has {len(slots)}"
        largest = max(slots.values(), default=0)
        if not gang.nodes and gang.devices > largest:
            return f"it needs {gang.devices} devices of a node, and the largest node has {largest}"
        return ""

    def _chosen(self, gang: Gang) -> dict[int, int]:
        """How many slots of which ranks a gang will have, where the fewest are busy.

        None where too few ranks are left for it: on a rank slots are kept for one gang at a time.
        """
        idle = Counter(rank for rank, _ in self._idle)
        taken = {rank for kept in self._kept for rank in kept.missing}
        slots = {rank: n for rank, n in Counter(rank for rank, _ in self._slots).items() if rank not in taken}
        if gang.nodes:
            ranks = sorted(slots, key=lambda rank: (slots[rank] - idle[rank], rank))[: gang.nodes]
            return {rank: slots[rank] for rank in ranks} if len(ranks) == gang.nodes else {}
        large = [rank for rank, n in slots.items() if n >= gang.devices]
        best = min(large, key=lambda rank: (max(0, gang.devices - idle[rank]), slots[rank], rank), default=None)
        return {} if best is None else {best: gang.devices}
