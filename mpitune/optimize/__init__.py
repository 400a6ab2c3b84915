"""Searches of any objective: `mpitune.search`, the trials that objectives get, and the study that it returns.

`spaces` is what a search looks through, `strategies` how. The names below are loaded when they are first used, so that
neither needs the engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpitune.optimize.asktell import AskTell
    from mpitune.optimize.chain import Chain, Link
    from mpitune.optimize.commands import Command
    from mpitune.optimize.objectives import ObjectiveTrial
    from mpitune.optimize.search_study import SearchStudy, TrialRecord

__all__ = ["AskTell", "Chain", "Command", "Link", "ObjectiveTrial", "SearchStudy", "TrialRecord"]

_HOME = {
    "mpitune.optimize.asktell": ("AskTell",),
    "mpitune.optimize.chain": ("Chain", "Link"),
    "mpitune.optimize.commands": ("Command",),
    "mpitune.optimize.objectives": ("ObjectiveTrial",),
    "mpitune.optimize.search_study": ("SearchStudy", "TrialRecord"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
