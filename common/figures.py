"""One quiet style for every figure, and files that do not change when the data does not.

Importing this imports matplotlib: do it inside functions that draw. Figures are made here rather than
by pyplot, so that none lives longer than its variable and no display is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from common.storage.files import written_whole

# Colours that stay apart for colour-blind readers (M. Okabe and K. Ito, "Color Universal Design", 2008).
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
INK, GREY, PALE = "#222222", "#8A8A8A", "#E4E4E4"
COLOUR_MAP = "viridis_r"

STYLE: dict[str, Any] = {
    "figure.constrained_layout.use": True,
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "svg.hashsalt": "figures",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 9,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": PALE,
    "grid.linewidth": 0.7,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
}
matplotlib.rcParams.update(STYLE)


def subplots(rows: int = 1, columns: int = 1, *, size: tuple[float, float] = (6.4, 4.0), **options: Any) -> Any:
    """(figure, axes) like pyplot's subplots; size is width and height in inches."""
    figure = Figure(figsize=size)
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, **options)


def save(figure: Figure, folder: Path, name: str) -> None:
    """Write `name`.svg and `name`.png into `folder`, each whole, without a date, and release the figure."""
    for kind, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
        with written_whole(folder / f"{name}.{kind}") as file:
            figure.savefig(file, format=kind, metadata=metadata)
    figure.clear()


def percent_axis(axis: Any, low: float, high: float, zero_at: float | None = None) -> None:
    """Ticks at 1, 2, 5, 10, ... percent (closer on a short axis) on a logarithmic scale of fractions from low to high.

    zero_at: where 0 is drawn, as a logarithm has no place for it; None when nothing is 0.
    """
    digits = (1, 2, 5) if high > 20 * low else (1, 1.5, 2, 3, 4, 5, 7)
    steps = [digit * 10.0**power for power in range(-8, 1) for digit in digits]
    ticks = {tick: f"{100 * tick:g} %" for tick in steps if low <= tick <= high}
    if zero_at is not None:
        ticks = {zero_at: "0 %"} | {tick: label for tick, label in ticks.items() if tick > 1.4 * zero_at}
    axis.set_major_locator(FixedLocator(list(ticks)))
    axis.set_major_formatter(FixedFormatter(list(ticks.values())))
    axis.set_minor_locator(NullLocator())
