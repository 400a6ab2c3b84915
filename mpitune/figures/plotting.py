"""One quiet style for every figure, and files that do not change when the data does not.

Importing this imports matplotlib: do it inside functions that draw. Figures are made here rather than
by pyplot, so that none lives longer than its variable and no display is needed.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.style
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator
from numpy.typing import ArrayLike

from mpitune.storage.files import written_whole

# Colours that stay apart for colour-blind readers (M. Okabe and K. Ito, "Color Universal Design", 2008).
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
INK, GREY, PALE = "#222222", "#8A8A8A", "#E4E4E4"
# Their meaning in every figure, and in the report (report.css): any one, the best one, right, wrong, all the others.
ONE, BEST, RIGHT, WRONG, REST = BLUE, RED, GREEN, RED, GREY
COLOUR_MAP = "viridis_r"
DPI = 100
PNG_DPI = 2 * DPI  # for screens with two pixels where there was one

FEWEST_FOR_BOX = 5  # values of which a box says anything
STYLE: dict[str, Any] = {
    "figure.constrained_layout.use": True,
    "figure.dpi": DPI,
    "svg.hashsalt": "figures",
    "svg.fonttype": "none",  # text stays text, to be found, copied and read aloud
    "font.family": "sans-serif",
    "font.sans-serif": [
        "DejaVu Sans",
        "Verdana",
    ],  # the first comes with matplotlib; the other is as wide, for browsers
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 9,
    "axes.titley": 1.0,  # otherwise each drawing measures all tick labels, to find room for titles
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


@contextmanager
def styled() -> Iterator[None]:
    """What is drawn and saved in this context has the style, whatever matplotlib was told; that stays as it was."""
    with matplotlib.style.context(["default", STYLE]):
        yield


@styled()
def subplots(rows: int = 1, columns: int = 1, *, size: tuple[float, float] = (6.4, 4.0), **options: Any) -> Any:
    """(figure, axes) like pyplot's subplots; size is width and height in inches."""
    figure = Figure(figsize=size)
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, **options)


@styled()
def save(figure: Figure, folder: Path, name: str) -> None:
    """Write `name`.svg and `name`.png into `folder`, each whole, without a date. The figure is changed by it.

    The layout is computed once, for the SVG, and each file is drawn once; `Figure.savefig` would do both twice.
    """
    with written_whole(folder / f"{name}.svg") as file:
        file.write(svg_of(figure))
    figure.set_layout_engine("none")
    figure.set_dpi(PNG_DPI)
    with written_whole(folder / f"{name}.png") as file:
        FigureCanvasAgg(figure).print_png(file, metadata={"Software": None})


@styled()
def svg_of(figure: Figure) -> bytes:
    """The figure as an SVG file, as `save` writes it, for `mpitune.figures.panels.Drawing`."""
    content = io.BytesIO()
    FigureCanvasSVG(figure).print_svg(content, metadata={"Date": None})
    return content.getvalue()


def boxes(
    axes: Any,
    positions: ArrayLike,
    columns: Iterable[np.ndarray],
    *,
    width: float,
    colours: Sequence[str],
    points: bool = True,
) -> None:
    """A box plot of each column: the middle half as a box, the median, whiskers to the extremes, and its values.

    Fewer than `FEWEST` values have no box. All boxes are one artist, which takes a third of the time of `Axes.boxplot`.

    Args:
        axes: of matplotlib.
        positions: x of each box.
        columns: float (n,), n >= 1, what each box shows.
        width: of all boxes, in units of x.
        colours: of each box.
        points: whether values are drawn where there is a box.
    """
    of = list(zip(np.asarray(positions, float).tolist(), columns, colours, strict=True))
    for place, column, colour in of:
        if points or len(column) < FEWEST_FOR_BOX:
            beside = np.linspace(-0.3, 0.3, len(column)) * width if len(column) > 1 else 0.0
            axes.plot(place + beside, column, "o", markersize=2.8, color=colour, markeredgewidth=0, zorder=3)
    if not (of := [each for each in of if len(each[1]) >= FEWEST_FOR_BOX]):
        return
    x, colours = np.array([place for place, _, _ in of]), [colour for _, _, colour in of]
    low, lower, median, upper, high = np.array([np.percentile(column, (0, 25, 50, 75, 100)) for _, column, _ in of]).T
    left, right = x - width / 2, x + width / 2
    corners = np.stack([left, lower, left, upper, right, upper, right, lower], axis=1).reshape(-1, 4, 2)
    axes.add_collection(PolyCollection(list(corners), facecolors=colours, edgecolors="none", alpha=0.25))
    axes.vlines([*x, *x], [*low, *upper], [*lower, *high], colors=[*colours, *colours], linewidth=1)
    axes.hlines(median, left, right, colors=colours, linewidth=2)


def percent_axis(axis: Any, low: float, high: float, zero_at: float | None = None) -> None:
    """Ticks at 1, 2, 5, 10, ... percent (closer on a short axis) on a logarithmic scale of fractions from low to high.

    Args:
        axis: of matplotlib.
        low: the least value that is shown.
        high: the largest value that is shown.
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
