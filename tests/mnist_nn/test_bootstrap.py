import numpy as np
import pytest

from mnist_nn.bootstrap import bootstrap_sample, disagreement, least_sure, majority_vote, out_of_bag
from mpitune.trial import seed_of


@pytest.mark.parametrize(("n", "folds"), [(100, 5), (103, 5), (7, 7), (2, 2)])
def test_folds_share_no_image_and_cover_the_sample(n: int, folds: int) -> None:
    indices, parts = bootstrap_sample(n, folds, seed_of(0, "b0"))
    assert len(indices) == n and indices.min() >= 0 and indices.max() < n
    assert [index for part in parts for index in range(part.start, part.stop)] == list(range(n))
    owners = [set(indices[part].tolist()) for part in parts]
    assert sum(map(len, owners)) == len(set().union(*owners))


def test_images_are_drawn_with_replacement() -> None:
    distinct = len(np.unique(bootstrap_sample(10_000, 5, seed_of(0, "b0")).indices)) / 10_000
    assert distinct == pytest.approx(1 - np.exp(-1), abs=0.02)


def test_a_sample_depends_on_its_key_alone() -> None:
    first = bootstrap_sample(500, 5, seed_of(3, "b1")).indices
    bootstrap_sample(500, 5, seed_of(3, "b2"))
    assert np.array_equal(first, bootstrap_sample(500, 5, seed_of(3, "b1")).indices)
    assert not np.array_equal(first, bootstrap_sample(500, 5, seed_of(3, "b2")).indices)
    assert not np.array_equal(first, bootstrap_sample(500, 5, seed_of(4, "b1")).indices)


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


def test_out_of_the_bag_are_the_images_that_were_not_drawn() -> None:
    sample = bootstrap_sample(1000, 5, seed_of(0, "b0"))
    outside = out_of_bag(sample)
    assert set(outside) | set(sample.indices) == set(range(1000)) and not set(outside) & set(sample.indices)
    assert np.all(np.diff(outside) > 0)


def test_disagreement_counts_pairs() -> None:
    """Images 0 and 1: all three answer alike. Image 2: one of three pairs does. Image 3: none does."""
    answers = np.array([[0, 1, 0, 0], [0, 1, 0, 1], [0, 1, 1, 2]])  # (n_networks, n_images)
    assert disagreement(np.eye(3)[answers]) == pytest.approx((0 + 0 + 2 / 3 + 1) / 4)
