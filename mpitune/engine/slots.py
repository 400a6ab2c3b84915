"""What the coordinator knows of each slot: its batches, its deaths, and how far it says that it is."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from mpitune.engine.messages import WorkerProgress
from mpitune.engine.queue import QueuedBatch
from mpitune.trial import Place, Trial

IN_A_ROW = 3  # failures of its own, after which a slot is given up


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
        failures: in a row that are its own: nothing was running, or the trial succeeded elsewhere.
        pending: keys of trials that failed here since its last success and are tried elsewhere.
        has_succeeded: whether any trial has succeeded here.
        is_failing: whether its last trial or worker has failed.
        in_vain: deaths while no trial of the run had succeeded anywhere.
        cause: of its last failure.
        life: deaths in all.
        step: its last report of progress, None if there was none since its last result.
    """

    place: Place
    given: deque[Given] = field(default_factory=deque)
    failures: int = 0
    pending: set[str] = field(default_factory=set)
    has_succeeded: bool = False
    is_failing: bool = False
    in_vain: int = 0
    cause: str = ""
    life: int = 0
    step: WorkerProgress | None = None

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
        return len(self.given) - (bool(self.given) and not self.given[0].open)

    @property
    def is_computing(self) -> bool:
        """Whether it has work and computes: by its last message it is not starting or waiting."""
        return bool(self.given) and (self.step is None or self.step.is_work)
