"""CSV tables. Floats are written as their shortest exact form, so equal tables are equal files.

A text that a spreadsheet would run as a formula has one ' more in front in a file; `read_table` takes it away again.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mpitune.errors import shortened
from mpitune.storage.files import written_whole
from mpitune.trial import Outcome

# Columns of a table of trials that say when, where and by what a trial was computed: they differ from run to run.
RUN_COLUMNS = ("seconds", "peak_mib", "place", "attempt")
LONGEST_ERROR = 4000  # characters of an error where it has one line
# A text that a spreadsheet would run: it begins as a formula, and is no number. In a file it has ' in front.
FORMULA = re.compile(r"'*(?![+-]?[\d.]+(e[+-]?\d+)?\Z)[-=+@\t\r\n]", re.IGNORECASE)


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows (all with the same columns) as CSV with a header; whole or not at all."""
    with written_whole(path, "w") as file:
        if rows:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows({n: f"'{cell}" if _runs(cell) else cell for n, cell in row.items()} for row in rows)


def read_table(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The rows of a CSV table, texts as `write_table` got them. Raises csv.Error."""
    return [
        {n: c[1:] if c and c[0] == "'" and _runs(c) else c for n, c in row.items()} for row in csv.DictReader(lines)
    ]


def _runs(cell: Any) -> bool:
    return isinstance(cell, str) and FORMULA.match(cell) is not None


def named_columns(params: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters and values as columns param_<name> and value_<name>, which are no other columns of any table."""
    return {f"param_{name}": each for name, each in params.items()} | {f"value_{n}": each for n, each in values.items()}


def write_trials(path: Path, outcomes: Sequence[Outcome]) -> None:
    """One row per trial: key, fold if any has one, param_..., value_... (NaN where it failed), `RUN_COLUMNS`, error."""
    params = _union(outcome.trial.params for outcome in outcomes)
    values = _union(outcome.result.values for outcome in outcomes)
    folds, rows = any(outcome.trial.segment.fold is not None for outcome in outcomes), []
    for trial, result in outcomes:
        fold = "" if trial.segment.fold is None else trial.segment.fold
        missing = float("nan") if result.failed else ""
        peak = "" if result.peak_bytes is None else f"{result.peak_bytes / (1 << 20):.0f}"
        rows.append(
            {"key": trial.key, **({"fold": fold} if folds else {})}
            | named_columns(
                {name: trial.params.get(name, "") for name in params},
                {name: result.values.get(name, missing) for name in values},
            )
            | {"seconds": f"{result.seconds:.6g}", "peak_mib": peak}
            | {"place": str(result.place), "attempt": result.attempt, "error": last_line(result.error)}
        )
    write_table(path, rows)


def last_line(error: str | None) -> str:
    """The line of an error that says what happened, the last one of a traceback; of a very long one the ends."""
    lines = (error or "").strip().splitlines()
    return " ".join(shortened(lines[-1], LONGEST_ERROR).split("\n")) if lines else ""


def kind_of(params: Mapping[str, Any], error: str | None) -> str:
    """The last line of a trial's error without the values of its parameters, by which equal failures differ."""
    line = last_line(error)
    for name, value in params.items():
        line = line.replace(text, f"{{{name}}}") if len(text := str(value)) > 2 else line
    return line


def _union(mappings: Any) -> list[str]:
    """Names of all mappings in the order first seen."""
    return list(dict.fromkeys(name for mapping in mappings for name in mapping))
