"""Strategies of a search, one file a family; `strategy="tpe"` is short for one of them with its defaults."""

from common.strategies.base import Strategy
from common.strategies.from_optuna import Optuna, OptunaPruner
from common.strategies.halving import ASHA, Halving, Hyperband, MedianStopping
from common.strategies.population import PopulationBased
from common.strategies.racing import Racing
from common.strategies.samplers import Grid, Halton, Random, Sobol

__all__ = [
    "ASHA",
    "Grid",
    "Halton",
    "Halving",
    "Hyperband",
    "MedianStopping",
    "Optuna",
    "OptunaPruner",
    "PopulationBased",
    "Racing",
    "Random",
    "Sobol",
    "Strategy",
]
