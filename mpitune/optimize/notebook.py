"""What a notebook shows of a search: its report, and how values became better."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpitune.optimize.search_study import TrialRecord


def html_of(report: str, objectives: Mapping[str, bool], whole: Sequence[TrialRecord], what: str = "trial") -> str:
    """A report, and a picture where there is one objective and a value.

    Args:
        report: lines of text.
        objectives: names, and whether more is better.
        whole: those that are complete.
        what: one of them is, in one word.
    """
    text = f'<pre style="white-space: pre-wrap">{html.escape(report)}</pre>'
    if not whole or len(objectives) != 1:
        return text
    return text + _history(what, *next(iter(objectives.items())), whole)


def _history(what: str, name: str, up: bool, whole: Sequence[TrialRecord]) -> str:
    """Each value, and the best so far, as an SVG picture."""
    from mpitune.figures import plotting

    numbers, values = zip(*sorted((row.number, row.values[name]) for row in whole), strict=True)
    figure, axes = plotting.subplots(size=(6.4, 2.4))
    axes.plot(numbers, values, ".", color=plotting.REST, label=what)
    axes.step(numbers, list(accumulate(values, max if up else min)), where="post", color=plotting.BEST, label="best")
    axes.set(xlabel=what, ylabel=name)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)
    content = base64.b64encode(plotting.svg_of(figure)).decode()
    return f'<img alt="the values of the {what}s, and the best so far" src="data:image/svg+xml;base64,{content}">'
