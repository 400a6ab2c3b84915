"""Figures of the grid: every kind of grid can be drawn, and the same errors give the same files."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from mnist_svm.experiment import SvmGrid
from mnist_svm.figures import box_plot, draw_figures, heat_map
from mnist_svm.points import best_point
from mpitune.plotting import FIGURES_PER_HELPER, draw_all, save

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


def test_the_same_errors_give_the_same_files(tmp_path: Path) -> None:
    grid, errors = SvmGrid(3), GRIDS["usual"]
    for folder in ("one", "two"):
        save(
            heat_map(errors.mean(axis=0), grid.gammas, penalties=grid.penalties, best=(1, 1)), tmp_path / folder, "map"
        )
    for kind in ("svg", "png"):
        assert (tmp_path / "one" / f"map.{kind}").read_bytes() == (tmp_path / "two" / f"map.{kind}").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("forked", [True, False])
def test_many_figures_are_drawn_by_helpers_into_the_same_files(
    tmp_path: Path, forked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the failure of a figure that a helper draws, the first one, is heard of."""
    if forked:
        for name in {"mpi4py", "torch"} & sys.modules.keys():  # of other tests
            monkeypatch.delitem(sys.modules, name)
    else:
        monkeypatch.setitem(sys.modules, "mpi4py", ModuleType("mpi4py"))
    grid, errors = SvmGrid(3), GRIDS["usual"]
    means = [np.roll(errors.mean(axis=0), n) for n in range(FIGURES_PER_HELPER)]
    drawn = partial(heat_map, penalties=grid.penalties, best=(1, 1))
    figures = {f"map_{n}": partial(drawn, mean, grid.gammas) for n, mean in enumerate(means)}
    with pytest.raises(TypeError):
        draw_all(tmp_path / "all", {"map_of_nothing": partial(drawn, None, None), **figures})
    for name, make in figures.items():
        save(make(), tmp_path / "one", name)
        for kind in ("svg", "png"):
            one, other = (tmp_path / folder / f"{name}.{kind}" for folder in ("all", "one"))
            assert one.read_bytes() == other.read_bytes()


def test_the_layout_of_one_box_plot_is_that_of_all(tmp_path: Path) -> None:
    """The same files as where each has its own."""
    grid, errors = SvmGrid(3), GRIDS["usual"]
    draw_figures(tmp_path / "all", errors, gammas=grid.gammas, penalties=grid.penalties, best=(1, 1))
    limits = float(errors.min()), float(errors.max())
    save(
        box_plot(errors[:, 2], grid.gammas[2], penalties=grid.penalties, limits=limits, best_gamma=False),
        tmp_path,
        "own",
    )
    for kind in ("svg", "png"):
        drawn = tmp_path / "all" / "figures" / f"gamma_02.{kind}"
        assert drawn.read_bytes() == (tmp_path / f"own.{kind}").read_bytes()


def test_the_map_shows_means_and_hatches_what_failed() -> None:
    grid, errors = SvmGrid(3), GRIDS["one failed fold"]
    figure = heat_map(errors.mean(axis=0), grid.gammas, penalties=grid.penalties, best=(0, 0))
    (mesh,) = figure.axes[0].collections
    np.testing.assert_array_equal(mesh.get_array().mask, np.isnan(errors.mean(axis=0)))
    assert sorted(text.get_text() for text in figure.axes[0].texts) == ["30.0"] * 8


def test_every_fold_is_a_dot_of_its_error() -> None:
    grid, errors = SvmGrid(3), GRIDS["usual"]
    figure = box_plot(errors[:, 1], grid.gammas[1], penalties=grid.penalties, limits=(0.01, 0.9), best_gamma=False)
    dots = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    for c, line in enumerate(dots):
        np.testing.assert_array_equal(line.get_ydata(), errors[:, 1, c])
        np.testing.assert_allclose(line.get_xdata(), np.log10(grid.penalties[c]), atol=0.15 * 4.5 + 1e-9)
    assert len(dots) == 3
