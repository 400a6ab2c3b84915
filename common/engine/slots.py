"""What the coordinator knows of each slot: its batches, its deaths, and how far it says that it is."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from common.engine.messages import Headway
from common.engine.queue import QueuedBatch
from common.trial import Place, Trial


@dataclass
class Given:
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
    """A slot that is in use.

    Attributes:
        step: its last report of progress, None if there was none since its last result.
        marks: the first and the last (time, share of its batch that was done) that were heard, for people only.
    """

    place: Place
    given: deque[Given] = field(default_factory=deque)
    deaths: int = 0  # in a row
    life: int = 0  # deaths in all
    step: Headway | None = None
    marks: list[tuple[float, float]] = field(default_factory=list)

    @property
    def n_open(self) -> int:
        """Batches that it has; one whose trials have all returned is as good as done, and its worker wants the next."""
        return len(self.given) - (bool(self.given) and not self.given[0].open)

    def mark(self, now: float, step: Headway | None) -> None:
        """Remember how far the batch is that the slot works on: `step`, or None when results have come."""
        self.step = step
        if not self.given:
            return
        batch, n_open = self.given[0].waited.batch, len(self.given[0].open)
        if step is not None and not step.total > 0:
            if not step.done:
                self.marks = []  # the clock of its work starts again: it has been starting, or waiting
            return
        share = 0.0 if step is None else min(1.0, step.done / step.total) * min(step.trials, n_open)
        self.marks = [*self.marks[:1], (now, (len(batch) - n_open + share) / len(batch))]

    @property
    def is_computing(self) -> bool:
        """Whether it has work and computes: by its last message it is not starting or waiting."""
        return bool(self.given) and (self.step is None or self.step.is_work)
