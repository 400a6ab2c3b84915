"""A study that begins in the folder of another, or goes on: which results of before count in it."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpitune.earlier.code import changes, digests, told
from mpitune.errors import UsageError, named, or_typed, typed
from mpitune.options import RunOptions
from mpitune.settings import selecting
from mpitune.storage.history import History, differing_settings, read_journal, require_same_study
from mpitune.storage.journal import Journal, Settings
from mpitune.storage.records import UNREADABLE
from mpitune.trial import Outcome, Result, Trial

if TYPE_CHECKING:
    from mpitune.experiment import Experiment

log = logging.getLogger(__name__)

Runs = Sequence[Mapping[str, Any]]  # what starts of a study have noted


@dataclass(frozen=True)
class Earlier:
    """A study whose results another one may use: its results folder, and its content."""

    folder: Path
    history: History

    @property
    def settings(self) -> Mapping[str, Any]:
        """Those of its header."""
        return dict(self.history.header["settings"])


def earlier_studies(folder: Path, header: Mapping[str, Any]) -> list[Earlier]:
    """Those that the header of the study in `folder` names, the oldest first. Raises UsageError where one is gone."""
    studies = []
    for place in (folder / name for name in header.get("before", ())):
        if (history := None if place.is_symlink() else read_journal(place)) is None:
            raise UsageError(f"{place} holds no study, but {folder} uses its results: put it back there")
        studies.append(Earlier(place, history))
    return studies


def succeeds(experiment: Experiment, options: RunOptions, folder: Path, history: History, settings: Settings) -> bool:
    """For `Journal`: whether this study comes after the one there, and uses its results. False for the same study.

    Raises:
        UsageError: adapt is asked for, but no result could count; or it would be a way out, which the message names.
    """
    before = history.header["settings"]
    differing = differing_settings(settings, before)
    fixed = [name for name in differing if name not in selecting(experiment)]
    if not differing or (fixed and not options.adapt):
        return False
    if fixed or not options.adapt:
        first = (fixed or differing)[0]
        anew = f"give another results folder{or_typed('restart', then=' to set the old study aside')}"
        use = or_typed("adapt", then=" to use its results in this one")
        fix = f"results depend on it, so none can be used: {anew}" if fixed else f"{anew}{use}"
        require_same_study(folder, {first: before.get(first)}, {first: settings.get(first)}, fix=fix)
    studies = [*earlier_studies(folder, history.header), Earlier(folder, history)]
    runs = [run for study in studies for run in study.history.runs]
    code = digests(experiment.called())
    _require_called(options, runs, code)
    changed = [
        name for name in changes(_code_of([study.history for study in studies]), code) if name not in options.changed
    ]
    if changed:
        raise UsageError(
            f"{named(changed)} changed since the known results were made: if they still count, say "
            f"{typed('changed', changed)}; if not, give another results folder{or_typed('restart')}"
        )
    experiment.matching(studies)
    return True


def code_note(experiment: Experiment, options: RunOptions, history: History, earlier: Runs) -> dict[str, object]:
    """Digests of the code that known results stand for, and what has changed since, which a line says.

    Both are in the note of each start, as the header cannot change. `earlier`: the starts of earlier studies. Raises
    UsageError for names that none has.
    """
    digests_now, before = digests(experiment.called()), _code_of([history])
    _require_called(options, [*earlier, *history.runs], digests_now)
    changed = changes(before, digests_now) if history.results else []
    open_ = [name for name in changed if name not in options.changed]
    if not open_:
        return {"code": {name: digest or before.get(name, "") for name, digest in digests_now.items()}}
    option = typed("changed", open_)
    log.error(
        "%s changed since the known results (%d) were made; these are kept. If they %s, begin anew with another "
        "results folder%s", named(told(before, digests_now, name) for name in open_), len(history.results),
        f"still count, say {option}; if not" if option else "do not count any more", or_typed("restart"),
    )  # fmt: skip
    closed = {name: digests_now.get(name, "") for name in changed if name not in open_}
    return {"code": {name: digest for name, digest in {**before, **closed}.items() if digest}, "changed": open_}


def _require_called(options: RunOptions, runs: Runs, digests_now: Mapping[str, str]) -> None:
    """Raise UsageError for a name in `changed` that the study never had."""
    names = sorted({name for run in runs for name in run.get("code") or ()}.union(digests_now))
    if unknown := [name for name in options.changed if name not in names]:
        raise UsageError(f"{typed('changed', unknown)}: the study calls no such function, but {named(names)}")


def _code_of(studies: Sequence[History]) -> dict[str, str]:
    """Digests of the code that results of these stand for; "mixed" of what the last start had changed, and used."""
    *_, run = [{"code": {}}, *(run for study in studies for run in study.runs if run.get("code"))]
    ended = max((result.ended for study in studies for result in study.results.values()), default=0.0)
    return {**run["code"], **{name: "mixed" for name in run.get("changed", ()) if ended > run.get("began", 0.0)}}


class KnownBefore:
    """The results of earlier studies, by the question that they answer; those that are used are written down here."""

    def __init__(self, journal: Journal, folder: Path, experiment: Experiment):
        self._journal = journal
        self._studies = earlier_studies(folder, journal.history.header)
        self._matching = experiment.matching(self._studies)
        self._fresh: list[tuple[Trial, Result]] = []
        self.runs: Runs = [run for study in self._studies for run in study.history.runs]  # of all earlier studies

    @cached_property
    def _index(self) -> dict[Hashable, tuple[Earlier, str]]:
        """The results by their questions; of equal ones that of the newest study. A finished study needs none."""
        index: dict[Hashable, tuple[Earlier, str]] = {}
        n_others = 0
        for study in reversed(self._studies):
            trials, results = study.history.trials, study.history.results
            for key in sorted(key for key, result in results.items() if not result.failed):
                try:
                    answered = self._matching.answered(Outcome(trials[key], results[key]), study)
                except UNREADABLE as error:  # of a journal that another program wrote
                    if isinstance(error, UsageError):
                        raise
                    what = f"trials that do not belong to a study of this kind ({error})"
                    raise UsageError(f"{study.folder} has {what}: use the version that wrote it") from error
                n_others += answered is None
                if answered is not None:
                    index.setdefault(answered, (study, key))
        log.info("%d of %d results of before count for trials that ask for the same", len(index), len(index) + n_others)
        return index

    def find(self, trial: Trial) -> Result | None:
        """The result that a trial has by an earlier study, None without one. `write` makes it durable."""
        index = self._index
        entry = next((index[q] for q in self._matching.questions(trial) if q in index), None) if index else None
        if entry is None:
            return None
        study, key = entry
        result = self._matching.taken(Outcome(trial, replace(study.history.results[key], key=trial.key)), study, key)
        self._fresh.append((trial, result))
        return result

    def write(self) -> None:
        """Write down what was found. Raises StorageError."""
        if self._fresh:
            fresh, self._fresh = self._fresh, []
            self._journal.append(fresh)
