"""Successive halving: its ladder, and that it is the search without it, only shorter."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mnist_nn.experiment import Bagging
from mnist_nn.keys import EPOCH_LIMIT
from mnist_nn.tuning import leading, rungs
from mpitune import studies
from mpitune.experiment import WorkerContext, per_trial
from mpitune.trial import Evaluation, Outcome, Trial
from tests.helpers import reported
from tests.mnist_nn.small import FULL

HALVED = replace(FULL, halving=3)


@pytest.mark.parametrize(
    ("n_sets", "epochs", "eta", "ladder"),
    [
        (9, 20, 3, [(9, 1), (3, 20)]),
        (20, 20, 3, [(20, 1), (7, 3), (3, 20)]),
        (100, 8, 2, [(100, 1), (50, 2), (25, 4), (13, 8)]),
        (3, 20, 3, [(3, 20)]),
        (5, 1, 2, [(5, 1)]),
    ],
)
def test_the_ladder(n_sets: int, epochs: int, eta: int, ladder: list[tuple[int, int]]) -> None:
    assert rungs(n_sets, epochs, eta) == ladder


def test_the_leading_sets_are_in_their_own_order_and_have_losses() -> None:
    inf, nan = float("inf"), float("nan")
    losses = np.array([[3, 3], [nan, 0], [2, 2], [inf, 0], [2, 2], [1, 1]])
    assert leading(losses, 2) == [2, 5] and leading(losses, 1) == [5]
    assert leading(losses, 9) == [0, 2, 4, 5] and leading(losses[[1, 3]], 2) == []


def run(experiment: Bagging, evaluate: Callable[[Trial], Evaluation]) -> list[Outcome]:
    return studies.evaluate(experiment, objective=per_trial(evaluate))


def test_the_last_rung_is_the_cross_validation_without_halving() -> None:
    objective = FULL.objective(WorkerContext("cpu", FULL.data()))
    known: dict[str, Evaluation] = {}

    def evaluate(trial: Trial) -> Evaluation:
        (known[trial.key],) = objective((trial,))
        return known[trial.key]

    halved = run(HALVED, evaluate)
    asked = {trial.key: trial for search in FULL.searches() for batch in next(search) for trial in batch}
    n_sets: dict[tuple[int, Any], set[Any]] = {}
    for trial, result in halved:
        if EPOCH_LIMIT in trial.params:
            assert result.value("epochs") == 1
        elif "fold" in trial.params:
            assert asked[trial.key] == trial
            assert known[trial.key].value("epochs") > 1
        if "fold" in trial.params:
            rung = (int(trial.params["bootstrap"]), trial.params.get(EPOCH_LIMIT))
            n_sets.setdefault(rung, set()).add(trial.params["tuning"])
    assert {rung: len(sets) for rung, sets in n_sets.items()} == {(0, 1): 9, (1, 1): 9, (0, None): 3, (1, None): 3}
    for bootstrap in range(2):
        first = [r.value("loss") for t, r in halved if t.key.startswith(f"b{bootstrap}/") and t.key.endswith("/e1")]
        assert n_sets[bootstrap, None] == set(leading(np.array(first).reshape(9, 2), 3))


def test_what_has_ended_by_itself_is_not_trained_again() -> None:
    """Of 8 sets with eta 2 the better half has more epochs each time, unless it stopped before its limit."""
    asked = []

    def evaluate(trial: Trial) -> Evaluation:
        asked.append(trial.key)
        if "fold" not in trial.params:
            return Evaluation(trial.key, {"train_error": 0.0, "test_error": 0.0, "epochs": 1.0})
        ended = trial.params["tuning"] == 0 or (trial.params["tuning"] == 1 and trial.params["fold"] == 0)
        epochs = min(int(trial.params.get(EPOCH_LIMIT, 99)), 1 if ended else 99)
        return Evaluation(trial.key, {"loss": float(trial.params["tuning"]), "epochs": float(epochs)})

    run(replace(HALVED, n_bootstrap=1, n_tuning=8, epochs=100, halving=2), evaluate)
    assert sum(key.endswith("/e1") for key in asked) == 16
    assert sorted(key for key in asked if key.endswith("/e2")) == [f"b0/t{t}/f{f}/e2" for t in range(4) for f in (0, 1)]
    # The first set ended at epoch 1 of 2, and so did a fold of the second.
    assert sorted(key for key in asked if key.count("/") == 2) == ["b0/t1/f1"]
    assert asked[-1] == "b0/refit"


def test_a_study_in_which_all_fail_on_the_first_rung_is_reported(tmp_path: Path) -> None:
    outcomes = run(HALVED, lambda trial: Evaluation(trial.key, error="it was killed"))
    assert len(outcomes) == 2 * 9 * 2 and all(trial.key.endswith("/e1") for trial, _ in outcomes)
    reported(HALVED, outcomes, HALVED.data(), tmp_path)
    assert (tmp_path / "results.csv").read_text().count("no parameter set") == 2
