"""Which point a grid search chooses, and what it says of how sure that is."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mnist_svm.points import TuningGrid, best_point
from mpitune.errors import Exit
from tests.helpers import table_without_run

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


def grid(rule: str) -> TuningGrid:
    return TuningGrid(np.array([1.0, 10, 100]), np.array([1e-3, 1e-2, 1e-1]), 3, rule=rule)


def test_a_rule_takes_the_simplest_of_those_that_are_as_good() -> None:
    """(1, 2) is best. (2, 0) is a little worse on each fold: within a standard error, but surely worse by pairs."""
    best, sure, unsure = [0.10, 0.20, 0.30], [0.11, 0.211, 0.31], [0.05, 0.26, 0.33]
    errors = errors_of((1, 2, best), (2, 0, sure), (0, 1, unsure))
    assert grid("best").chosen(errors) == (1, 2)
    assert grid("1se").chosen(errors) == (2, 0)
    assert grid("simplest").chosen(errors) == (0, 1)
    assert grid("1se").chosen(np.full((3, 3, 3), NAN)) is None


@pytest.mark.slow
def test_a_finished_study_is_asked_for_more(program: Callable[..., Any], tmp_path: Path) -> None:
    """Another rule asks for another refit: nothing that is known is evaluated again."""
    size = ("--train-size", "200", "--test-size", "150", "--gpu", "none", "--workers", "1")
    command = ("-m", "mnist_svm", "3", "--dataset", "digits", *size, "--results", tmp_path)
    assert program(*command).returncode == Exit.DONE
    plain = table_without_run(tmp_path / "results.csv")
    more = program(*command, "--select", "1se", "--folds", "5")
    assert more.returncode == Exit.DONE, more.stderr
    assert table_without_run(tmp_path / "results.csv") == plain
    summary = json.loads((tmp_path / "best.json").read_text())
    assert summary["chosen_by"] == "1se" and "chosen by:                --select 1se" in more.stdout
