"""Which point a grid search chooses, and what it says of how sure that is."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mnist_nn.experiment import Bagging
from mnist_svm.experiment import SvmGrid
from mnist_svm.points import best_point
from mpitune import load
from mpitune.settings import restored, result_settings

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
    done = program("-m", "mnist_svm", *arguments, "--results", tmp_path / "r")
    best, winner = json.loads((tmp_path / "r" / "best.json").read_text()), load(tmp_path / "r").winner_
    errors = np.load(tmp_path / "r" / "validation_error.npy").mean(axis=0)
    assert np.sum(np.isclose(errors, errors.min())) > 1  # so that there is a choice
    assert winner is not None and winner.params[winner.candidate] == {name: best[name] for name in ("C", "gamma")}
    assert (winner.corrected, len(winner.as_good)) == (best["corrected_error"], best["points_as_good"])
    assert f"corrected for the choice: {best['corrected_error']:.4%} (95 % interval" in done.stdout
    page = (tmp_path / "r" / "report.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert f"C = {best['C']:.4g}, gamma = {best['gamma']:.4g}" in page
