"""Searches of any objective: `mpitune.search`, the trials that objectives get, and the study that it returns.

`spaces` is what a search looks through, `strategies` how. The names below are loaded when they are first used, so that
neither needs the engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers, who cannot read the table below
    from mpitune.optimize.asktell import AskTell as AskTell
    from mpitune.optimize.commands import Command as Command
    from mpitune.optimize.objectives import ObjectiveTrial as ObjectiveTrial
    from mpitune.optimize.search_study import SearchStudy as SearchStudy
    from mpitune.optimize.search_study import TrialRecord as TrialRecord

_HOME = {
    "mpitune.optimize.asktell": ("AskTell",),
    "mpitune.optimize.commands": ("Command",),
    "mpitune.optimize.objectives": ("ObjectiveTrial",),
    "mpitune.optimize.search_study": ("SearchStudy", "TrialRecord"),
}

__all__ = [name for names in _HOME.values() for name in names]


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
