"""Static drawings of the panels of an experiment: maps, boxes, curves, bars and pictures."""

from __future__ import annotations

import math

import numpy as np
from markupsafe import Markup

from mpitune.panels import Bars, HeatMap, Lines, Picture, Pictures
from mpitune.report.svg import WIDTH, Drawing, Plot, label, shade, words

CELLS_WRITTEN = 13  # per side of a heat map: numbers in a finer one could not be read
MOST_CELLS = 64


def heat_map(panel: HeatMap) -> Markup:
    """The mean over folds in colour; the best point is framed, points with a failed fold are hatched by their lack."""
    means = panel.folds.mean(axis=0)
    keep_y, keep_x = (_thinned(n, best) for n, best in zip(means.shape, panel.best or (0, 0), strict=True))
    shown = means[np.ix_(keep_y, keep_x)]
    size = min(30.0, (WIDTH - 110) / len(keep_x)), min(26.0, 420 / len(keep_y))
    width, height = size
    left, top = 78.0, 22.0
    best = "" if panel.best is None else f"; the best is {words(float(means[panel.best]), panel.percent)}"
    drawing = Drawing(
        top + height * len(keep_y) + 58,
        f"{panel.title}: {len(panel.y[1])} values of {panel.y[0]} by {len(panel.x[1])} of {panel.x[0]}{best}",
    )
    scale = Scale(shown)
    written = max(shown.shape) <= CELLS_WRITTEN and width >= 28
    for row, g in enumerate(keep_y):
        y = top + height * (len(keep_y) - 1 - row)
        for column, c in enumerate(keep_x):
            value, x = float(means[g, c]), left + width * column
            tip = (
                f"{panel.x[0]} {words(panel.x[1][c])}, {panel.y[0]} {words(panel.y[1][g])}: "
                f"{words(value, panel.percent)}; folds "
                + ", ".join(words(float(one), panel.percent) for one in panel.folds[:, g, c])
                + f"; {words(float(panel.seconds[g, c]))} s at {panel.places[g][c] or 'no place'}"
            )
            known = not math.isnan(value)
            drawing.rect(
                x, y, width - 0.5, height - 0.5, css="cell" if known else "lack", tip=tip, fill=scale.colour(value)
            )
            if written and known:
                dark = scale.share(value) > 0.55
                text = f"{100 * value:#.3g}" if panel.percent else f"{value:.3g}"
                drawing.text(x + width / 2, y + height / 2 + 3.5, text, "on-dark" if dark else "on-bright", "middle")
            if panel.best == (g, c):
                drawing.rect(x, y, width - 0.5, height - 0.5, css="frame")
        if row % max(1, -(-len(keep_y) // 14)) == 0:
            drawing.text(left - 6, y + height / 2 + 4, words(panel.y[1][g]), "tick", "end")
    for column, c in enumerate(keep_x):
        if column % max(1, -(-len(keep_x) * 44 // int(width * len(keep_x)))) == 0:
            at = left + width * (column + 0.5), top + height * len(keep_y) + 15
            drawing.text(*at, words(panel.x[1][c]), "tick", "middle")
    drawing.text(left + width * len(keep_x) / 2, top + height * len(keep_y) + 34, panel.x[0], "axis", "middle")
    drawing.text(4, 12, panel.y[0], "axis")
    if not math.isnan(scale.low):
        _legend(drawing, scale, panel.percent, top + height * len(keep_y) + 42)
    return drawing.markup()


def _legend(drawing: Drawing, scale: Scale, percent: bool, y: float) -> None:
    for n in range(40):
        drawing.rect(78 + 3 * n, y, 3, 8, css="cell", fill=shade(1 - n / 39))
    drawing.text(72, y + 8, words(scale.low, percent), "tick", "end")
    drawing.text(204, y + 8, words(scale.high, percent), "tick")


class Scale:
    """Colours of values, on a logarithmic scale where all are above 0: the least is bright."""

    def __init__(self, values: np.ndarray):
        finite = values[np.isfinite(values)]
        self.low, self.high = (float(finite.min()), float(finite.max())) if len(finite) else (math.nan, math.nan)
        self._log = self.low > 0

    def share(self, value: float) -> float:
        """0 for the least value to 1 for the greatest."""
        if not math.isfinite(value) or self.high == self.low:
            return 0.0 if value <= self.low else 1.0
        low, high, value = (math.log(one) if self._log else one for one in (self.low, self.high, value))
        return (value - low) / (high - low)

    def colour(self, value: float) -> str:
        """For a cell; "" where there is no value."""
        return "" if math.isnan(value) else shade(1 - self.share(value))


def boxes(panel: HeatMap) -> Markup:
    """The folds of the best row: a dot for each, a box for the middle half."""
    if panel.best is None:
        return Markup("")
    row, column = panel.best
    folds = panel.folds[:, row]
    finite = folds[np.isfinite(folds)]
    x = np.array(panel.x[1], float)
    log_x, log_y = bool((x > 0).all()), bool((finite > 0).all())
    places = np.arange(len(x))
    plot = Plot(
        f"The errors of each fold against {panel.x[0]} for the best {panel.y[0]}, {words(panel.y[1][row])}",
        _padded(x, log_x),
        (float(finite.min()), float(finite.max())),
        (f"{panel.x[0]}, at {panel.y[0]} = {words(panel.y[1][row])}", "error of a fold"),
        logs=(log_x, log_y),
        percent=(False, panel.percent),
    )
    width = min(18.0, 0.6 * (WIDTH - 80) / len(x))
    for n in places:
        here = folds[:, n][np.isfinite(folds[:, n])]
        if not len(here):
            continue
        css = "best" if n == column else "one"
        lower, median, upper = (plot.at(x[n], float(q))[1] for q in np.percentile(here, (25, 50, 75)))
        at = plot.at(x[n], float(here[0]))[0]
        plot.rect(at - width / 2, upper, width, lower - upper, css=f"box {css}")
        plot.line([(at - width / 2, median), (at + width / 2, median)], f"line {css}")
        for value in here:
            tip = f"{panel.x[0]} {words(x[n])}: {words(float(value), panel.percent)}"
            plot.dot(at, plot.at(x[n], float(value))[1], css, radius=2, tip=tip)
    return plot.markup()


def lines(panel: Lines) -> Markup:
    """Curves with their names beside them."""
    x = np.concatenate([np.asarray(x, float) for x, _ in panel.curves.values()])
    y = np.concatenate([np.asarray(y, float) for _, y in panel.curves.values()])
    x, y = x[np.isfinite(x)], y[np.isfinite(y)]
    if not len(x) or not len(y):
        return Markup("")
    span = (0.0, 1.0) if panel.diagonal else (min(0.0, float(y.min())), float(y.max()))
    plot = Plot(
        f"{panel.title}: {', '.join(panel.curves)}",
        (0.0, 1.0) if panel.diagonal else (float(x.min()), float(x.max())),
        span,
        (panel.x, panel.y),
        percent=(panel.percent and panel.diagonal, panel.percent),
        whole=bool((x == np.round(x)).all()),
    )
    if panel.diagonal:
        plot.line([plot.at(0, 0), plot.at(1, 1)], "grid")
    many = len(panel.curves) > 8
    for n, (xs, ys) in enumerate(panel.curves.values()):
        plot.curve(list(xs), list(ys), "faint" if many else f"c{n}")
    drawn = plot.markup()
    if len(panel.curves) == 1 or many:
        return drawn
    names = Markup("").join(
        Markup('<span class="key c{}">{}</span>').format(n, label(name)) for n, name in enumerate(panel.curves)
    )
    return drawn + Markup('<p class="keys">{}</p>').format(names)


def bars(panel: Bars) -> Markup:
    """A bar for each name, with its interval as a line."""
    values = [one for value, low, high in panel.bars.values() for one in (value, low, high) if one is not None]
    most = max([value for value in values if math.isfinite(value)] + [1e-12])
    drawing = Drawing(
        24 * len(panel.bars) + 8,
        f"{panel.title}: " + ", ".join(f"{name} {words(bar[0], panel.percent)}" for name, bar in panel.bars.items()),
        480,
    )
    left, room = 140.0, 480 - 140 - 66
    for n, (name, (value, low, high)) in enumerate(panel.bars.items()):
        y = 24 * n + 4
        drawing.text(left - 8, y + 14, label(name, 20), "tick", "end")
        length = room * max(0.0, min(value, most)) / most if math.isfinite(value) else room
        drawing.rect(left, y + 2, length, 16, css="bar", tip=f"{name}: {words(value, panel.percent)}")
        reach = length
        if low is not None and high is not None:
            ends = [left + room * max(0.0, min(one, most)) / most for one in (low, high)]
            drawing.line([(ends[0], y + 10), (ends[1], y + 10)], "whisker")
            reach = max(length, ends[1] - left)
        drawing.text(left + reach + 6, y + 14, words(value, panel.percent), "tick")
    return drawing.markup()


def pictures(panel: Pictures) -> Markup:
    """Each image with a small box of certainty for each class."""
    return Markup('<div class="sheet">{}</div>').format(Markup("").join(map(_picture, panel.pictures)))


def _picture(one: Picture) -> Markup:
    n_classes = one.certainty.shape[1]
    drawing = Drawing(96, f"{one.caption}; certainty of the networks for each class", 300)
    drawing.image(2, 4, 72, 72, one.image)
    step = (300 - 96) / n_classes

    def at(share: float) -> float:
        return 74 - 66 * share

    drawing.line([(92, at(0)), (298, at(0))], "grid")
    drawing.line([(92, at(1)), (298, at(1))], "grid")
    for digit in range(n_classes):
        x = 94 + step * digit
        low, lower, median, upper, high = np.percentile(one.certainty[:, digit], (0, 25, 50, 75, 100))
        css = "right" if digit == one.label else ("wrong" if one.label is not None else "one")
        css = css if digit in (one.label, one.answer) else "rest"
        drawing.line([(x + step * 0.35, at(low)), (x + step * 0.35, at(high))], f"line thin {css}")
        tip = f"class {digit}: median {words(float(median), True)}"
        drawing.rect(x, at(upper), step * 0.7, at(lower) - at(upper), css=f"box {css}", tip=tip)
        drawing.line([(x, at(median)), (x + step * 0.7, at(median))], f"line {css}")
        drawing.text(x + step * 0.35, 90, str(digit), "tick" + (" strong" if digit == one.label else ""), "middle")
    return Markup("<figure>{}<figcaption>{}</figcaption></figure>").format(drawing.markup(), one.caption)


def _thinned(n: int, keep: int) -> list[int]:
    """At most MOST_CELLS indices of n, evenly, with `keep` among them."""
    step = -(-n // MOST_CELLS)
    return sorted({*range(0, n, step), keep}) if n else []


def _padded(x: np.ndarray, log: bool) -> tuple[float, float]:
    """Half a step of room on both sides."""
    if len(x) == 1:
        return (float(x[0]) / 2, float(x[0]) * 2) if log else (float(x[0]) - 1, float(x[0]) + 1)
    if log:
        step = (x[1] / x[0]) ** 0.5
        return float(x[0] / step), float(x[-1] * step)
    step = (x[1] - x[0]) / 2
    return float(x[0] - step), float(x[-1] + step)
