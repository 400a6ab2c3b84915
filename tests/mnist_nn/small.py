"""Searches of networks that take seconds, and the outcomes of one that several test files look at."""

from dataclasses import replace
from functools import cache

import pytest

from mnist_nn.experiment import Bagging
from mnist_nn.keys import refit_key
from mpitune.trial import Outcome
from tests.helpers import evaluate

FULL = Bagging(
    2, 9, dataset="digits", train_size=150, test_size=40, folds=2, max_conv_layer=4, max_hidden_layer=16, epochs=6
)
TINY = replace(FULL, n_tuning=2, folds=3, max_conv_layer=6, epochs=3, save_models=True)
REFIT = refit_key(0, with_weights=True)
of_tiny = pytest.mark.xdist_group("tiny networks")  # one process trains them for all files


@cache
def computed() -> list[Outcome]:
    """All trials of TINY; what a report shows of them, such as `plot`, changes none."""
    return evaluate(TINY)
