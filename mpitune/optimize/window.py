"""The one loop of a window: when a search asks for more, and in which order it is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

from mpitune.trial import Batch, Result, Rounds, Window


@dataclass(frozen=True)
class Proposed:
    """A batch to evaluate; cost: how long it takes, in virtual time."""

    batch: Batch
    cost: int = 1


class Source(Protocol):
    """What proposes, and is told what became of it."""

    @property
    def least(self) -> int:
        """It is asked for more where so many trials have room in the window; 0: once it was told of all."""

    @property
    def is_cut(self) -> bool:
        """Whether its time ended it before it has asked for all trials."""

    def ask(self, most: int) -> Sequence[Proposed] | None:
        """About `most` next trials; none: it has ended, or needs to be told of more first.

        None where it wants to hear of nothing that is still open.
        """

    def tell(self, proposed: Proposed, results: Sequence[Result]) -> bool:
        """Hear what became of a batch; returns whether it wants to hear of nothing that is still open."""


def rounds(source: Source, window: int) -> Rounds:
    """Keep so many trials, or stages, open; the conclusion is whether the source came to its end, and was not cut.

    Results are told in the order in which they would end in virtual time, where each batch runs from when it was asked
    for as long as its cost. So whole trials are told in the order asked, and no short stage waits for a far longer one.
    The order depends on what was told before alone.
    """
    now, n_asked, n_open, new = 0, 0, 0, list[Batch]()
    waiting: list[tuple[int, int, Proposed]] = []  # a heap: when it would end, its number
    while True:
        while not waiting or 0 < source.least <= window - n_open:
            if (proposed := source.ask(window - n_open)) is None:
                return True
            if not proposed:
                break
            for one in proposed:
                new.append(one.batch)
                heappush(waiting, (now + one.cost if source.least else 0, n_asked, one))
                n_asked, n_open = n_asked + 1, n_open + len(one.batch)
        if not waiting:
            return not source.is_cut
        now, _, one = heappop(waiting)
        n_open -= len(one.batch)
        results = yield Window(new, one.batch)
        new = []
        if source.tell(one, results):
            return True
