"""Which point a grid search chooses, and what it says of how sure that is."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.images import standardised
from mnist_svm.experiment import SvmGrid
from mnist_svm.points import TuningGrid, best_point
from mpitune.errors import Exit, UsageError
from mpitune.figures.statistics import cross_validated
from tests.helpers import evaluate, table, table_without_run

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


def test_nested_cross_validation_is_that_of_scikit_learn() -> None:
    """Every outer search chooses what GridSearchCV chooses without these images, and errs on them as often."""
    from sklearn.model_selection import GridSearchCV, KFold
    from sklearn.svm import SVC

    experiment = SvmGrid(3, dataset="digits", train_size=303, test_size=50, folds=3, outer_folds=4, solver="shared")
    outcomes = evaluate(experiment)
    assert len(outcomes) == experiment.n_trials() == 5 * (27 + 1)
    data = experiment.data()
    images, labels = standardised(data["train_images"], 16), data["train_labels"]
    points = {"C": experiment.penalties, "gamma": experiment.gammas}
    for number, (train, held_out) in enumerate(KFold(4).split(images)):
        peer = GridSearchCV(SVC(), points, cv=KFold(3)).fit(images[train], labels[train])
        (refit,) = (each for each in outcomes if each.trial.key == f"o{number}of4/refit")
        assert refit.trial.params == {**peer.best_params_, "outer": number, "outer_folds": 4}
        wrong = np.mean(peer.predict(images[held_out]) != labels[held_out])
        assert refit.result.value("error") == pytest.approx(wrong, abs=1 / len(held_out) + 1e-12)


@pytest.mark.slow
def test_a_finished_study_is_asked_for_more(program: Callable[..., Any], tmp_path: Path) -> None:
    """Nested folds and another rule are further trials: nothing that is known is evaluated again."""
    size = ("--train-size", "200", "--test-size", "150", "--gpu", "none", "--workers", "1")
    command = ("-m", "mnist_svm", "3", "--dataset", "digits", *size, "--results", tmp_path)
    assert program(*command).returncode == Exit.DONE
    plain = table_without_run(tmp_path / "results.csv")
    more = program(*command, "--outer-folds", "3", "--select", "1se", "--folds", "5")
    assert more.returncode == Exit.DONE, more.stderr
    assert table_without_run(tmp_path / "results.csv") == plain
    summary = json.loads((tmp_path / "best.json").read_text())
    rows = table(tmp_path / "nested.csv")
    errors = np.array([float(row["error"]) for row in rows])
    nested = summary["nested_cross_validation"]
    assert len(rows) == nested["outer_folds"] == 3 and nested["error"] == pytest.approx(errors.mean())
    assert nested["interval"] == pytest.approx(list(cross_validated(errors)))
    assert f"nested cross-validation:  {errors.mean():.2%} (95 % interval " in more.stdout
    assert summary["chosen_by"] == "1se" and "chosen by:                --select 1se" in more.stdout


def test_outer_folds_that_leave_too_little_are_refused() -> None:
    with pytest.raises(UsageError, match="--outer-folds 2 leaves too few of the 6 training images"):
        SvmGrid(2, dataset="digits", train_size=6, outer_folds=2).data()
    with pytest.raises(UsageError, match=r"outer fold 0 .* hold.*--train-size"):
        SvmGrid(2, dataset="digits", train_size=30, outer_folds=2).data()
