"""Static drawings that every study has: the best value so far, the timeline, the importance of parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup

from mpitune.panels import Bars
from mpitune.report.importance import Importance
from mpitune.report.panels import bars
from mpitune.report.svg import WIDTH, Drawing, Plot, label, words
from mpitune.report.timeline import COMPILE, Timeline

SLOTS_DRAWN = 48  # more rows than this could not be read; the live drawing has them all
COLUMNS = 400  # pieces of time that bars are gathered in, where there are more of them


def history(
    points: Sequence[tuple[float, float]],
    every: Sequence[tuple[float, float]],
    axis: str,
    name: str,
    *,
    percent: bool = False,
) -> Markup:
    """The best value so far as steps, and other values as dots behind, those far off cut.

    Args:
        points: (x, best so far), ascending in x, at least one.
        every: (x, value) of all candidates; those that are not finite are not drawn.
        axis: what x is.
        name: the name of the value.
        percent: write values as percent.
    """
    values = [value for _, value in points]
    finite = sorted(value for _, value in every if math.isfinite(value))
    spread = finite[int(0.98 * (len(finite) - 1))] if finite else values[0]
    low, high = min(*values, *finite[:1], math.inf), max(max(values), spread)
    last = max([x for x, _ in every] + [points[-1][0]])
    log = low > 0 and high > 20 * low
    plot = Plot(
        f"The best {name} so far: from {words(values[0], percent)} to {words(values[-1], percent)}",
        (min(0.0, points[0][0]), last),
        (low, high),
        (axis, name),
        logs=(False, log),
        percent=(False, percent),
    )
    for x, value in every[:: -(-len(every) // 1500) or 1]:
        if math.isfinite(value):
            plot.dot(*plot.at(x, value), "rest", radius=1.6)
    steps = [plot.at(*points[0])]
    for (_, before), (x, value) in pairwise(points):
        steps += [plot.at(x, before), plot.at(x, value)]
    steps.append(plot.at(last, values[-1]))
    plot.line(steps, "line best")
    return plot.markup()


def timeline(time: Timeline) -> Markup:
    """A row for each slot: work in colour, failures and deaths marked, the pauses left empty."""
    slots = time.slots[:SLOTS_DRAWN]
    row, left, top = (18.0 if len(slots) <= 16 else 10.0), 150.0, 6.0
    height = top + row * len(slots) + 34
    drawing = Drawing(
        height,
        f"Timeline of {len(time.slots)} slots over {words(time.seconds)} s; they worked {time.utilisation:.0%} of it",
    )
    total = max(time.seconds, 1e-9)

    def at(seconds: float) -> float:
        return left + (WIDTH - left - 12) * seconds / total

    for n, slot in enumerate(slots):
        y = top + row * n
        drawing.rect(left, y + 1, WIDTH - left - 12, row - 2, css="idle")
        drawing.text(left - 6, y + row / 2 + 4, label(slot.place, 22), "tick", "end")
        for kind in ("done", "failed", "lost", COMPILE):
            before = "compiling before " if kind == COMPILE else ""
            spans = [(bar.begin, bar.end, before + bar.key) for bar in slot.bars if bar.kind == kind]
            for begin, end, tip in _gathered(spans, total):
                drawing.rect(at(begin), y + 1, at(end) - at(begin), row - 2, css=kind, tip=tip)
        for when, cause in slot.deaths[:100]:
            x, y0, y1 = at(when), y + 1, y + row - 1
            drawing.line([(x - 4, y0), (x + 4, y1)], "death")
            drawing.line([(x - 4, y1), (x + 4, y0)], "death")
            drawing.dot(x, y + row / 2, "ghost", radius=5, tip=f"a worker died: {cause[:300]}")
    for begin, _ in time.runs[1:]:
        drawing.line([(at(begin), top), (at(begin), top + row * len(slots))], "run")
    unit, seconds = unit_of(total)
    step = _round_step(total / seconds)
    for n in range(int(total / seconds / step) + 1):
        drawing.text(at(n * step * seconds), height - 18, f"{n * step:g}", "tick", "middle")
    drawing.text((left + WIDTH) / 2, height - 4, f"{unit} of running", "axis", "middle")
    return drawing.markup()


def unit_of(seconds: float) -> tuple[str, float]:
    """A unit in which so many seconds read well, and its seconds."""
    return ("seconds", 1.0) if seconds < 300 else ("minutes", 60.0) if seconds < 3 * 3600 else ("hours", 3600.0)


def importance(found: Importance) -> Markup:
    """A bar for each parameter."""
    return bars(
        Bars(
            "importance of the parameters",
            "",
            {name: (max(0.0, mean), mean - spread, mean + spread) for name, (mean, spread) in found.shares.items()},
        )
    )


def _round_step(units: float) -> float:
    return next(
        step for step in (0.1, 0.2, 0.5, *(a * 10.0**b for b in range(20) for a in (1, 2, 5))) if units / step <= 9
    )


def _gathered(spans: Sequence[tuple[float, float, str]], total: float) -> list[tuple[float, float, str]]:
    """Neighbours closer than a pixel or so become one, where there are many."""
    found: list[list[float]] = []
    tips: list[tuple[str, int]] = []
    near = total / COLUMNS / 4 if len(spans) > COLUMNS else 0.0
    for begin, end, key in sorted(spans):
        if near and found and begin - found[-1][1] < near and end - found[-1][0] < 40 * near:
            found[-1][1] = end
            tips[-1] = (tips[-1][0], tips[-1][1] + 1)
        else:
            found.append([begin, end])
            tips.append((key, 1))
    return [
        (
            begin,
            end,
            f"{key}: {words(end - begin)} s" if n == 1 else f"{n} trials from {key} on: {words(end - begin)} s",
        )
        for (begin, end), (key, n) in zip(found, tips, strict=True)
    ]
