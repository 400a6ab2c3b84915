"""Reads a table of results of another tool, and writes them as the journal of a search.

The table may be of a stranger: links, pipes and devices are refused, and all is read before anything is written.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpitune.errors import UsageError, named
from mpitune.optimize.spaces.parameters import label_of
from mpitune.optimize.strategies.base import TrialSegment
from mpitune.optimize.tuning import Tuning, described
from mpitune.storage.files import read_at_most
from mpitune.storage.history import NAME
from mpitune.storage.journal import Journal
from mpitune.storage.provenance import commit, versions
from mpitune.storage.records import UNREADABLE
from mpitune.storage.table import read_table
from mpitune.trial import Outcome, Place, Result

ANY = "Any()"  # what a space says for a parameter of which only values are known
STATES = ("complete", "infeasible", "COMPLETE", "")  # of a trial in a table that has such a column
SCORE = "mean_test_"
LATEST = 9e9  # seconds that a journal takes
MOST = 1 << 29  # bytes of a table
# As programs write numbers. Of the texts 007, 64_32 and 1e5 Python would make numbers, too.
NUMBER = re.compile(r"-?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]\d+)?|-?inf|nan")


@dataclass
class Known:
    """What a table knows: parameters of each trial, its values, how long it took."""

    params: Sequence[str]
    goals: Mapping[str, bool]  # True for those maximized
    trials: list[tuple[dict[str, Any], dict[str, float], float]] = field(default_factory=list)
    n_left_out: int = 0  # trials without values

    def add(self, params: Mapping[str, Any], values: Mapping[str, float], seconds: float) -> None:
        numbers = {name: value for name, value in values.items() if "@" not in name}  # which are values of steps
        if not numbers or any(map(math.isnan, numbers.values())):
            self.n_left_out += 1
            return
        took = seconds if 0 <= seconds <= LATEST else 0.0
        self.trials.append(({n: label_of(value) for n, value in params.items()}, numbers, took))


def known_to(path: Path) -> Known:
    """What a CSV file knows: param_... and value_..., or the mean scores of scikit-learn. Raises UsageError."""
    try:
        text = read_at_most(path, MOST).decode("utf-8-sig")
        rows = _typed(read_table(io.StringIO(text, newline="")))
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): give a table") from error
    except (*UNREADABLE, MemoryError, csv.Error) as error:
        raise UsageError(f"{path} is no table ({error}): give columns param_... and value_...") from error
    names = list(dict.fromkeys(name for row in rows for name in row))
    start = "value_" if any(name.startswith("value_") for name in names) else SCORE
    params, values = ([n for n in names if n.startswith(begin) and n != begin] for begin in ("param_", start))
    if not params or not values:
        raise UsageError(f"{path} has no columns param_... and value_... (or {SCORE}...): it has {named(names)}")
    goals = {name.removeprefix(start): start == SCORE for name in values[:1]}
    known = Known([name.removeprefix("param_") for name in params], goals)
    for row in rows:
        there = {name: row[name] for name in values if row.get(name) is not None}
        wrong = next((v for v in there.values() if type(v) not in (int, float) or not _all(float, [v])), None)
        if wrong is not None:
            raise UsageError(f"{path} has the value {wrong!r:.100}: give numbers")
        given = {name.removeprefix("param_"): row[name] for name in params if row.get(name) is not None}
        done = (row.get("state") or "") in STATES and not row.get("error")
        seconds = row.get("seconds", row.get("mean_fit_time")) or 0.0
        numbers = {name.removeprefix(start): float(value) for name, value in there.items()}
        known.add(given, numbers if done else {}, float(seconds) if _all(float, [seconds]) else 0.0)
    return known


def _typed(rows: Sequence[Mapping[Any, Any]]) -> list[dict[str, Any]]:
    """The rows of a CSV file, None for an empty cell. Whether a column has numbers is told by all of its cells."""
    read: list[dict[str, Any]] = [dict.fromkeys(map(str, row)) for row in rows]
    for name in rows[0] if rows else ():
        cells = {n: row[name] for n, row in enumerate(rows) if row[name] not in ("", None)}
        as_text = str(name).startswith("param_") and not all(map(NUMBER.fullmatch, cells.values()))
        kinds = (_word,) if as_text else (int, float, _word)
        kind = next((kind for kind in kinds if _all(kind, cells.values())), str)
        for n, cell in cells.items():
            read[n][str(name)] = kind(cell)
    return read


def _word(cell: str) -> bool:
    return {"True": True, "False": False}[cell]


def _all(kind: Any, cells: Any) -> bool:
    try:
        return all(kind(cell) is not None for cell in cells)
    except (ValueError, KeyError, OverflowError):  # the last for more digits than a float has
        return False


def write(known: Known, into: Path) -> None:
    """Write what is known as the journal of a search into a new folder."""
    if os.path.lexists(into / NAME):
        raise UsageError(f"{into} holds a study: give a new folder with --into")
    settings = {
        "experiment": Tuning.__name__, "space": [f"{name}: {ANY}" for name in known.params], "strategy": "imported",
        "objectives": list(described(known.goals)), "seed": 0, "order": "rounds", "enqueued": [],
    }  # fmt: skip
    outcomes = []
    for number, (params, values, seconds) in enumerate(known.trials):
        try:
            trial = TrialSegment(number, params).trial()
        except ValueError as error:
            raise UsageError(f"{error}, or leave it out") from error
        outcomes.append(Outcome(trial, Result(trial.key, values, read=(), seconds=seconds, place=Place("imported"))))
    header = {"settings": settings, "versions": versions(), "commit": commit()}
    with closing(Journal(into, header)) as journal:
        journal.append(outcomes)
