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
    begins = [float(run["began"]) for run in history.runs]
    bars: dict[tuple[int, str], list[Bar]] = defaultdict(list)  # in Unix time, by run and slot
    deaths: dict[tuple[int, str], list[tuple[float, str]]] = defaultdict(list)

    def add(ended: float, seconds: float, place: str, key: str, kind: str) -> None:
        bars[_run_of(ended, begins), place].append(Bar(ended - seconds, ended, key, kind))

    for result in history.results.values():
        of_before = history.header.get("before") and result.ended < begins[0]  # by slots of another study, perhaps
        if result.ended and not of_before:
            add(result.ended, result.seconds, str(result.place), result.key, "failed" if result.failed else "done")
    # The journal has no time for a trial that failed with its worker: the last death at it is its end.
    last_deaths = {death.key: death.time for death in history.deaths}
    for death in history.deaths:
        place, found = "/".join(map(str, death.place)), history.results.get(death.key)
        deaths[_run_of(death.time, begins), place].append((death.time, death.cause))
        if death.key:
            is_end = found and found.failed and not found.ended and death.time == last_deaths[death.key]
            add(death.time, death.seconds, place, death.key, "failed" if is_end else "lost")
    slots: dict[str, SlotTime] = {}
    spans: list[tuple[float, float]] = []
    for number, (run, begin) in enumerate(zip(history.runs, begins, strict=True)):
        places = dict.fromkeys([*run.get("slots", ()), *(place for n, place in [*bars, *deaths] if n == number)])
        last = max((bar.end for place in places for bar in bars[number, place]), default=begin)
        end, offset = max(begin + float(run.get("seconds", 0.0)), last), spans[-1][1] if spans else 0.0
        spans.append((offset, offset + end - begin))
        for place in places:
            slot = slots.setdefault(place, SlotTime(place))
            died = [time for time, _ in deaths[number, place]]
            slot.deaths += [(time + offset - begin, cause) for time, cause in deaths[number, place]]
            _lay(slot, bars[number, place], died, (begin, last, end), offset - begin)
    return Timeline(begins, spans, list(slots.values()), killed=any("seconds" not in run for run in history.runs))


def _lay(
    slot: SlotTime, bars: Sequence[Bar], died: Sequence[float], span: tuple[float, float, float], shift: float
) -> None:
    """Lay bars of a run on a slot, and say why it was idle. span: begin of the run, end of its last trial, its end."""
    free, last, end = span
    reason = "start"
    for bar in sorted(bars, key=lambda bar: bar.end):
        ends = max(free, bar.end)
        begins = min(max(free, bar.begin), ends)
        if reason != "start" and any(free <= time <= begins for time in died):
            reason = "restart"
        slot.idle[reason] += begins - free
        slot.bars.append(Bar(begins + shift, ends + shift, bar.key, bar.kind))
        free, reason = ends, "wait"
    slot.idle["tail"] += max(0.0, last - free)
    slot.idle["report"] += end - max(free, last)


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
