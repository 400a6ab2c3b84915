"""`fmin` of hyperopt on all devices: of any script by `python -m mpitune`, or `fmin` of this package."""

from mpitune.hyperopt.minimizing import fmin as fmin

__all__ = ["fmin"]
