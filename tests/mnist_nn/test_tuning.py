"""What the random search draws, and which set it takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mnist_nn.tuning import Ranges
from mpitune.figures.winner import least
from mpitune.trial import Rounds
from tests.helpers import ROOT
from tests.mnist_nn.small import FULL, TINY

INF, NAN = float("inf"), float("nan")


def asked(search: Rounds) -> list[dict[str, Any]]:
    """The parameter sets of the first round."""
    firsts = (trial for batch in next(search) for trial in batch if trial.segment.fold == 0)
    return [dict(trial.params) for trial in firsts]


def test_the_draws_stay_the_same_and_fill_their_ranges() -> None:
    """The page of small runs says what the ranges are."""
    second = asked(next(iter(replace(FULL, max_conv_layer=999, max_hidden_layer=1999).searches())))[1]
    assert second == {
        "bootstrap": 0, "tuning": 1, "n_conv_layer": 27, "kernel_size": 4, "n_hidden_layer": 434,
        "learning_rate": 0.00014822159030369612, "momentum": 0.029122412230617345,
    }  # fmt: skip
    sets = asked(next(iter(replace(FULL, n_tuning=200).searches())))
    assert {each["kernel_size"] for each in sets} == set(range(2, 9)), "none is larger than an image"
    page = (ROOT / "docs" / "small-runs.md").read_text()
    for low, high in Ranges():
        assert f"| {low:g} | {high:g}" in page


def test_parameters_depend_on_their_key_alone() -> None:
    first, second = (
        {trial.key: dict(trial.params) for search in experiment.searches() for batch in next(search) for trial in batch}
        for experiment in (TINY, replace(TINY, n_bootstrap=3, n_tuning=5))
    )
    assert all(second[key] == params for key, params in first.items())
    assert list(first)[:4] == ["b0/t0/f0", "b0/t0/f1", "b0/t0/f2", "b0/t1/f0"]


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ([[3, 3], [1, 2], [2, 2]], 1),
        ([[2, 2], [1, 3], [2, 2]], 0),
        ([[0, NAN], [5, 5]], 1),
        ([[0, INF], [5, 5]], 1),
        ([[NAN, INF], [INF, INF]], None),
    ],
)
def test_the_best_set_has_the_lowest_mean_loss_of_all_folds(losses: list[list[float]], best: int | None) -> None:
    assert least(np.array(losses, dtype=float)) == best
