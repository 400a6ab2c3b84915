"""What a notebook shows of a study: its report, the best trials, and how values became better."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from mpitune.optimize.spaces.parameters import short

if TYPE_CHECKING:
    from mpitune.optimize.search_study import SearchStudy, TrialRecord

ROWS = 5  # of the table


def html_of(study: SearchStudy) -> str:
    """The parts as HTML; a picture where there is one objective and a value."""
    ranked = study.ranked()
    return f"<pre>{html.escape(study.report())}</pre>{_table(study, ranked[:ROWS])}{_history(study, ranked)}"


def _table(study: SearchStudy, complete: Sequence[TrialRecord]) -> str:
    params = list(dict.fromkeys(name for trial in complete for name in trial.params))
    rows = [["trial", *study.objectives, *params]]
    for trial in complete:
        values = [f"{trial.values[name]:.6g}" for name in study.objectives]
        given = [short(trial.params[name]) if name in trial.params else "" for name in params]
        rows.append([str(trial.number), *values, *given])
    cells = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>" if complete else ""


def _history(study: SearchStudy, complete: Sequence[TrialRecord]) -> str:
    """Each trial's value, and the best so far, as an SVG picture."""
    if len(study.objectives) != 1 or not complete:
        return ""
    from mpitune import plotting

    done = sorted(complete, key=lambda trial: trial.number)
    ((name, up),) = study.objectives.items()
    numbers, values = [trial.number for trial in done], [trial.values[name] for trial in done]
    figure, axes = plotting.subplots(size=(6.4, 2.4))
    axes.plot(numbers, values, ".", color=plotting.REST, label="trial")
    axes.step(numbers, list(accumulate(values, max if up else min)), where="post", color=plotting.BEST, label="best")
    axes.set(xlabel="trial", ylabel=name)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)
    content = base64.b64encode(plotting.svg_of(figure)).decode()
    return f'<img alt="the values of the trials, and the best so far" src="data:image/svg+xml;base64,{content}">'
