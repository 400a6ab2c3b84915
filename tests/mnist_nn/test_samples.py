"""What networks learn from, what the random search draws, what an ensemble answers, and an image that is no digit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mnist_nn.bootstrap import bootstrap_sample, least_sure, majority_vote
from mnist_nn.images import no_digit
from mnist_nn.tuning import Ranges
from mpitune.figures.winner import least
from mpitune.trial import Rounds, seed_of
from tests.helpers import ROOT
from tests.mnist_nn.small import FULL, TINY


@pytest.mark.parametrize(("n", "folds"), [(100, 5), (103, 5), (7, 7), (2, 2)])
def test_folds_share_no_image_and_cover_the_sample(n: int, folds: int) -> None:
    indices, parts = bootstrap_sample(n, folds, seed_of(0, "b0"))
    assert len(indices) == n and indices.min() >= 0 and indices.max() < n
    assert [index for part in parts for index in range(part.start, part.stop)] == list(range(n))
    owners = [set(indices[part].tolist()) for part in parts]
    assert sum(map(len, owners)) == len(set().union(*owners))


def test_images_are_drawn_with_replacement() -> None:
    distinct = len(np.unique(bootstrap_sample(10_000, 5, seed_of(0, "b0"))[0])) / 10_000
    assert distinct == pytest.approx(1 - np.exp(-1), abs=0.02)


def test_a_sample_depends_on_its_key_alone() -> None:
    first = bootstrap_sample(500, 5, seed_of(3, "b1"))[0]
    bootstrap_sample(500, 5, seed_of(3, "b2"))
    assert np.array_equal(first, bootstrap_sample(500, 5, seed_of(3, "b1"))[0])
    assert not np.array_equal(first, bootstrap_sample(500, 5, seed_of(3, "b2"))[0])
    assert not np.array_equal(first, bootstrap_sample(500, 5, seed_of(4, "b1"))[0])


def test_the_majority_wins_and_the_lowest_class_wins_a_tie() -> None:
    answers = np.array([[2, 1], [0, 1], [2, 2], [0, 1]])  # (n_networks, n_images)
    assert majority_vote(np.eye(3)[answers]).tolist() == [0, 1]


def test_one_certain_network_is_outvoted() -> None:
    probabilities = np.array([[[1.0, 0.0]], [[0.4, 0.6]], [[0.4, 0.6]]])
    assert probabilities.mean(axis=0).argmax() == 0
    assert majority_vote(probabilities).tolist() == [1]


def test_networks_that_contradict_each_other_are_less_sure_than_networks_that_doubt() -> None:
    contradiction, doubt, agreement = [[1.0, 0.0], [0.0, 1.0]], [[0.6, 0.4], [0.6, 0.4]], [[1.0, 0.0], [1.0, 0.0]]
    probabilities = np.array([agreement, doubt, contradiction]).swapaxes(0, 1)
    assert least_sure(probabilities, 2).tolist() == [2, 1]
    assert least_sure(probabilities, 9).tolist() == [2, 1, 0]
    assert least_sure(probabilities, 0).tolist() == []


@pytest.mark.parametrize(("shape", "ink", "extent"), [((28, 28), 255, 20), ((8, 8), 16, 8), ((28, 18), 255, 18)])
def test_no_digit_is_as_large_and_as_bright_as_digits(shape: tuple[int, int], ink: int, extent: int) -> None:
    image = no_digit(shape, ink)
    assert image.shape == shape and image.dtype == np.uint8
    assert 0.8 * ink <= image.max() <= ink
    rows, columns = np.nonzero(image > 0.2 * ink)
    assert abs(np.ptp(rows) + 1 - extent) <= 1 and abs(np.ptp(columns) + 1 - extent) <= 1


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
