"""Searches of any objective: `search`, the trials that objectives get, and the study that it returns."""

from common.optimize.asktell import AskTell
from common.optimize.chain import Chain, Link
from common.optimize.commands import Command
from common.optimize.objectives import ObjectiveTrial
from common.optimize.search import search
from common.optimize.study import SearchStudy, TrialRecord

__all__ = ["AskTell", "Chain", "Command", "Link", "ObjectiveTrial", "SearchStudy", "TrialRecord", "search"]
