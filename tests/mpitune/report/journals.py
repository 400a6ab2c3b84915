"""Journals for tests of the report, written by the journal's own writer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from mpitune.figures.panels import Bars, Drawing, Fact, HeatMap, Lines, Note, Section
from mpitune.report.candidates import Goal, ReportedStudy, read_candidates
from mpitune.storage.history import History, read_study
from mpitune.storage.journal import Journal
from mpitune.trial import WHOLE, Place, Result, Segment, Trial

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>\"'&{{7*7}}${7*7}"
BEGAN = 1_700_000_000.0
SLOTS = [Place("node1", 0, 0, "gpu0"), Place("node1", 0, 1, "gpu1"), Place("node2", 1, 0, "gpu0")]


def header(**settings: Any) -> dict[str, Any]:
    kind = "search" if "objectives" in settings else "experiment"
    return {"kind": kind, "settings": {"experiment": "toy", **settings}}


def trial_line(
    key: str, params: dict[str, Any], values: dict[str, float], *, begin: float, end: float, slot: int = 0, **more: Any
) -> tuple[Trial, Result]:
    """A trial that a slot had from `begin` to `end`, in seconds since BEGAN."""
    more = {"seconds": end - begin, "ended": BEGAN + end, "place": SLOTS[slot], **more}
    return Trial(key, params, more.pop("segment", WHOLE)), Result(key, values, **more)


def write(
    folder: Path,
    outcomes: Sequence[tuple[Trial, Result]],
    *,
    heading: dict[str, Any] | None = None,
    seconds: float | None = 100.0,
    note: dict[str, Any] | None = None,
) -> History:
    """One run of a study; seconds: None where it was killed."""
    with closing(Journal(folder, heading or header())) as journal:
        run = {"command": ["toy.py", "3"], "versions": {"python": "3.11.7"}, "time": "2023-11-14T22:13:20+0000"}
        run |= {"began": BEGAN, "n_trials": len(outcomes), "slots": [str(place) for place in SLOTS]}
        journal.note(run={**run, **(note or {})})
        journal.append(outcomes)
        if seconds is not None:
            journal.note(end={"complete": True, "seconds": seconds})
    return read_study(folder)


def read(history: History, sections: Sequence[Section] = ()) -> ReportedStudy:
    """A journal as the report sees it."""
    goal = Goal("loss", False)
    return ReportedStudy(Path("results/toy"), history, goal, read_candidates(history, goal), sections=sections)


def hostile_section() -> Section:
    """A panel of each kind, whose texts are hostile."""
    axis, ones = (HOSTILE, [1, 2]), np.ones((1, 2, 2))
    grid = HeatMap(HOSTILE, HOSTILE, axis, axis, ones, (0, 0), ones[0], [[HOSTILE] * 2] * 2)
    lines = Lines(HOSTILE, HOSTILE, HOSTILE, HOSTILE, {HOSTILE: ([1], [1])})
    bars = Bars(HOSTILE, HOSTILE, {HOSTILE: (1.0, 0.5, 1.5)})
    panels = [grid, Drawing(HOSTILE, HOSTILE, HOSTILE.encode()), lines, bars, Note(HOSTILE)]
    return Section(HOSTILE, panels, [Fact(HOSTILE, HOSTILE, HOSTILE)])


def many(n: int, folder: Path) -> History:
    """A search of n random points of three parameters and a name, on three slots."""
    rng = np.random.default_rng(3)
    outcomes, free = [], [0.0] * len(SLOTS)
    rates, widths = 10 ** rng.uniform(-5, -1, n), rng.integers(8, 512, n)
    for i in range(n):
        slot = i % len(SLOTS)
        seconds = float(rng.exponential(2.0))
        loss = (math.log10(rates[i]) + 3) ** 2 / 4 + abs(widths[i] - 100) / 500 + 0.1 * rng.random()
        params = {
            "rate": float(rates[i]),
            "width": int(widths[i]),
            "drop": rng.random(),
            "act": ("relu", "gelu")[i % 2],
        }
        error = "Traceback\nRuntimeError: CUDA out of memory" if i % 997 == 996 else None
        values = {} if error else {"loss": float(loss), "accuracy": float(1 / (1 + loss))}
        more = {"begin": free[slot], "end": free[slot] + seconds, "slot": slot, "error": error, "segment": Segment(i)}
        outcomes.append(trial_line(f"t{i:06}", params, values, **more))
        free[slot] += seconds + 0.05
    return write(folder, outcomes, heading=header(objectives=["minimize loss"]), seconds=max(free) + 3)
