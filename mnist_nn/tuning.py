"""Which parameter sets a bootstrap sample tries, and which of them is best."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from mpitune.trial import Parameter, seed_of

HYPERPARAMETERS = ("n_conv_layer", "kernel_size", "n_hidden_layer", "learning_rate", "momentum")


class Ranges(NamedTuple):
    """What HYPERPARAMETERS are drawn from, ends included: numbers evenly, rate and momentum by their logarithm."""

    n_conv_layer: tuple[int, int] = (1, 999)
    kernel_size: tuple[int, int] = (2, 10)
    n_hidden_layer: tuple[int, int] = (1, 1999)
    learning_rate: tuple[float, float] = (1e-5, 1e-1)
    momentum: tuple[float, float] = (1e-2, 1.0)


def drawn(ranges: Ranges, seed: int, key: str) -> Mapping[str, Parameter]:
    """HYPERPARAMETERS drawn at random; they depend on the seed of the study and the key of the set alone."""
    random = np.random.default_rng(seed_of(seed, key))
    params: dict[str, Parameter] = {}
    for name, (low, high) in ranges._asdict().items():
        if isinstance(low, int):
            params[name] = int(random.integers(low, high, endpoint=True))
        else:
            params[name] = float(10 ** random.uniform(math.log10(low), math.log10(high)))
    return params
