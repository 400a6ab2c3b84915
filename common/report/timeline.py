"""When each slot worked and when it did not, and why: from the times at which trials ended and workers died.

    run begins   first trial                                  last trial of the slot      of all slots    run ends
    |-- start ---|== trial ==|-- wait --|== trial ==x-- restart --|== trial ==|---- tail ----|-- report --|
                                                    a worker died

The runs of a study are laid end to end, without the time between them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from common.storage.history import History

REASONS = {
    "start": "before its first trial: data, start of workers, compiling",
    "wait": "between trials: for results that a round needs, for messages, for files",
    "restart": "after a death, until the next trial",
    "tail": "after its last trial, while others still worked",
    "report": "after the last trial of all: tables and figures",
}


class Bar(NamedTuple):
    """Work of a slot, in seconds since the study began.

    Attributes:
        kind: "done", "failed" or "lost" with its worker.
    """

    begin: float
    end: float
    key: str
    kind: str


@dataclass
class SlotTime:
    """What one slot did.

    Attributes:
        place: host/rank/slot/device.
        deaths: (seconds, cause).
        idle: seconds for each reason.
    """

    place: str
    bars: list[Bar] = field(default_factory=list)
    deaths: list[tuple[float, str]] = field(default_factory=list)
    idle: dict[str, float] = field(default_factory=lambda: dict.fromkeys(REASONS, 0.0))

    @property
    def busy(self) -> float:
        return sum(bar.end - bar.begin for bar in self.bars)


@dataclass(frozen=True)
class Timeline:
    """All slots over all runs.

    Attributes:
        runs: (begin, end) of each in seconds since the study began, without what lay between.
        killed: whether the end of one of them is not known, so that its last result stands for it.
    """

    runs: list[tuple[float, float]]
    slots: list[SlotTime]
    killed: bool

    @property
    def seconds(self) -> float:
        """Of all runs."""
        return self.runs[-1][1] if self.runs else 0.0

    @property
    def idle(self) -> dict[str, float]:
        """Seconds for each reason, over all slots."""
        return {reason: sum(slot.idle[reason] for slot in self.slots) for reason in REASONS}

    @property
    def utilisation(self) -> float:
        """Share of the time of all slots in which trials ran, lost ones too."""
        busy, idle = sum(slot.busy for slot in self.slots), sum(self.idle.values())
        return busy / (busy + idle) if busy + idle else 0.0


def timeline_of(history: History) -> Timeline | None:
    """The timeline of a study; None where its journal does not say when trials ended, as an older one."""
    results = [result for result in history.results.values() if result.ended]
    runs = [run for run in history.runs if run.get("began")]
    if not results or len(runs) < len(history.runs):
        return None
    begins = [float(run["began"]) for run in runs]
    events: list[list[tuple[float, float, str, str, str]]] = [[] for _ in runs]  # end, seconds, slot, key, kind
    for result in results:
        kind = "failed" if result.failed else "done"
        events[_run_of(result.ended, begins)].append(
            (result.ended, result.seconds, str(result.place), result.key, kind)
        )
    deaths: dict[int, list[tuple[float, str, str]]] = defaultdict(list)
    # The journal has no time for a trial that failed with its worker: the last death at it is its end.
    failed = {key for key, result in history.results.items() if result.failed and not result.ended}
    failed_at = {death.key: death.time for death in history.deaths if death.key in failed}
    for death in history.deaths:
        number = _run_of(death.time, begins)
        deaths[number].append((death.time, str(death.place), death.cause))
        if death.key and death.seconds:
            kind = "failed" if death.time == failed_at.get(death.key) else "lost"
            events[number].append((death.time, death.seconds, str(death.place), death.key, kind))
    slots: dict[str, SlotTime] = {}
    spans: list[tuple[float, float]] = []
    killed, offset = False, 0.0
    for number, run in enumerate(runs):
        last = max((event[0] for event in events[number]), default=begins[number])
        end = begins[number] + float(run["seconds"]) if "seconds" in run else last
        killed |= "seconds" not in run
        end = max(end, last)
        spans.append((offset, offset + end - begins[number]))
        shift = offset - begins[number]
        for place in run["slots"]:
            slots.setdefault(place, SlotTime(place))
        _lay(run["slots"], events[number], deaths[number], slots, shift, last + shift, spans[-1])
        offset = spans[-1][1]
    return Timeline(spans, list(slots.values()), killed)


def _run_of(time: float, begins: Sequence[float]) -> int:
    """The run in which something happened: the last that had begun."""
    return max((n for n, begin in enumerate(begins) if begin <= time), default=0)


def _lay(
    places: Sequence[str],
    events: Sequence[tuple[float, float, str, str, str]],
    deaths: Sequence[tuple[float, str, str]],
    slots: dict[str, SlotTime],
    shift: float,
    last: float,
    span: tuple[float, float],
) -> None:
    """Lay the bars of a run on its slots, and say why they were idle. last: when the last trial of all ended."""
    of_slot: dict[str, list[tuple[float, float, str, str, str]]] = defaultdict(list)
    for event in events:
        of_slot[event[2]].append(event)
    died: dict[str, list[float]] = defaultdict(list)
    for time, place, cause in deaths:
        slot = slots.setdefault(place, SlotTime(place))
        slot.deaths.append((time + shift, cause))
        died[place].append(time + shift)
    for place in dict.fromkeys([*places, *of_slot]):
        slot = slots.setdefault(place, SlotTime(place))
        free = span[0]
        reason = "start"
        for ended, seconds, _, key, kind in sorted(of_slot[place]):
            end = max(free, ended + shift)
            begin = min(max(free, end - seconds), end)
            if reason != "start" and any(free <= time <= begin for time in died[place]):
                reason = "restart"
            slot.idle[reason] += begin - free
            slot.bars.append(Bar(begin, end, key, kind))
            free, reason = end, "wait"
        if not of_slot[place]:
            last_here = max(span[0], min(last, span[1]))
            slot.idle["tail"] += last_here - free
            free = last_here
        elif last > free:
            slot.idle["tail"] += last - free
            free = last
        slot.idle["report"] += max(0.0, span[1] - free)
