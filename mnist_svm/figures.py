"""Figures of the grid: one box plot per gamma, and a map of the mean error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.patches import Rectangle
from matplotlib.ticker import MultipleLocator

from mpitune.figures.plotting import BEST, COLOUR_MAP, GREY, INK, ONE, PALE, boxes, percent_axis, save, styled, subplots
from mpitune.figures.winner import least

MOST_WRITTEN_CELLS = 13  # per side of the map; the numbers of a finer one could not be read


def draw_figures(
    folder: Path, errors: np.ndarray, *, gammas: np.ndarray, penalties: np.ndarray, best: tuple[int, int] | None
) -> None:
    """heat_map in `folder`, and gamma_00, gamma_01, ... in `folder`/figures; each as SVG and PNG.

    All box plots share one scale, so that they can be leafed through. errors: float64 (folds, n_gamma, n_C), fractions,
    NaN where failed. best: indices of gamma and C, or None where all have failed.
    """
    limits = _limits(errors)
    width = max(2, len(str(len(gammas) - 1)))
    save(heat_map(errors.mean(axis=0), gammas, penalties=penalties, best=best), folder, "heat_map")
    for g, gamma in enumerate(gammas):
        is_best = best is not None and best[0] == g
        figure = box_plot(errors[:, g], gamma, penalties=penalties, limits=limits, best_gamma=is_best)
        save(figure, folder, f"figures/gamma_{g:0{width}}")


@styled()
def box_plot(
    errors: np.ndarray, gamma: float, *, penalties: np.ndarray, limits: tuple[float, float], best_gamma: bool
) -> Any:
    """Errors of the folds, (folds, n_C), against log10 C: all folds as dots, the middle half of them as a box.

    The C of the least mean is red; a cross at the top says that a fold of that C failed.
    """
    n = errors.shape[1]
    figure, axes = subplots(size=(max(5.8, min(9.0, 3.0 + 0.26 * n)), 4.0))
    low, high = limits
    positions, step = _exponents(penalties)
    means = errors.mean(axis=0)
    best = least(errors.T)
    colours = [BEST if c == best else ONE for c in range(n)]
    shown = [np.maximum(column[~np.isnan(column)], low) for column in errors.T]
    there = [c for c in range(n) if len(shown[c])]
    if there:
        boxes(axes, positions[there], [shown[c] for c in there], width=0.6 * step, colours=[colours[c] for c in there])
    for position, folds in zip(positions, shown, strict=True):
        if len(folds) < len(errors):
            axes.plot(position, 0.97, "x", color=GREY, markersize=6, transform=axes.get_xaxis_transform())
    axes.set_yscale("log")
    bottom, top = low / 1.15, min(high * 1.3, 1.2)  # room for the crosses
    axes.set_ylim(bottom, top)
    percent_axis(axes.yaxis, bottom, top, zero_at=low if (errors == 0).any() else None)
    axes.grid(False, axis="x")
    axes.set_xlim(positions[0] - 0.7 * step, positions[-1] + 0.7 * step)
    _label(axes.xaxis, positions)
    axes.set_xlabel("log₁₀ C")
    axes.set_ylabel("validation error of a fold")
    axes.set_title(f"gamma = {gamma:.3g}")
    if best is not None:
        scope = "best of the grid" if best_gamma else "best of this gamma"
        text = f"{scope}: {100 * means[best]:.2f} % at C = {penalties[best]:.4g}"
        axes.set_title(text, loc="right", color=BEST)
    return figure


@styled()
def heat_map(means: np.ndarray, gammas: np.ndarray, *, penalties: np.ndarray, best: tuple[int, int] | None) -> Any:
    """Mean error, (n_gamma, n_C), in colour; points with a failed fold are hatched, the best one is framed."""
    figure, axes = subplots(size=(7.0, 5.4))
    (x, width), (y, height) = _exponents(penalties), _exponents(gammas)
    low, high = _limits(means)
    norm = LogNorm(low, high)
    shown = np.ma.masked_invalid(np.maximum(means, low))
    coarse = max(means.shape) <= MOST_WRITTEN_CELLS
    axes.patch.set(facecolor=PALE, hatch="////", edgecolor=GREY)
    image = axes.pcolormesh(
        np.append(x - width / 2, x[-1] + width / 2),
        np.append(y - height / 2, y[-1] + height / 2),
        shown,
        norm=norm,
        cmap=COLOUR_MAP,
        edgecolors="white",
        linewidth=0.6 if coarse else 0.25,
    )
    if coarse:
        for g, c in np.argwhere(~np.isnan(means)):
            colour = "white" if norm(shown[g, c]) > 0.45 else INK
            axes.text(x[c], y[g], f"{100 * means[g, c]:#.3g}", ha="center", va="center", size=8, color=colour)
    title = "mean validation error"
    if best is not None:
        g, c = best
        corner = (x[c] - width / 2, y[g] - height / 2)
        axes.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=INK, linewidth=2, clip_on=False))
        title += f", least {100 * means[best]:.2f} % at C = {penalties[c]:.4g} and gamma = {gammas[g]:.3g}"
    axes.set_title(title)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("log₁₀ C")
    axes.set_ylabel("log₁₀ gamma")
    _label(axes.xaxis, x)
    _label(axes.yaxis, y)
    bar = figure.colorbar(image, ax=axes, pad=0.02)
    percent_axis(bar.ax.yaxis, low, high, zero_at=low if (means == 0).any() else None)
    bar.outline.set_visible(False)
    return figure


def _limits(errors: np.ndarray) -> tuple[float, float]:
    """Least and largest error on a logarithmic scale; an error of 0 is drawn at half the least other one."""
    positive = errors[errors > 0]
    if not len(positive):
        return 0.001, 1.0
    low = float(positive.min()) / (2 if (errors == 0).any() else 1)
    high = min(1.0, max(float(positive.max()), 1.5 * low))
    return min(low, high / 1.5), high


def _exponents(values: np.ndarray) -> tuple[np.ndarray, float]:
    """log10 of equally spaced powers, and their distance; 1 for a single one."""
    exponents = np.log10(values)
    return exponents, float(exponents[1] - exponents[0]) if len(exponents) > 1 else 1.0


def _label(axis: Any, exponents: np.ndarray) -> None:
    """Ticks at the exponents themselves when they are few, else at whole numbers."""
    if len(exponents) <= 7:
        axis.set_ticks(exponents, [f"{exponent:.3g}" for exponent in exponents])
    else:
        axis.set_major_locator(MultipleLocator(1))
