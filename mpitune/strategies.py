"""The strategies of a search, under a short name: `from mpitune.strategies import ASHA, Grid`."""

from mpitune.optimize.strategies import *  # noqa: F403
from mpitune.optimize.strategies import __all__ as __all__
