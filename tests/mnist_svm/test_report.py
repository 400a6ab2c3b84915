"""Which point a grid search chooses, and what figures and report.html show of it."""

from __future__ import annotations

import json
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mnist_nn.experiment import Bagging
from mnist_svm.experiment import SvmGrid
from mnist_svm.figures import _limits, box_plot, draw_figures, heat_map
from mnist_svm.summary import best_point
from mpitune import load
from mpitune.figures.panels import HeatMap, Note
from mpitune.settings import restored, result_settings
from mpitune.trial import Outcome
from tests.helpers import evaluate, history_of

NAN = float("nan")


def errors_of(*points: tuple[int, int, list[float]], folds: int = 3, n: int = 3) -> np.ndarray:
    errors = np.full((folds, n, n), 0.9)
    for g, c, values in points:
        errors[:, g, c] = values
    return errors


def test_of_equal_points_the_smaller_penalty_then_the_smaller_gamma_wins() -> None:
    assert best_point(errors_of((0, 2, [0.1] * 3), (2, 1, [0.1] * 3))) == (2, 1)
    assert best_point(errors_of((2, 1, [0.1] * 3), (1, 1, [0.1] * 3))) == (1, 1)


def test_the_order_of_the_folds_decides_no_tie() -> None:
    values = [0.1, 0.2, 0.3]  # whose sum depends on the order, in the last bit
    for order in permutations(values):
        assert best_point(errors_of((1, 0, values), (0, 1, list(order)))) == (1, 0)
        assert best_point(errors_of((1, 0, list(order)), (0, 1, values))) == (1, 0)


def test_a_point_with_a_failed_fold_never_wins() -> None:
    assert best_point(errors_of((0, 0, [NAN, 0, 0]), (2, 2, [0.5] * 3))) == (2, 2)
    assert best_point(np.full((3, 2, 2), NAN)) is None
    assert best_point(np.zeros((5, 1, 1))) == (0, 0)


def test_reports_know_the_program_by_the_settings_in_its_journal() -> None:
    for program in (SvmGrid(n_tuning=7, dataset="digits", folds=3), Bagging(n_bootstrap=2, n_tuning=3, seed=4)):
        assert restored(type(program), {"experiment": "any", **result_settings(program)}) == program


@pytest.mark.slow
def test_of_equal_points_all_parts_name_the_same(program: Any, tmp_path: Path) -> None:
    arguments = ("7", "--gpu", "none", "--workers", "2", "--dataset", "digits", "--train-size", "400")
    program("-m", "mnist_svm", *arguments, "--results", tmp_path / "r")
    best, winner = json.loads((tmp_path / "r" / "best.json").read_text()), load(tmp_path / "r").winner_
    errors = np.load(tmp_path / "r" / "validation_error.npy").mean(axis=0)
    assert np.sum(np.isclose(errors, errors.min())) > 1  # so that there is a choice
    assert winner is not None and winner.params[winner.candidate] == {name: best[name] for name in ("C", "gamma")}
    page = (tmp_path / "r" / "report.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert f"C = {best['C']:.4g}, gamma = {best['gamma']:.4g}" in page


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


STUDY = SvmGrid(3, dataset="digits", train_size=120, test_size=50, folds=3)


@cache
def computed() -> list[Outcome]:
    return evaluate(STUDY)


def test_the_grid_and_the_test_error() -> None:
    (grid,) = STUDY.report_sections(history_of(computed()), None)
    (heat_map,) = grid.panels
    assert isinstance(heat_map, HeatMap) and heat_map.folds.shape == (3, 3, 3) and np.isfinite(heat_map.folds).all()
    means = heat_map.folds.mean(axis=0)
    assert heat_map.best is not None and means[heat_map.best] == means.min()
    assert heat_map.seconds.min() > 0
    refit = next(result for trial, result in computed() if trial.segment.fold is None)
    assert {fact.name: fact.value for fact in grid.facts}["test error"] == f"{refit.values['test_error']:.2%}"
    n_wrong = int(np.sum(refit.arrays["predictions"] != STUDY.data()["test_labels"]))
    assert n_wrong == round(50 * refit.values["test_error"])


def test_of_a_study_that_has_just_begun_the_rest_of_the_grid_is_empty() -> None:
    folds = [outcome for outcome in computed() if outcome.trial.segment.fold is not None]
    for known, n_missing in ((folds[:5], 22), ([], 27)):
        (section,) = STUDY.report_sections(history_of(known), STUDY.data())
        heat_map, note = section.panels
        assert isinstance(heat_map, HeatMap) and int(np.isnan(heat_map.folds).sum()) == n_missing
        assert isinstance(note, Note) and note.text.startswith(f"{n_missing} of 27 fits")
        assert not any(fact.name == "test error" for fact in section.facts)
