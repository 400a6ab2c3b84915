"""Figures of the grid: every kind of grid can be drawn, and the same errors give the same files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mnist_svm.experiment import SvmGrid
from mnist_svm.figures import _limits, box_plot, draw_figures, heat_map
from mnist_svm.points import best_point

GENERATOR = np.random.default_rng(3)
GRIDS = {
    "usual": GENERATOR.uniform(0.01, 0.9, (5, 3, 3)),
    "one point": GENERATOR.uniform(0.01, 0.9, (5, 1, 1)),
    "no errors": np.zeros((5, 2, 2)),
    "all failed": np.full((5, 2, 2), np.nan),
    "equal errors": np.full((2, 2, 2), 0.9),
    "zeros among others": np.where(GENERATOR.random((5, 3, 3)) < 0.3, 0, 0.02),
    "one failed fold": np.where(np.arange(45).reshape(5, 3, 3) == 20, np.nan, 0.3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.filterwarnings("error::UserWarning", "error::RuntimeWarning")
def test_every_kind_of_grid_can_be_drawn(tmp_path: Path, name: str) -> None:
    errors = GRIDS[name]
    n = errors.shape[1]
    grid = SvmGrid(n)
    draw_figures(tmp_path, errors, gammas=grid.gammas, penalties=grid.penalties, best=best_point(errors))
    names = ["heat_map", *(f"figures/gamma_{g:02d}" for g in range(n))]
    files = {f"{name}.{kind}" for name in names for kind in ("svg", "png")}
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")} == files


def test_no_axis_goes_on_beyond_all_samples() -> None:
    """A grid of one point has one error, of nine tenths."""
    grid, errors = SvmGrid(1), np.full((5, 1, 1), 0.887)
    figure = heat_map(errors.mean(axis=0), grid.gammas, penalties=grid.penalties, best=(0, 0))
    assert max(axes.get_ylim()[1] for axes in figure.axes[1:]) <= 1 and _limits(errors)[1] == 1
    figure = box_plot(errors[:, 0], 1.0, penalties=grid.penalties, limits=_limits(errors), best_gamma=True)
    (labels,) = ([label.get_text() for label in axes.get_yticklabels()] for axes in figure.axes)
    assert "70 %" in labels and labels[-1] == "100 %"
