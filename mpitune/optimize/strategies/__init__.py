"""Strategies of a search, one file a family; `strategy="tpe"` is short for one of them with its defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from mpitune.errors import UsageError
from mpitune.optimize.strategies.base import Strategy
from mpitune.optimize.strategies.from_optuna import Optuna
from mpitune.optimize.strategies.halving import ASHA, Halving, Hyperband, Staged
from mpitune.optimize.strategies.plain import Grid, Random, Sobol
from mpitune.optimize.strategies.population import PopulationBased

__all__ = [
    "ASHA", "Grid", "Halving", "Hyperband", "Optuna", "PopulationBased", "Random",
    "Sobol", "Strategy",
]  # fmt: skip

BY_NAME: dict[str, Callable[[], Strategy]] = {
    "grid": Grid,
    "random": Random,
    "sobol": Sobol,
    "tpe": partial(Optuna, "TPESampler"),
    "gp": partial(Optuna, "GPSampler"),
    "cmaes": partial(Optuna, "CmaEsSampler"),
    "nsga2": partial(Optuna, "NSGAIISampler"),
}


def strategy_of(what: Any) -> Strategy:
    """The strategy that a user names. Raises UsageError."""
    if isinstance(what, Staged):
        return replace(what, sampler=strategy_of(what.sampler))
    if isinstance(what, Strategy):
        return what
    if isinstance(what, str) and what in BY_NAME:
        return BY_NAME[what]()
    if hasattr(what, "sample_relative"):
        return Optuna(what)
    name = what.__name__ if isinstance(what, type) else str(what)
    if (kind := next((kind for kind in __all__ if kind.lower() == name.lower()), None)) is not None:
        raise UsageError(f"strategy={name}: give one with its arguments, such as mpitune.strategies.{kind}(...)")
    known = ", ".join(BY_NAME)
    made = "one of mpitune.strategies, such as ASHA(max_steps=100), or a sampler of Optuna"
    raise UsageError(f"strategy={what!r}: give {known}, {made}")
