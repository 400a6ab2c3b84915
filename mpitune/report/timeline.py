"""When each slot worked and when it did not, and why: from the times at which trials ended and workers died.

    run begins             first trial                         last trial of the slot      of all slots    run ends
    |------- start ------|== trial ==|-- wait --|== trial ==x-- restart --|== trial ==|---- tail ----|-- report --|
                                                             a worker died

The runs of a study are laid end to end, without the time between them. Jobs that have joined it are laid as they were.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mpitune.storage.history import History

REASONS = {
    "start": "before its first trial: data, start of workers, compiling",
    "wait": "between trials: for results that the search needs, for messages, for files",
    "restart": "after a death, until the next trial",
    "tail": "after its last trial, while others still worked",
    "report": "after the last trial of all: tables and figures",
}


class Bar(NamedTuple):
    """What a slot did, in seconds since the study began.

    Attributes:
        key: of the trial.
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
        """Seconds in which trials ran, lost ones too."""
        return sum(bar.end - bar.begin for bar in self.bars)

    @property
    def seconds(self) -> float:
        """Busy or idle."""
        return self.busy + sum(self.idle.values())


class _Bar(NamedTuple):
    """A trial that ended, or was lost, in Unix time."""

    ended: float
    seconds: float
    place: str
    key: str
    kind: str


@dataclass(frozen=True)
class Timeline:
    """All slots over all runs.

    Attributes:
        begins: Unix time of each run's beginning.
        runs: (begin, end) of each in seconds since the study began, without what lay between.
        killed: whether the end of one of them is not known, so that its last result stands for it.
    """

    begins: list[float]
    runs: list[tuple[float, float]]
    slots: list[SlotTime]
    killed: bool

    @property
    def seconds(self) -> float:
        """Of all runs."""
        return max((end for _, end in self.runs), default=0.0)

    def running(self, time: float) -> float:
        """Seconds since the study began, without what lay between its runs, at a Unix time."""
        run = _run_of(time, self.begins)
        return self.runs[run][0] + max(0.0, time - self.begins[run])

    @property
    def idle(self) -> dict[str, float]:
        """Seconds for each reason, over all slots."""
        return {reason: sum(slot.idle[reason] for slot in self.slots) for reason in REASONS}

    @property
    def slot_seconds(self) -> float:
        """Of all slots together."""
        return sum(slot.seconds for slot in self.slots)

    @property
    def utilisation(self) -> float:
        """Share of the time of all slots in which trials ran, lost ones too."""
        return sum(slot.busy for slot in self.slots) / (self.slot_seconds or 1.0)


def timeline_of(history: History) -> Timeline | None:
    """The timeline of a study; None where its journal does not say when runs began and trials ended."""
    if history.jobs:
        return _of_jobs(history)
    has_ends = any(result.ended for result in history.results.values())
    return _of_runs(history) if has_ends and history.runs and all(run.get("began") for run in history.runs) else None


def _of_runs(history: History) -> Timeline:
    results, runs = [result for result in history.results.values() if result.ended], history.runs
    begins = [float(run["began"]) for run in runs]
    events: list[list[_Bar]] = [[] for _ in runs]
    for result in results:
        if history.header.get("before") and result.ended < begins[0]:
            continue  # of an earlier study, which may have had other slots
        kind = "done" if result.error is None else "failed"
        events[_run_of(result.ended, begins)].append(
            _Bar(result.ended, result.seconds, str(result.place), result.key, kind)
        )
    deaths: dict[int, list[tuple[float, str, str]]] = defaultdict(list)
    # The journal has no time for a trial that failed with its worker: the last death at it is its end.
    failed = {key for key, result in history.results.items() if result.error is not None and not result.ended}
    failed_at = {death.key: death.time for death in history.deaths if death.key in failed}
    for death in history.deaths:
        number, place = _run_of(death.time, begins), "/".join(map(str, death.place))
        deaths[number].append((death.time, place, death.cause))
        if death.key:
            kind = "failed" if death.time == failed_at.get(death.key) else "lost"
            events[number].append(_Bar(death.time, death.seconds, place, death.key, kind))
    slots: dict[str, SlotTime] = {}
    spans: list[tuple[float, float]] = []
    offset = 0.0
    for number, (run, begin) in enumerate(zip(runs, begins, strict=True)):
        last = max((event.ended for event in events[number]), default=begin)
        end = max(begin + float(run.get("seconds", 0.0)), last)
        spans.append((offset, offset + end - begin))
        for place in run.get("slots", ()):
            slots.setdefault(place, SlotTime(place))
        shift = offset - begin
        _lay(run.get("slots", ()), events[number], deaths[number], slots, shift, last + shift, spans[-1])
        offset = spans[-1][1]
    return Timeline(begins, spans, list(slots.values()), killed=any("seconds" not in run for run in runs))


def _of_jobs(history: History) -> Timeline | None:
    """The timelines of all jobs beside each other; each slot has the name of its job."""
    each = {name: timeline for name, job in history.jobs.items() if (timeline := timeline_of(job)) is not None}
    if not each or not all(run.get("began") for run in history.runs):
        return None
    first = min(timeline.begins[0] for timeline in each.values())
    slots = []
    for name, timeline in each.items():
        shift = timeline.begins[0] - first
        for slot in timeline.slots:
            bars = [bar._replace(begin=bar.begin + shift, end=bar.end + shift) for bar in slot.bars]
            deaths = [(time + shift, cause) for time, cause in slot.deaths]
            slots.append(SlotTime(f"{name}/{slot.place}" if name else slot.place, bars, deaths, slot.idle))
    begins = [float(run["began"]) for run in history.runs]
    lasts = {begin: begin + run[1] - run[0] for t in each.values() for begin, run in zip(t.begins, t.runs, strict=True)}
    runs = [(begin - first, lasts.get(begin, begin) - first) for begin in begins]
    return Timeline(begins, runs, slots, killed=any(timeline.killed for timeline in each.values()))


def _run_of(time: float, begins: Sequence[float]) -> int:
    """The run in which something happened: the last that had begun."""
    return max((n for n, begin in enumerate(begins) if begin <= time), default=0)


def _lay(
    places: Sequence[str],
    events: Sequence[_Bar],
    deaths: Sequence[tuple[float, str, str]],
    slots: dict[str, SlotTime],
    shift: float,
    last: float,
    span: tuple[float, float],
) -> None:
    """Lay the bars of a run on its slots, and say why they were idle. last: when the last trial of all ended."""
    of_slot: dict[str, list[_Bar]] = defaultdict(list)
    for event in events:
        of_slot[event.place].append(event)
    died: dict[str, list[float]] = defaultdict(list)
    for time, place, cause in deaths:
        slot = slots.setdefault(place, SlotTime(place))
        slot.deaths.append((time + shift, cause))
        died[place].append(time + shift)
    for place in dict.fromkeys([*places, *of_slot]):
        slot = slots.setdefault(place, SlotTime(place))
        free = span[0]
        reason = "start"
        for ended, seconds, _, key, kind in sorted(of_slot[place], key=lambda event: event.ended):
            end = max(free, ended + shift)
            begin = min(max(free, end - seconds), end)
            if reason != "start" and any(free <= time <= begin for time in died[place]):
                reason = "restart"
            slot.idle[reason] += begin - free
            slot.bars.append(Bar(begin, end, key, kind))
            free, reason = end, "wait"
        if last > free:
            slot.idle["tail"] += last - free
            free = last
        slot.idle["report"] += max(0.0, span[1] - free)
