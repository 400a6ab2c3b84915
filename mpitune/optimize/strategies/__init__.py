"""Strategies of a search, one file a family; `strategy="tpe"` is short for one of them with its defaults."""

from mpitune.optimize.strategies.base import Strategy
from mpitune.optimize.strategies.from_optuna import Optuna, OptunaPruner
from mpitune.optimize.strategies.halving import ASHA, Halving, Hyperband
from mpitune.optimize.strategies.population import PopulationBased
from mpitune.optimize.strategies.racing import Racing
from mpitune.optimize.strategies.samplers import Grid, Halton, Random, Sobol

__all__ = [
    "ASHA",
    "Grid",
    "Halton",
    "Halving",
    "Hyperband",
    "Optuna",
    "OptunaPruner",
    "PopulationBased",
    "Racing",
    "Random",
    "Sobol",
    "Strategy",
]
