"""What a notebook shows of a study: its report, the best trials, and how values became better."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from mpitune.optimize.spaces.parameters import short

if TYPE_CHECKING:
    from mpitune.optimize.search_study import SearchStudy

ROWS = 5  # of the table


class Row(NamedTuple):
    """A trial with its values of the objectives, in their order."""

    number: int
    values: Sequence[float]
    params: Mapping[str, Any]


def html_of(study: SearchStudy) -> str:
    """A study as HTML."""
    rows = [Row(t.number, [t.values[name] for name in study.objectives], t.params) for t in study.ranked()]
    return page(study.report(), "trial", study.objectives, rows)


def page(report: str, what: str, objectives: Mapping[str, bool], ranked: Sequence[Row]) -> str:
    """The parts as HTML; a picture where there is one objective and a value.

    Args:
        report: lines of text.
        what: what a row is, in one word.
        objectives: names, and whether more is better.
        ranked: the best first.
    """
    parts = f"<pre>{html.escape(report)}</pre>"
    if ranked:
        parts += _table(what, list(objectives), ranked[:ROWS])
        parts += _history(what, *next(iter(objectives.items())), ranked) if len(objectives) == 1 else ""
    return parts


def _table(what: str, objectives: Sequence[str], best: Sequence[Row]) -> str:
    params = list(dict.fromkeys(name for row in best for name in row.params))
    lines = [[what, *objectives, *params]]
    for row in best:
        given = [short(row.params[name]) if name in row.params else "" for name in params]
        lines.append([str(row.number), *(f"{value:.6g}" for value in row.values), *given])
    cells = ["".join(f"<td>{html.escape(cell)}</td>" for cell in line) for line in lines]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in cells)}</table>"


def _history(what: str, name: str, up: bool, ranked: Sequence[Row]) -> str:
    """Each value, and the best so far, as an SVG picture."""
    from mpitune.figures import plotting

    done = sorted(ranked)
    numbers, values = [row.number for row in done], [row.values[0] for row in done]
    figure, axes = plotting.subplots(size=(6.4, 2.4))
    axes.plot(numbers, values, ".", color=plotting.REST, label=what)
    axes.step(numbers, list(accumulate(values, max if up else min)), where="post", color=plotting.BEST, label="best")
    axes.set(xlabel=what, ylabel=name)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)
    content = base64.b64encode(plotting.svg_of(figure)).decode()
    return f'<img alt="the values of the {what}s, and the best so far" src="data:image/svg+xml;base64,{content}">'
