"""What an experiment can show in report.html: a section holds panels, each of one kind below.

A panel holds plain arrays and texts; how it is drawn is the page's matter. All text is escaped there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Fact:
    """A result of the first screen.

    Attributes:
        name: its label.
        value: as people read it.
        note: its circumstances.
    """

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class HeatMap:
    """Mean error over a grid of two parameters; a click on a row, or its list, shows the folds of that row.

    Attributes:
        title, about: a name and an explanation.
        x, y: name and values of the parameters, ascending.
        folds: float (n_folds, n_y, n_x), NaN where there is no value.
        best: indices (y, x) of the best point.
        seconds: float (n_y, n_x).
        places: where each point ran, by row and column.
        percent: the values are fractions.
    """

    title: str
    about: str
    x: tuple[str, Sequence[float]]
    y: tuple[str, Sequence[float]]
    folds: np.ndarray
    best: tuple[int, int] | None
    seconds: np.ndarray
    places: Sequence[Sequence[str]]
    percent: bool = True


@dataclass(frozen=True)
class Lines:
    """Curves over one axis.

    Attributes:
        curves: name -> (x, y), both of one length.
        x, y: names of the axes.
        percent: y is a fraction.
        dots: (x, y) of points behind the curves.
        steps: a curve keeps each value until the next one, as the best value so far does.
        faint: names of curves that are drawn in grey.
    """

    title: str
    about: str
    x: str
    y: str
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    percent: bool = False
    dots: tuple[Sequence[float], Sequence[float]] = ((), ())
    steps: bool = False
    faint: Collection[str] = ()


@dataclass(frozen=True)
class Bars:
    """A bar for each name, with an interval where one is known: name -> (value, low, high).

    Attributes:
        marked: names in colour: all are dots then, on an axis that need not begin at 0.
    """

    title: str
    about: str
    bars: Mapping[str, tuple[float, float | None, float | None]]
    percent: bool = False
    marked: Collection[str] = ()


@dataclass(frozen=True)
class Drawing:
    """A finished picture.

    Attributes:
        svg: an SVG file, such as `mpitune.figures.plotting.svg_of` makes of a figure of matplotlib.
    """

    title: str
    about: str
    svg: bytes


@dataclass(frozen=True)
class Note:
    """A sentence, such as what is not in the journal and why."""

    text: str


Panel = HeatMap | Lines | Bars | Drawing | Note


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        facts: for the first screen, those of all sections in their order.
    """

    title: str
    panels: Sequence[Panel] = ()
    facts: Sequence[Fact] = field(default=())
