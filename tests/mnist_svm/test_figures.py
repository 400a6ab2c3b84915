"""Figures of the grid: every kind of grid can be drawn, and the same errors give the same files."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from mnist_svm.experiment import SvmGrid
from mnist_svm.figures import _limits, box_plot, draw_figures, heat_map
from mnist_svm.points import best_point
from mpitune.figures.plotting import FIGURES_PER_HELPER, draw_all, save
from tests.helpers import ROOT

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


def test_the_same_errors_give_the_same_files(tmp_path: Path) -> None:
    grid, errors = SvmGrid(3), GRIDS["usual"]
    for folder in ("one", "two"):
        save(
            heat_map(errors.mean(axis=0), grid.gammas, penalties=grid.penalties, best=(1, 1)), tmp_path / folder, "map"
        )
    for kind in ("svg", "png"):
        assert (tmp_path / "one" / f"map.{kind}").read_bytes() == (tmp_path / "two" / f"map.{kind}").read_bytes()


STOPPED = """
import os, signal, sys, threading
from functools import partial
from pathlib import Path
from mpitune.figures import plotting
from mpitune.processes.stops import Stopped, ending_at_stops

def drawn(n):
    figure, axes = plotting.subplots(6, 6)
    Path(sys.argv[1], f"begun-{n}").touch()
    return figure

os.sched_getaffinity = lambda pid: range(3)
try:
    with ending_at_stops():
        threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
        plotting.draw_all(Path(sys.argv[1]), {f"map_{n}": partial(drawn, n) for n in range(300)})
except Stopped:
    print("stopped")
"""


def test_a_signal_ends_the_drawing(tmp_path: Path) -> None:
    """Those that helpers are at, or will begin at once, are drawn; each of the others would take a quarter second."""
    done = subprocess.run([sys.executable, "-c", STOPPED, tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "stopped\n", done.stderr
    assert len(list(tmp_path.glob("begun-*"))) < 200 and not list(tmp_path.glob(".*"))


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
