"""How fast a study goes, from batches that are done, and what the coordinator concludes from it."""

from __future__ import annotations

import math
import time

from mpitune.engine.slots import SlotState

LATENCY = 0.02  # seconds from a slot's last result to its next batch when both sleep between messages
SHORT = 2.0  # batches shorter than this are worth fetching ahead
MOST_AHEAD = 63


class Pace:
    """Seconds of a batch and of a unit of cost, as moving averages.

    Args:
        end: Unix time by which all work must be done, None where there is none.

    Attributes:
        seconds_per_cost: None before a batch is done.
    """

    def __init__(self, end: float | None):
        self._end = end
        self._batch_seconds: float | None = None
        self.seconds_per_cost: float | None = None

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
        if not state.given:
            return 0.0
        first, *others = state.given
        spent = (now - first.begun) / self.seconds_per_cost if self.seconds_per_cost else 0.0
        return max(0.0, first.waited.cost - spent) + sum(given.waited.cost for given in others)


def _moved(mean: float | None, value: float) -> float:
    """A moving average over about the last ten values."""
    return value if mean is None else mean + 0.1 * (value - mean)
