"""The trials of a study, read from its journal alone: of a search, with what its stages say together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mpitune.errors import UsageError
from mpitune.storage.history import read_study, studies_in
from mpitune.storage.table import last_line, named_columns
from mpitune.trial import FAILED, Outcome, Result, state_of


@dataclass(frozen=True)
class TrialRecord:
    """A trial of a search with all that became of it.

    Attributes:
        number: From 0, in the order asked.
        params: By name, as the objective got them.
        values: By name; those after the last step.
        state: "complete", "infeasible" (complete, with a constraint above 0), "pruned" (stopped early) or "failed".
        steps: Values by step, where the objective says them.
        seconds: Its workers took for it.
        error: Why it failed, the last line of a traceback; "" if it did not.
        user_attrs: What its objective has said by `trial.set_user_attr`.
        constraints: What `constraints_func` of a sampler of Optuna has said of it.
    """

    number: int
    params: Mapping[str, Any]
    values: Mapping[str, float]
    state: str
    steps: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ""
    user_attrs: Mapping[str, Any] = field(default_factory=dict)
    constraints: Sequence[float] = ()


@dataclass(frozen=True)
class ExportedTrial(TrialRecord):
    """A trial with what became of it; of a search all segments of it together.

    Attributes:
        key: In the journal.
        fold: The part of the data that it is validated on, if it is a trial of that.
        last: The result of its last segment, which has the place, the time, the use of the machine, and arrays.
    """

    key: str = ""
    fold: int | None = None
    last: Result = Result("")

    @property
    def begun(self) -> float | None:
        """Unix time, as far as it is known: of a trial of several segments, had they run one after the other."""
        return self.last.ended - self.seconds if self.last.ended else None

    @property
    def ended(self) -> float | None:
        """Unix time, None where it is not known."""
        return self.last.ended or None

    @property
    def measured(self) -> dict[str, float]:
        """Its fold, its seconds, and what its last segment took of the machine, as far as they are known.

        The names begin with run/, so that no value of an objective has the name of one.
        """
        used = {"fold": self.fold, "seconds": self.seconds, "peak_bytes": self.last.peak_bytes}
        return {f"run/{name}": value for name, value in used.items() if value is not None}

    def row(self) -> dict[str, Any]:
        """All of it but steps and arrays, flat; names of parameters begin with param_, of values with value_."""
        place = self.last.place
        return {
            "key": self.key,
            "state": self.state,
            **named_columns(self.params, self.values),
            **({} if self.fold is None else {"fold": self.fold}),
            "seconds": self.seconds,
            "ended": self.ended,
            "peak_bytes": self.last.peak_bytes,
            "host": place.host,
            "rank": place.rank,
            "slot": place.slot,
            "device": place.device,
            "attempt": self.last.attempt,
            "error": self.error,
        }


@dataclass(frozen=True)
class ExportedStudy:
    """A study for other tools.

    Attributes:
        folder: Its results folder.
        header: What its journal begins with, such as the settings.
        trials: Of a search by their numbers, else in the order in which they are in the journal.
        began: When its first run did, such as "2026-11-28T07:30:00"; "" where the journal does not say.
    """

    folder: Path
    header: Mapping[str, Any]
    trials: Sequence[ExportedTrial]
    began: str = ""

    @property
    def name(self) -> str:
        """The same whenever it is asked for, and another one for a study that has begun anew in the same folder."""
        begun = f" {self.began[:19]}" if self.began else ""
        return f"{self.header['settings']['experiment']} {'/'.join(self.folder.resolve().parts[-2:])}{begun}"

    def rows(self) -> list[dict[str, Any]]:
        """A row for each trial, all with the same columns, parameters before values; None for missing values."""
        rows = [trial.row() for trial in self.trials]
        names = list(dict.fromkeys(name for row in rows for name in row))
        order = [n for start in ("param_", "value_") for n in names if n.startswith(start)]
        rest = [name for name in names if not name.startswith(("param_", "value_"))]
        columns = [*rest[:2], *order, *rest[2:]]
        return [{name: row.get(name) for name in columns} for row in rows]


def records(
    outcomes: Iterable[Outcome], params_of: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
) -> list[TrialRecord]:
    """The trials that the engine's outcomes are segments of. params_of: what the objective got for a point."""
    return [_record(number, segments, params_of) for number, segments in _segments(outcomes).items()]


def _segments(outcomes: Iterable[Outcome]) -> dict[int, list[Outcome]]:
    """The segments of each trial of a search, in their order. Raises UsageError for a trial of something else."""
    segments: dict[int, list[Outcome]] = {}
    for outcome in outcomes:
        if (number := outcome.trial.segment.number) is None:
            raise UsageError(f"trial {outcome.trial.key} belongs to no search: use the version that wrote the journal")
        segments.setdefault(number, []).append(outcome)
    for some in segments.values():
        some.sort(key=lambda outcome: outcome.trial.segment.stage or 0)
    return segments


def _record(
    number: int, segments: Sequence[Outcome], params_of: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> TrialRecord:
    result = segments[-1].result
    state = state_of(segments)
    results = [outcome.result for outcome in segments]
    steps = {step: values for each in results for step, values in each.ending.steps.items()}
    ends = [each for each in results if each.error is None]
    values = ends[-1].values if ends and state != FAILED else {}
    seconds = sum(each.seconds for each in results)
    attrs = {name: value for each in results for name, value in each.user_attrs.items()}
    error, params = last_line(result.error or result.ending.cause), params_of(dict(segments[-1].params))
    return TrialRecord(number, params, values, state, steps, seconds, error, attrs, result.ending.constraints)


def read(folder: Path) -> ExportedStudy:
    """The study in a results folder; all where a search has several there. Raises UsageError where there is none."""
    first, *others = every = [_read(study) for study in studies_in(folder)]
    if not others:
        return first
    within = {study.folder: f"{study.folder.relative_to(folder)}/".removeprefix("./") for study in every}
    trials = [replace(trial, key=within[study.folder] + trial.key) for study in every for trial in study.trials]
    return replace(first, folder=folder, trials=trials)


def _read(folder: Path) -> ExportedStudy:
    history = read_study(folder)
    if history.header.get("kind") == "search":
        every = [(number, f"t{number:06}", some) for number, some in sorted(_segments(history.outcomes).items())]
    else:
        every = [(number, one.trial.key, [one]) for number, one in enumerate(history.outcomes)]
    trials = [
        ExportedTrial(
            **vars(_record(number, some, dict)),
            key=key,
            fold=some[-1].trial.segment.fold,
            last=max((outcome.result for outcome in some), key=lambda result: (result.ended, result.key)),
        )
        for number, key, some in every
    ]
    began = str(history.runs[0].get("time", "")) if history.runs else ""
    return ExportedStudy(folder, history.header, trials, began)
