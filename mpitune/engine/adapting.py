"""A study of changed settings, and the results of earlier ones that still count in it."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mpitune.earlier.code import changes, digests
from mpitune.errors import UsageError, named, or_typed, typed
from mpitune.experiment import Experiment
from mpitune.options import RunOptions
from mpitune.settings import selecting
from mpitune.storage.earlier import Earlier, earlier_studies
from mpitune.storage.history import History, differing_settings, require_same_study
from mpitune.storage.journal import Journal, Settings
from mpitune.storage.records import UNREADABLE
from mpitune.trial import Outcome, Result, Trial

log = logging.getLogger(__name__)

USE = " to use its results in this one"


def succession(experiment: Experiment, options: RunOptions, folder: Path, history: History, mine: Settings) -> bool:
    """For `Journal`: whether this study comes after the one there, and uses its results. False for the same study.

    Raises:
        UsageError: adapt is asked for, but no result could count; or it would be a way out, which the message names.
    """
    theirs = history.header["settings"]
    differing = differing_settings(mine, theirs)
    fixed = [name for name in differing if name not in selecting(experiment)]
    if not differing or (fixed and not options.adapt):
        return False
    if fixed or not options.adapt:
        first = fixed[0] if fixed else differing[0]
        anew = f"give another results folder{or_typed('restart', then=' to set the old study aside')}"
        fix = f"results depend on it, so none can be used: {anew}" if fixed else f"{anew}{or_typed('adapt', then=USE)}"
        require_same_study(folder, {first: theirs.get(first)}, {first: mine.get(first)}, fix=fix)
    earlier = earlier_studies(folder, history.header)
    runs = [run for some in (*(study.history for study in earlier), history) for run in some.runs]
    code = digests(experiment.called())
    require_called(options, runs, code)
    changed = [name for name in changes(code_of(runs), code) if name not in options.changed]
    if changed:
        raise UsageError(
            f"{named(changed)} changed since the known results were made: if they still count, say "
            f"{typed('changed', changed)}; if not, give another results folder{or_typed('restart')}"
        )
    experiment.matching([*earlier, Earlier(folder, history)])
    return True


def require_called(options: RunOptions, runs: Sequence[Mapping[str, Any]], mine: Mapping[str, str]) -> None:
    """Raise UsageError for a name in `changed` that the study never had."""
    names = sorted({name for run in runs for name in run.get("code") or ()}.union(mine))
    if unknown := [name for name in options.changed if name not in names]:
        raise UsageError(f"{typed('changed', unknown)}: the study calls no such function, but {named(names)}")


def code_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Digests of the code that the results of these starts stand for."""
    return next((run["code"] for run in reversed(runs) if run.get("code")), {})


class KnownBefore:
    """The results of earlier studies, by the question that they answer; those that are used are written down here."""

    def __init__(self, journal: Journal, folder: Path, experiment: Experiment):
        self._journal = journal
        self._studies = earlier_studies(folder, journal.history.header)
        self._matching = experiment.matching(self._studies)
        self._fresh: list[tuple[Trial, Result]] = []

    @property
    def runs(self) -> list[dict[str, Any]]:
        """The starts of all earlier studies."""
        return [run for study in self._studies for run in study.history.runs]

    @cached_property
    def _index(self) -> dict[Hashable, tuple[Earlier, str]]:
        """The results by their questions; of equal ones that of the newest study. A finished study needs none."""
        index: dict[Hashable, tuple[Earlier, str]] = {}
        n_others = 0
        for study in reversed(self._studies):
            history = study.history
            for key in sorted(history.results):
                if (result := history.results[key]).failed:
                    continue
                answered = self._answered(Outcome(history.trials[key], result), study)
                n_others += answered is None
                if answered is not None:
                    index.setdefault(answered, (study, key))
        log.info("%d of %d results of before count for trials that ask for the same", len(index), len(index) + n_others)
        return index

    def _answered(self, outcome: Outcome, study: Earlier) -> Hashable:
        try:
            return self._matching.answered(outcome, study)
        except UsageError:
            raise
        except UNREADABLE as error:  # of a journal that another program wrote
            raise UsageError(
                f"{study.folder} has trials that do not belong to a study of this kind ({error}): use the version "
                "that wrote it"
            ) from error

    def find(self, trial: Trial) -> Result | None:
        """The result that a trial has by an earlier study, None without one. `write` makes it durable."""
        index = self._index
        found = next((index[q] for q in self._matching.questions(trial) if q in index), None) if index else None
        if found is None:
            return None
        study, key = found
        result = replace(study.history.results[key], key=trial.key)
        self._matching.taken(Outcome(trial, result), study, key)
        self._fresh.append((trial, result))
        return result

    def write(self) -> None:
        """Write down what was found. Raises StorageError."""
        if self._fresh:
            fresh, self._fresh = self._fresh, []
            self._journal.append(fresh)
