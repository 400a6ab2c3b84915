"""`Study.optimize` of Optuna on all devices: of any script by `python -m mpitune`, or `optimize` of this package."""

from mpitune.optuna.optimizing import optimize as optimize

__all__ = ["optimize"]
