"""Strategies by their names."""

from __future__ import annotations

from typing import Any

from common.errors import UsageError
from common.strategies.base import Strategy
from common.strategies.samplers import Grid, Halton, Random, Sobol

NAMES: dict[str, Any] = {
    "grid": Grid,
    "random": Random,
    "sobol": Sobol,
    "halton": Halton,
}


def strategy_of(what: Any) -> Strategy:
    """The strategy that a user names. Raises UsageError."""
    if isinstance(what, Strategy):
        return what
    if isinstance(what, str) and what in NAMES:
        made: Strategy = NAMES[what]()
        return made
    raise UsageError(
        f"strategy={what!r}: give {', '.join(NAMES)}, a strategy of common.strategies or a sampler of Optuna"
    )
