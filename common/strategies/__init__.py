"""Strategies of a search, one file a family; `strategy="tpe"` is short for one of them with its defaults."""

from common.strategies.base import Strategy
from common.strategies.samplers import Grid, Halton, Random, Sobol

__all__ = ["Grid", "Halton", "Random", "Sobol", "Strategy"]
