"""How a running study stands, for people: counts, the longest running trial, the time left. It decides nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

from mpitune.engine.queue import Queue
from mpitune.engine.slots import SlotState

MOST_SHOWN = 50  # running trials of an overview, the longest first
MEMORY = 0.98  # weight of a batch when the next one has ended: late batches are more like those that are left
GUESS, GUESSES = 0.7, 2.0  # before any is timed, costs count as wrong by exp(GUESS), as if GUESSES batches had shown it
WIDTH = 2.0  # standard errors on both sides: in simulations nine ranges of ten were right then (test_live.py)


class TimeLeft(NamedTuple):
    """Seconds until the end: the best guess, and the range in which it should be nine times of ten."""

    low: float
    guess: float
    high: float


class Learnt:
    """What a unit of cost takes, in seconds, from batches or parts of them that were timed."""

    def __init__(self) -> None:
        self.n = self.cost = self.seconds = 0.0
        self._logs = self._squares = 0.0  # sums over batches, of the logarithm of what a unit takes

    def add(self, cost: float, seconds: float, weight: float = 1.0) -> None:
        """Take note of a batch, or of a part of one, that was timed.

        Args:
            cost: its estimated cost; 0 is passed over.
            seconds: the time that it took.
            weight: the share of a batch that it was.
        """
        if cost <= 0 or seconds <= 0:
            return
        log, keep = math.log(seconds / cost), MEMORY**weight
        self.n = self.n * keep + weight
        self.cost, self.seconds = self.cost * keep + cost, self.seconds * keep + seconds
        self._logs, self._squares = self._logs * keep + weight * log, self._squares * keep + weight * log**2

    @property
    def rate(self) -> float:
        """Seconds of a unit of cost."""
        return self.seconds / self.cost

    @property
    def spread(self) -> float:
        """Standard deviation of the logarithm of what a unit takes, from batch to batch."""
        squares = max(0.0, self._squares - self._logs**2 / self.n) if self.n else 0.0
        return math.sqrt((GUESS**2 * GUESSES + squares) / (GUESSES + max(0.0, self.n - 1)))


@dataclass(frozen=True)
class Running:
    """A trial that is being computed: its place, since how many seconds, and how far it is, as words."""

    key: str
    place: str
    seconds: float
    step: str


@dataclass(frozen=True)
class Overview:
    """A study at one moment.

    Attributes:
        done, failed: trials that are known, and those of this run that failed.
        total: trials that there will be, as far as is known now.
        more: whether there may be more than `total`.
        slots: how many are in use.
        n_running: trials that are being computed.
        waiting: what other slots do, such as "starting", and how many do it.
        running: trials that are being computed, the longest first, `MOST_SHOWN` at most.
        left: until all known trials are done; None before anything was timed.
    """

    done: int
    failed: int
    total: int
    more: bool
    slots: int
    n_running: int
    waiting: Mapping[str, int]
    running: Sequence[Running]
    left: TimeLeft | None

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        running = [vars(trial) for trial in self.running]
        return {**vars(self), "running": running, "left": None if self.left is None else list(self.left)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Overview:
        """The inverse of `as_json`. Raises ValueError, TypeError or KeyError for anything else."""
        counts = {name: int(content[name]) for name in ("done", "failed", "total", "slots", "n_running")}
        running = [
            Running(str(trial["key"]), str(trial["place"]), float(trial["seconds"]), str(trial["step"]))
            for trial in content["running"]
        ]
        waiting = {str(what): int(n) for what, n in content["waiting"].items()}
        left = None if content["left"] is None else TimeLeft(*map(float, content["left"]))
        return cls(**counts, more=bool(content["more"]), waiting=waiting, running=running, left=left)


def overview(
    states: Sequence[SlotState],
    queue: Queue,
    learnt: Learnt,
    now: float,
    *,
    done: int,
    asked: int,
    failed: int,
    total: int | None,
) -> Overview:
    """The study now.

    Args:
        states: of all slots.
        queue: what waits for one.
        learnt: from batches that are done.
        now: by the coordinator's clock.
        done: trials known.
        asked: trials asked so far.
        failed: those of this run that failed.
        total: trials that there will be, None where that is not known.
    """
    computing = sorted((state for state in states if state.is_computing), key=lambda state: state.given[0].since)
    unasked = max(0, (total or 0) - asked)
    return Overview(
        done=done,
        failed=failed,
        total=asked + unasked,
        more=total is None,
        slots=len(states),
        n_running=len(computing),
        waiting=dict(
            Counter(state.step.unit for state in states if state.given and not state.is_computing and state.step)
        ),
        running=[_running(state, now) for state in computing[:MOST_SHOWN]],
        left=_time_left(states, queue, learnt=learnt, now=now, unasked=unasked, n_open=asked - done),
    )


def _running(state: SlotState, now: float) -> Running:
    given, step = state.given[0], state.step
    n, n_open = len(given.waited.batch), len(given.open)
    together = 1 if step is None else min(step.trials, n_open)
    words = [f"trial {n - n_open + 1} of {n} of its batch"] if n > 1 and together < n else []
    words += [str(step)] if step is not None and step.unit else []
    return Running(next(iter(given.open), ""), str(state.place), round(now - given.since, 1), ", ".join(words))


def _time_left(
    states: Sequence[SlotState], queue: Queue, *, learnt: Learnt, now: float, unasked: int, n_open: int
) -> TimeLeft | None:
    """Until all is done, if slots that become free take the costliest batch that waits.

    The guess is the work that is left divided by the number of slots, or its longest piece if that takes longer (R. L.
    Graham, 1969, gives both as bounds). The range has two causes: the seconds of a unit of cost are an average over few
    batches, and the batches that are left differ.
    """
    learnt = copy(learnt)
    for state in states:
        if len(state.marks) == 2:
            (first, before), (last, share) = state.marks
            learnt.add((share - before) * state.given[0].waited.cost, last - first, weight=share - before)
    if not learnt.cost or not states:
        return None
    left = [_cost_left(state, learnt.rate, now) for state in states]
    work = sum(left) + queue.cost
    work += unasked * work / n_open if n_open else 0.0
    longest = max([queue.longest, *left])
    guess = learnt.rate * max(work / len(states), longest)
    n_left = max(1.0, min(len(queue) + sum(map(bool, left)), work / longest if longest else 1.0))
    error = WIDTH * learnt.spread * math.sqrt(1 / max(learnt.n, 0.25) + 1 / n_left)
    return TimeLeft(*(round(guess * math.exp(way * min(error, 5.0)), 1) for way in (-1, 0, 1)))


def _cost_left(state: SlotState, rate: float, now: float) -> float:
    """Cost of what a slot has not done: as its last report says, or else as its time so far suggests."""
    if not state.given:
        return 0.0
    first, *others = state.given
    cost = max(first.waited.cost, 1e-300)  # candidates of a shared fit may cost nothing beside the first
    if len(state.marks) == 2:
        (begin, before), (last, share) = state.marks
        share += (share - before) / max(last - begin, 1e-9) * (now - last)
    elif state.marks:
        share = state.marks[0][1] + (now - state.marks[0][0]) / rate / cost
    else:
        share = (now - first.begun) / rate / cost if state.is_computing else 0.0
    return max(0.03, 1 - share) * cost + sum(given.waited.cost for given in others)
