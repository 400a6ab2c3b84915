"""What a notebook shows of a search: its report, the best trials, and how values became better."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from mpitune.optimize.spaces.parameters import short

if TYPE_CHECKING:
    from mpitune.optimize.search_study import TrialRecord

ROWS = 5  # of the table


def html_of(report: str, objectives: Mapping[str, bool], ranked: Sequence[TrialRecord], what: str = "trial") -> str:
    """A report, a table, and a picture where there is one objective and a value.

    Args:
        report: lines of text.
        objectives: names, and whether more is better.
        ranked: the best first.
        what: a row is, in one word.
    """
    parts = f"<pre>{html.escape(report)}</pre>"
    if ranked:
        parts += _table([what, *objectives], list(objectives), ranked[:ROWS])
        parts += _history(what, *next(iter(objectives.items())), ranked) if len(objectives) == 1 else ""
    return parts


def _table(heads: Sequence[str], values: Sequence[str], best: Sequence[TrialRecord]) -> str:
    params = list(dict.fromkeys(name for row in best for name in row.params))
    text = _line("th", [*heads, *params])
    for row in best:
        given = [short(row.params[name]) if name in row.params else "" for name in params]
        text += _line("td", [str(row.number), *(f"{row.values[name]:.6g}" for name in values), *given])
    return f"<table>{text}</table>"


def _line(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _history(what: str, name: str, up: bool, ranked: Sequence[TrialRecord]) -> str:
    """Each value, and the best so far, as an SVG picture."""
    from mpitune.figures import plotting

    numbers, values = zip(*sorted((row.number, row.values[name]) for row in ranked), strict=True)
    figure, axes = plotting.subplots(size=(6.4, 2.4))
    axes.plot(numbers, values, ".", color=plotting.REST, label=what)
    axes.step(numbers, list(accumulate(values, max if up else min)), where="post", color=plotting.BEST, label="best")
    axes.set(xlabel=what, ylabel=name)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)
    content = base64.b64encode(plotting.svg_of(figure)).decode()
    return f'<img alt="the values of the {what}s, and the best so far" src="data:image/svg+xml;base64,{content}">'
