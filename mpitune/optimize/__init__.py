"""Searches of any objective: `mpitune.search`, the trials that objectives get, and the study that it returns.

`spaces` is what a search looks through, `strategies` how. The names below are loaded when they are first used, so that
neither needs the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpitune.lazy import front

if TYPE_CHECKING:  # for type checkers, who cannot read the table below
    from mpitune.optimize.commands import Command as Command
    from mpitune.optimize.objectives import ObjectiveTrial as ObjectiveTrial
    from mpitune.optimize.search_study import SearchStudy as SearchStudy
    from mpitune.optimize.search_study import TrialRecord as TrialRecord

__getattr__, __dir__, __all__ = front(
    __name__,
    {
        "commands": ("Command",),
        "objectives": ("ObjectiveTrial",),
        "search_study": ("SearchStudy", "TrialRecord"),
    },
)
