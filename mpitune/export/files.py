"""Studies as files: CSV, Parquet, JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from mpitune.export.extras import needs
from mpitune.export.trials import ExportedStudy, frame
from mpitune.storage.files import written_whole
from mpitune.storage.table import write_table


def to_csv(study: ExportedStudy, into: Path) -> None:
    """A row for each trial, the columns of `ExportedStudy.rows`; empty for missing values."""
    write_table(into, study.rows())


def to_parquet(study: ExportedStudy, into: Path) -> None:
    """The same as a Parquet file. Raises UsageError without pandas and pyarrow."""
    with needs("pyarrow"):
        import pyarrow  # noqa: F401 - which pandas writes with
    table = frame(study)
    for name in table.columns:  # a parameter may be a number in one trial and a text in another
        there = [value for value in table[name] if value is not None]
        if any(isinstance(value, str) for value in there) and not all(isinstance(value, str) for value in there):
            table[name] = [None if value is None else str(value) for value in table[name]]
    with written_whole(into) as file:
        table.to_parquet(file, index=False)


def to_json(study: ExportedStudy, into: Path) -> None:
    """One object: study, the journal's header, objectives, trials with their steps. Infinity is the text "inf"."""
    trials = [{**trial.row(), "params": dict(trial.params), "values": dict(trial.values)} for trial in study.trials]
    for row, trial in zip(trials, study.trials, strict=True):
        for name in [name for name in row if name.startswith(("param_", "value_"))]:
            del row[name]
        row["steps"] = {str(step): dict(values) for step, values in trial.steps.items()}
    content = {"study": study.name, "header": study.header, "objectives": study.objectives, "trials": trials}
    with written_whole(into, "w") as file:
        json.dump(_plain(content), file, indent=1, allow_nan=False)
        file.write("\n")


def _plain(thing: Any) -> Any:
    if isinstance(thing, float) and not math.isfinite(thing):
        return str(thing)
    if isinstance(thing, dict):
        return {name: _plain(value) for name, value in thing.items()}
    return [_plain(item) for item in thing] if isinstance(thing, list | tuple) else thing
