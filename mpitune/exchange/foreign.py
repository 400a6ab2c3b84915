"""Reads results of other tools, and writes them as the journal of a search; joins studies of the same settings.

Sources are only read, and may be of strangers: files that Python would unpickle are refused, since such a file may run
any code; so are links, pipes and devices, and databases that have more than tables. What cannot be imported whole
leaves nothing behind.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import sqlite3
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mpitune.errors import UsageError, named
from mpitune.exchange.trials import needs
from mpitune.optimize.spaces.parameters import label_of
from mpitune.optimize.spaces.reading import of_distribution
from mpitune.optimize.strategies.base import TrialSegment
from mpitune.optimize.tuning import Tuning, described
from mpitune.storage.earlier import earlier_studies
from mpitune.storage.files import copy_file, copy_folder, make_folder, read_at_most, regular_file, sync_folder
from mpitune.storage.history import NAME, counts, read_study, require_same_study
from mpitune.storage.journal import Journal
from mpitune.storage.provenance import commit, versions
from mpitune.storage.records import UNREADABLE
from mpitune.storage.table import read_table
from mpitune.trial import Outcome, Place, Result

ANY = "Any()"  # what a space says for a parameter of which only values are known
SQLITE = "sqlite:///"
PICKLES = (".pkl", ".pickle", ".joblib")
STATES = ("complete", "infeasible", "COMPLETE", "")  # of a trial in a table that has such a column
SCORE = "mean_test_"
LATEST = 9e9  # seconds that a journal takes
MOST = 1 << 29  # bytes of a file that is read at once
TABLE = re.compile(r"(?is)CREATE (TABLE|(UNIQUE )?INDEX) (?!.*\bAS\b)")  # how one is made that computes nothing
# As programs write numbers. Of the texts 007, 64_32 and 1e5 Python would make numbers, too.
NUMBER = re.compile(r"-?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]\d+)?|-?inf|nan")


@dataclass
class Known:
    """What a source knows."""

    parts: dict[str, str] = field(default_factory=dict)  # of its space, by name
    goals: dict[str, bool] = field(default_factory=dict)  # True for those maximized
    trials: list[tuple[dict[str, Any], dict[str, float], float, float]] = field(default_factory=list)
    n_left_out: int = 0  # trials without values

    def add(self, params: Mapping[str, Any], values: Mapping[str, float], seconds: float, ended: float = 0.0) -> None:
        """A trial: what it has of parameters and values; how long it took and when it ended, 0 where that is odd."""
        numbers = {name: value for name, value in values.items() if "@" not in name}  # which are values of steps
        if not numbers or any(map(math.isnan, numbers.values())):
            self.n_left_out += 1
            return
        seconds, ended = (time if 0 <= time <= LATEST else 0.0 for time in (seconds, ended))
        self.trials.append(({n: label_of(value) for n, value in params.items()}, numbers, seconds, ended))


def merge(folders: Sequence[Path], into: Path) -> int:
    """Add to the study in `into` every result of `folders` that it lacks, or has as a failure only.

    Returns how many it has then.

    Raises:
        UsageError: a folder holds no study, or one of other settings, or what cannot be read; `into` cannot be
            written, or holds a study of other settings. Nothing was written.
    """
    histories = [read_study(folder) for folder in folders]
    header = histories[0].header
    for folder, history in zip(folders, histories, strict=True):
        fix = "join studies of the same settings"
        require_same_study(folder, history.header["settings"], header["settings"], fix=fix, first=folders[0])
    with _written_whole(into) as place:
        for earlier in earlier_studies(folders[0], header):  # from which it takes results
            if place != into:
                copy_folder(earlier.folder, place / earlier.folder.name, {})
        own = {name: value for name, value in header.items() if name not in ("format", "aside")}
        with closing(Journal(place, own)) as journal:
            known, runs, fresh = dict(journal.history.results), [], dict[str, Outcome]()
            for history in histories:
                new = {key: each for key, each in history.results.items() if counts(each, known.get(key))}
                known.update(new)
                fresh.update((key, Outcome(history.trials[key], result)) for key, result in new.items())
                runs += history.runs if new else []
            journal.append(list(fresh.values()))  # first, as arrays may be damaged
            for run in runs:
                journal.note(run=run)
    return len(known)


@contextmanager
def _written_whole(into: Path) -> Iterator[Path]:
    """A folder that becomes `into` once all is written; `into` itself where it holds a study. Raises UsageError."""
    if os.path.lexists(into / NAME):
        yield into
        return
    target = Path(os.path.realpath(into))
    try:
        make_folder(target.parent)
        with TemporaryDirectory(prefix=".import-", dir=target.parent) as part:
            (place := Path(part, "results")).mkdir()
            yield place
            os.rename(place, target)
            sync_folder(target.parent)
    except OSError as error:
        fix = "give what can be read, and a new folder"
        raise UsageError(f"{into} cannot be made ({error.strerror}): {fix}") from error


def known_to(source: str, study: str | None = None, names: Sequence[str] = ()) -> Known:
    """What a file or a database knows; of several studies of Optuna that of this name, its values by these names.

    Raises:
        UsageError: it cannot be read, or must not be.
    """
    path = Path(source.removeprefix(SQLITE))
    if "://" in source and not source.startswith(SQLITE):
        raise UsageError(f"{source}: give a SQLite file; optuna.copy_study copies a study from elsewhere into one")
    if path.suffix in PICKLES:
        save = 'pandas.DataFrame(search.cv_results_).to_csv("results.csv")'
        raise UsageError(f"{source} is a pickle, which may run any code when it is read: give a table, such as {save}")
    try:
        if path.suffix == ".csv":
            text = read_at_most(path, MOST).decode("utf-8-sig")
            return _table(source, _typed(read_table(io.StringIO(text, newline=""))))
        if path.suffix == ".json":
            return _table(source, list(_rows(json.loads(read_at_most(path, MOST)))))
        with open(regular_file(path), "rb") as file:
            is_database = file.read(15) == b"SQLite format 3"
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(f"{source} cannot be read ({error.strerror}): give a file or a results folder") from error
    except (*UNREADABLE, MemoryError, csv.Error) as error:
        raise UsageError(f"{source} is no table ({error}): give columns param_... and value_...") from error
    return _of_optuna(source, path, is_database, study, names)


def _typed(rows: Sequence[Mapping[Any, Any]]) -> list[dict[str, Any]]:
    """The rows of a CSV file, None for an empty cell. Whether a column has numbers is told by all of its cells."""
    read: list[dict[str, Any]] = [dict.fromkeys(map(str, row)) for row in rows]
    for name in rows[0] if rows else ():
        cells = {n: row[name] for n, row in enumerate(rows) if row[name] not in ("", None)}
        as_text = str(name).startswith("param_") and not all(map(NUMBER.fullmatch, cells.values()))
        kinds = (_word,) if as_text else (int, float, _word)
        kind = next((kind for kind in kinds if _all(kind, cells.values())), _text)
        for n, cell in cells.items():
            read[n][str(name)] = kind(cell)
    return read


def _word(cell: str) -> bool:
    return {"True": True, "False": False}[cell]


def _text(cell: str) -> str:
    """A text; one that the table of a search has in quotes, as it also has something else of that name."""
    return str(json.loads(cell)) if len(cell) > 1 and cell[0] == cell[-1] == '"' else cell


def _all(kind: Any, cells: Any) -> bool:
    try:
        return all(kind(cell) is not None for cell in cells)
    except (ValueError, KeyError, OverflowError):  # the last for more digits than a float has
        return False


def _rows(content: Any) -> Iterator[dict[str, Any]]:
    """The rows of a JSON file: a list of objects, or an object of columns, each a list or an object by row."""
    if isinstance(content, list):
        yield from map(dict, content)
        return
    columns = {name: c if isinstance(c, dict) else dict(enumerate(c)) for name, c in content.items()}
    for n in dict.fromkeys(n for column in columns.values() for n in column):
        yield {name: column.get(n) for name, column in columns.items()}


def _table(source: str, rows: Sequence[Mapping[str, Any]]) -> Known:
    """What a table knows: param_... and value_..., or the mean scores of scikit-learn."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    start = "value_" if any(name.startswith("value_") for name in names) else SCORE
    params, values = ([n for n in names if n.startswith(begin) and n != begin] for begin in ("param_", start))
    if not params or not values:
        raise UsageError(f"{source} has no columns param_... and value_... (or {SCORE}...): it has {named(names)}")
    known = Known({name.removeprefix("param_"): ANY for name in params})
    known.goals = {name.removeprefix(start): start == SCORE for name in values[:1]}
    for row in rows:
        there = {name: row[name] for name in values if row.get(name) is not None}
        wrong = next((v for v in there.values() if type(v) not in (int, float) or not _all(float, [v])), None)
        if wrong is not None:
            raise UsageError(f"{source} has the value {wrong!r:.100}: give numbers")
        given = {name.removeprefix("param_"): row[name] for name in params if row.get(name) is not None}
        done = (row.get("state") or "") in STATES and not row.get("error")
        seconds = row.get("seconds", row.get("mean_fit_time", 0.0))
        values_here = {name.removeprefix(start): float(value) for name, value in there.items()}
        known.add(given, values_here if done else {}, max(0.0, float(seconds)) if _all(float, [seconds]) else 0.0)
    return known


def _of_optuna(source: str, path: Path, is_database: bool, study: str | None, names: Sequence[str]) -> Known:
    """What a study of Optuna knows. A copy is read, as Optuna may write to what it opens."""
    with needs("optuna"):
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        copy = Path(folder, "study")
        try:
            for suffix in ("", "-wal") if is_database else ():
                if os.path.lexists(f"{path}{suffix}"):
                    copy_file(f"{path}{suffix}", f"{copy}{suffix}")
            if is_database:
                _require_tables(copy)
            else:
                copy.write_bytes(read_at_most(path, MOST))
            storage: Any = f"{SQLITE}{copy}" if is_database else JournalStorage(JournalFileBackend(str(copy)))
            there = optuna.get_all_study_names(storage)
            name = study or (there[0] if len(there) == 1 else "")
            if not there:
                raise UsageError(f"{source} has no study of Optuna: give one, or a table, FILE.csv or FILE.json")
            if name not in there:
                raise UsageError(f"{source} has the studies {named(there)}: say which with --study NAME")
            return _known(optuna.load_study(study_name=name, storage=storage), names)
        except UsageError:
            raise
        except Exception as error:  # whatever Optuna raises for a file that is none of its own
            said = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise UsageError(f"{source} has no study of Optuna that can be read ({said})") from error


def _require_tables(database: Path) -> None:
    """Raise ValueError for a view, which may have no end, for what else runs when it is read, and for damage.

    Damage may be pages that are each other's part, which have no end either.
    """
    with closing(sqlite3.connect(database)) as connection:
        for pragma in ("trusted_schema = off", "query_only = on", "ignore_check_constraints = on"):
            connection.execute(f"PRAGMA {pragma}")
        for name, text in connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"):
            if not TABLE.match(text):
                raise ValueError(f"{name} is no plain table")
        (state,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if state != "ok":
            raise ValueError(state)


def _known(study: Any, names: Sequence[str]) -> Known:
    """What a study of Optuna knows; names of its values, where the user says them."""
    ways = [way.name == "MAXIMIZE" for way in study.directions]
    metrics = names or study.metric_names or (["value"] if len(ways) == 1 else [f"value_{n}" for n in range(len(ways))])
    if len(metrics) != len(ways):
        raise UsageError(f"--names {' '.join(metrics)}: the study has {len(ways)} values, name all of them")
    known = Known(goals=dict(zip(metrics, ways, strict=True)))
    for trial in study.get_trials():
        for name, distribution in trial.distributions.items():
            text = _part(distribution)
            known.parts[name] = text if known.parts.get(name, text) == text else ANY
        values = dict(zip(metrics, trial.values, strict=True)) if trial.state.name == "COMPLETE" else {}
        attrs = {name: v for name, v in trial.user_attrs.items() if isinstance(v, float) and not math.isnan(v)}
        others = {name: value for name, value in attrs.items() if not name.startswith("run/")}
        seconds = attrs.get("run/seconds", trial.duration.total_seconds() if trial.duration else 0.0)
        ended = trial.datetime_complete.timestamp() if trial.datetime_complete else 0.0
        known.add(trial.params, {**others, **values} if values else {}, float(seconds), ended)
    return known


def _part(distribution: Any) -> str:
    """How a space says a distribution of Optuna."""
    try:
        part = of_distribution(distribution)
        return ANY if part is None else repr(part)
    except UsageError:  # a range of one value
        return ANY


def write(known: Known, into: Path) -> None:
    """Write what is known as the journal of a search into a new folder."""
    if os.path.lexists(into / NAME):
        raise UsageError(f"{into} holds a study: give a new folder with --into")
    space = ", ".join(f"{name}: {text}" for name, text in known.parts.items())
    settings = {
        "experiment": Tuning.__name__, "space": f"{{{space}}}", "strategy": "imported",
        "objectives": list(described(known.goals)), "seed": 0, "order": "rounds", "enqueued": [],
    }  # fmt: skip
    outcomes = []
    for number, (params, values, seconds, ended) in enumerate(known.trials):
        segment, place = TrialSegment(number, params), Place("imported")
        try:
            trial = segment.trial()
        except ValueError as error:
            raise UsageError(f"{error}, or leave it out") from error
        outcomes.append((trial, Result(trial.key, values, read=(), seconds=seconds, ended=ended, place=place)))
    header = {"settings": settings, "versions": versions(), "commit": commit()}
    with _written_whole(into) as folder, closing(Journal(folder, header)) as journal:
        journal.append(outcomes)
