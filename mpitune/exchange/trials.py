"""The trials of a study as other tools want them, read from its journal alone."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from mpitune.errors import UsageError, named, needs, utf8
from mpitune.optimize.search_study import COMPLETE, FAILED, TrialRecord, records
from mpitune.optimize.strategies.base import number_of
from mpitune.storage.history import History, read_study, studies_in
from mpitune.storage.records import UNREADABLE
from mpitune.storage.table import last_line, named_columns
from mpitune.track.writers import RUNNING
from mpitune.trial import Ending, Outcome, Result, Steps, Trial

if TYPE_CHECKING:
    import pandas

    from mpitune.figures.winner import Winner

MEASURED = ("seconds", "peak_bytes")
Running = Mapping[str, tuple[Trial, Steps]]  # by key
TEXTS = ("key", "error", "params", "values", "steps", "user_attrs")  # what of a trial may be no UTF-8


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
        header: What its journal begins with: settings, versions, commit, command.
        trials: Of a search by their numbers, else in the order in which they are in the journal.
        objectives: Values that were searched for, True for those maximized; {} where the journal does not say.
        began: When its first run did, such as "2026-11-28T07:30:00"; "" where the journal does not say.
    """

    folder: Path
    header: Mapping[str, Any]
    trials: Sequence[ExportedTrial]
    objectives: Mapping[str, bool]
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


@dataclass(frozen=True, eq=False, repr=False)
class LoadedStudy:
    """What `load` gives: `trials, arrays = load(folder)` takes the two.

    Attributes:
        trials: A row for each trial, by its key: state, param_..., value_..., seconds, ended (UTC),
            peak_bytes, host, rank, slot, device, attempt, error ("" without one). NaN for what is not there, NaT for a
            time. Before the first trial it has no rows.
        arrays: Of each trial that has any, by its key; each is read from disk when it is asked for.
        folder: Of the study.
    """

    trials: pandas.DataFrame
    arrays: Mapping[str, Mapping[str, np.ndarray]]
    folder: Path

    def __iter__(self) -> Iterator[Any]:
        return iter((self.trials, self.arrays))

    @property
    def winner_(self) -> Winner | None:
        """What the best candidate is worth, as a search says; None without two candidates, two folds and a goal."""
        from mpitune.exchange.programs import experiment_of
        from mpitune.report.page import report_of

        folder = studies_in(self.folder)[-1]
        experiment, history = None, read_study(folder)
        with suppress(Exception):  # of a program's own part: the journal may be anybody's
            experiment = experiment_of(history)
        return report_of(folder, history, experiment, None).study.winner

    def __repr__(self) -> str:
        states = ", ".join(f"{n} {state}" for state, n in self.trials["state"].value_counts().items())
        columns = [name for name in self.trials if name.startswith(("param_", "value_"))]
        arrays = f", arrays of {len(self.arrays)} in .arrays" if self.arrays else ""
        return f"<{len(self.trials)} trials ({states}) in .trials, a table with {named(columns)}{arrays}>"


def load(results: str | Path) -> LoadedStudy:
    """The trials of a study with their arrays, of an unfinished one too.

    Args:
        results: The results folder.

    Returns:
        `trials, arrays = load("results/mnist_svm")`, see `LoadedStudy`.

    Raises:
        UsageError: There is no study, its journal is damaged, or pandas is not installed.

    Example:
        >>> import tempfile
        >>> from mpitune import Int, load, search
        >>> folder = tempfile.mkdtemp()
        >>> how = dict(strategy="grid", minimize="loss", workers=0, results=folder)
        >>> study = search(lambda trial: {"loss": trial.params["n"] ** 2}, {"n": Int(0, 2)}, **how)
        3 trials: 3 complete
        the best:
          trial 0: loss 0 with n=0
        time taken: ...
        results: ...
        >>> trials, arrays = load(folder)
        >>> trials[["param_n", "value_loss"]].values.tolist()
        [[0.0, 0.0], [1.0, 1.0], [2.0, 4.0]]
    """
    study = read(Path(results))
    with needs("pandas", "pandas"):
        import pandas
    rows = [{name: math.nan if value is None else value for name, value in row.items()} for row in study.rows()]
    columns = None if rows else list(ExportedTrial(0, {}, {}, "").row())
    table = pandas.DataFrame(rows, columns=columns).astype(dict.fromkeys(MEASURED, float))
    table["ended"] = pandas.to_datetime(table["ended"], unit="s", utc=True)
    arrays = {trial.key: trial.last.arrays for trial in study.trials if trial.last.arrays}
    return LoadedStudy(table.set_index("key"), arrays, Path(results))


def read(folder: Path, running: Running | None = None) -> ExportedStudy:
    """The study in a results folder, or the iterations of a halving search. Raises UsageError where there is none.

    `running`: trials, or stages of them, that run now: they are among the others with what is known of them.
    """
    first, *others = every = [_read(study, running or {}) for study in studies_in(folder)]
    if not others:
        return first
    trials = [replace(trial, key=f"{study.folder.name}/{trial.key}") for study in every for trial in study.trials]
    return replace(first, folder=folder, trials=trials)


def _read(folder: Path, running: Running) -> ExportedStudy:
    history = read_study(folder)
    now = {key: some for key, some in running.items() if key not in history.results or history.results[key].failed}
    for key, (trial, steps) in now.items():
        trials, results = cast(dict[str, Trial], history.trials), history.results
        trials[key], results[key] = trial, Result(key, ending=Ending(steps=steps), ended=time.time())
    settings = history.header["settings"]
    goal_texts = settings.get("objectives")
    searched = (
        history.header.get("kind") == "search"
        and isinstance(goal_texts, list)
        and all(isinstance(goal, str) for goal in goal_texts)
    )
    goals = goal_texts if searched else [history.goal]
    objectives = {name: way == "maximize" for way, _, name in (goal.partition(" ") for goal in goals) if name}
    exported = _merged(history) if searched else [_plain(n, key, history) for n, key in enumerate(history.results)]
    exported = [replace(trial, state=RUNNING, values={}) if trial.last.key in now else trial for trial in exported]
    exported = [replace(trial, **{name: _as_utf8(getattr(trial, name)) for name in TEXTS}) for trial in exported]
    began = str(history.runs[0].get("time", "")) if history.runs else ""
    return ExportedStudy(folder, _as_utf8(history.header), exported, _as_utf8(objectives), _as_utf8(began))


def _as_utf8(thing: Any) -> Any:
    """JSON with texts that other tools can write, since many refuse half a surrogate pair."""
    if isinstance(thing, str):
        return utf8(thing)
    if isinstance(thing, Mapping):
        return {_as_utf8(name): _as_utf8(value) for name, value in thing.items()}
    return [_as_utf8(item) for item in thing] if isinstance(thing, list) else thing


def _plain(number: int, key: str, history: History) -> ExportedTrial:
    trial, result = history.trials[key], history.results[key]
    state, error = FAILED if result.failed else COMPLETE, last_line(result.error)
    return ExportedTrial(
        number, dict(trial.params), result.values, state, {}, result.seconds, error,
        key=key, fold=trial.segment.fold, last=result,
    )  # fmt: skip


def _merged(history: History) -> list[ExportedTrial]:
    """The segments of each trial of a search together."""
    outcomes = [Outcome(history.trials[key], result) for key, result in history.results.items()]
    try:
        numbers = {outcome.trial.key: number_of(outcome.trial) for outcome in outcomes}
        trials = records(outcomes, dict)
    except UsageError:
        raise
    except UNREADABLE as error:
        raise UsageError(
            f"the journal has trials that do not belong to a search ({error}): use the version that wrote it"
        ) from error
    last: dict[int, Result] = {}
    for outcome in outcomes:
        number = numbers[outcome.trial.key]
        if number not in last or (outcome.result.ended, outcome.result.key) >= (last[number].ended, last[number].key):
            last[number] = outcome.result
    return [
        ExportedTrial(**vars(trial), key=f"t{trial.number:06}", last=last[trial.number])
        for trial in sorted(trials, key=lambda trial: trial.number)
    ]
