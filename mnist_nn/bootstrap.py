"""Bagging: the bootstrap samples that networks learn from, and the answers of the networks together.

Source: L. Breiman, "Bagging predictors", Machine Learning 24 (1996).
"""

from __future__ import annotations

import numpy as np

from common.images import fold_slices


def bootstrap_sample(n: int, folds: int, seed: np.random.SeedSequence) -> tuple[np.ndarray, list[slice]]:
    """A bootstrap sample of n images whose folds have no image in common: int64 (n,) indices, each fold's place there.

    A permutation of the images is cut into folds, and each fold is drawn with replacement from its own
    images. Were the whole sample drawn before it is cut, copies of one image would lie on both sides of the
    cross-validation.
    """
    random = np.random.default_rng(seed)
    order = random.permutation(n)
    slices = fold_slices(n, folds)
    drawn = [random.choice(order[part], part.stop - part.start) for part in slices]
    return np.concatenate(drawn), slices


def majority_vote(probabilities: np.ndarray) -> np.ndarray:
    """int64 (n_images,): the class that most of (n_networks, n_images, n_classes) answer; of ties the lowest."""
    classes = np.arange(probabilities.shape[2])
    return (probabilities.argmax(axis=2)[..., None] == classes).sum(axis=0).argmax(axis=1)


def least_sure(probabilities: np.ndarray, n: int) -> np.ndarray:
    """int64 (at most n,): the images that an ensemble (n_networks, n_images, n_classes) is least sure of, these first.

    It is as sure of an image as the highest mean probability that its networks give to any one class.
    """
    return np.argsort(probabilities.mean(axis=0).max(axis=1), kind="stable")[:n]
