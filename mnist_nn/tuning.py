"""Which parameter sets a bootstrap sample tries, other than the random ones: points of a low-discrepancy sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from common.spaces import Float, Int, Space
from common.strategies.base import Points, Problem
from common.strategies.names import strategy_of
from common.trial import Parameter, seed_of

STRATEGIES = ("random", "sobol", "halton")


@lru_cache(maxsize=16)
def sets(
    strategy: str, seed: int, sample: str, n: int, most: tuple[int, int, int]
) -> Sequence[Mapping[str, Parameter]]:
    """The first n parameter sets of a bootstrap sample.

    Args:
        strategy: "sobol" or "halton".
        seed: of the study.
        sample: name of the bootstrap sample.
        n: how many.
        most: largest number of channels, side of the kernel, and number of hidden units.
    """
    channels, kernel, hidden = most
    space = Space(
        {
            "n_conv_layer": _up_to(1, channels),
            "kernel_size": _up_to(2, kernel),
            "n_hidden_layer": _up_to(1, hidden),
            "learning_rate": Float(1e-5, 1e-1, log=True),
            "momentum": Float(1e-2, 1.0, log=True),
        }
    )
    own_seed = int(seed_of(seed, sample).generate_state(1)[0])
    problem = Problem(space, {"loss": False}, own_seed, n)
    chosen = strategy_of(strategy)
    points = Points(chosen.draws(problem), problem)  # type: ignore[attr-defined]
    return [space.given(point) for _, point in points.rest()]


def _up_to(low: int, high: int) -> Int | int:
    return Int(low, high) if low < high else low
