"""How a running study stands, for people: counts, the longest running trial, the time left. It decides nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mpitune.engine.pace import Pace
from mpitune.engine.queue import Queue
from mpitune.engine.slots import SlotState

MOST_SHOWN = 50  # running trials of an overview, the longest first


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
        left: seconds until all known trials are done, a guess; None before anything was timed.
    """

    done: int
    failed: int
    total: int
    more: bool
    slots: int
    n_running: int
    waiting: Mapping[str, int]
    running: Sequence[Running]
    left: float | None

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        running = [vars(trial) for trial in self.running]
        return {**vars(self), "running": running}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Overview:
        """The inverse of `as_json`. Raises ValueError, TypeError or KeyError for anything else."""
        counts = {name: int(content[name]) for name in ("done", "failed", "total", "slots", "n_running")}
        running = [
            Running(str(trial["key"]), str(trial["place"]), float(trial["seconds"]), str(trial["step"]))
            for trial in content["running"]
        ]
        waiting = {str(what): int(n) for what, n in content["waiting"].items()}
        left = None if content["left"] is None else float(content["left"])
        return cls(**counts, more=bool(content["more"]), waiting=waiting, running=running, left=left)


def overview(
    states: Sequence[SlotState],
    queue: Queue,
    pace: Pace,
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
        pace: of batches that are done.
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
        left=_time_left(states, queue, pace, now=now, unasked=unasked, n_open=asked - done),
    )


def _running(state: SlotState, now: float) -> Running:
    given, step = state.given[0], state.step
    n, n_open = len(given.waited.batch), len(given.open)
    together = 1 if step is None else min(step.trials, n_open)
    words = [f"trial {n - n_open + 1} of {n} of its batch"] if n > 1 and together < n else []
    words += [str(step)] if step is not None and step.unit else []
    return Running(next(iter(given.open), ""), str(state.place), round(now - given.since, 1), ", ".join(words))


def _time_left(
    states: Sequence[SlotState], queue: Queue, pace: Pace, *, now: float, unasked: int, n_open: int
) -> float | None:
    """Seconds until all is done, if slots that become free take the costliest batch that waits.

    The guess is the work that is left divided by the number of slots, or its longest piece if that takes longer (R. L.
    Graham, 1969, gives both as bounds).
    """
    if pace.seconds_per_cost is None or not states:
        return None
    left = [pace.left(state, now) for state in states]
    work = sum(left) + queue.cost
    work += unasked * work / n_open if n_open else 0.0
    return round(pace.seconds_per_cost * max(work / len(states), queue.longest, *left), 1)
