"""How long a study or a training took, and on how many devices: what `mpitune scaling` compares."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpitune.errors import UsageError
from mpitune.storage.history import History, differing_setting, read_study, require_same_study

LAYOUT = ("nodes", "devices", "seconds")  # columns of a table of trainings that are needed
SAME = ("network", "dataset", "epochs", "device", "strategy", "amp")  # columns in which its rows must agree


@dataclass(frozen=True)
class RunTiming:
    """One study or training as it ran.

    Attributes:
        busy: seconds in which trials ran, over all slots; None where not known.
    """

    name: str
    n_slots: int
    n_nodes: int
    seconds: float
    busy: float | None = None


def read(paths: Sequence[Path]) -> list[RunTiming]:
    """From results folders of one study, or from tables (CSV) of trainings, a row each.

    Raises:
        UsageError: they cannot be read, or are not of the same study or training.
    """
    tables = [path for path in paths if path.is_file()]
    if tables and len(tables) < len(paths):
        other = next(path for path in paths if path not in tables)
        raise UsageError(f"{tables[0]} is a table and {other} is not: give tables only, or results folders only")
    return _trainings(tables) if tables else _studies(paths)


def _studies(folders: Sequence[Path]) -> list[RunTiming]:
    studies = [(folder, read_study(folder)) for folder in folders]
    (first, reference), *others = studies
    for folder, other in others:
        fix = "compare the same study"
        require_same_study(folder, other.header["settings"], reference.header["settings"], fix=fix, first=first)
    return [timing_of(folder, history) for folder, history in studies]


def timing_of(folder: Path, history: History) -> RunTiming:
    """How long the study took, and on what.

    Raises:
        UsageError: that cannot be said: the study is not complete, one of its runs was killed (no one knows when), or
            they had different numbers of slots.
    """
    ends = history.ends
    last = next((number for number, end in enumerate(ends) if end["complete"]), None)
    if last is None:
        raise UsageError(f"the study in {folder} is not complete: run the same command to continue")
    # Runs after the first complete one computed nothing, they only reported again.
    runs, ends = history.runs[: len(history.runs) - (len(ends) - last - 1)], ends[: last + 1]
    if len(runs) != len(ends):
        raise UsageError(f"a run of {folder} was killed, so its time is not known: measure again with --restart")
    layouts = {(len(run["slots"]), len({slot.split("/")[0] for slot in run["slots"]})) for run in runs}
    if len(layouts) > 1:
        raise UsageError(f"the runs of {folder} had different numbers of slots: measure again with --restart")
    n_slots, n_nodes = layouts.pop()
    busy = sum(result.seconds for result in history.results.values())
    return RunTiming(folder.name, n_slots, n_nodes, sum(end["seconds"] for end in ends), busy)


def _trainings(tables: Sequence[Path]) -> list[RunTiming]:
    """Their rows, each named by its place: what `mnist_nn.ddp` adds to ddp.csv."""
    rows = [(f"{path.name}:{number}", row) for path in tables for number, row in enumerate(_rows(path), 2)]
    if not rows:
        raise UsageError(f"{tables[0]} has no rows: train first")
    (first, reference), *others = rows
    for name, other in others:
        mine, theirs = ({column: row.get(column, "") for column in SAME} for row in (reference, other))
        if (column := differing_setting(mine, theirs)) is not None:
            raise UsageError(
                f"{name} has {column} = {theirs[column]}, {first} has {mine[column]}: compare the same training"
            )
    return [_training(name, row) for name, row in rows]


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [column for column in LAYOUT if column not in (reader.fieldnames or ())]
            if missing:
                raise UsageError(f"{path} has no column {missing[0]}: give a table that mnist_nn.ddp wrote")
            return list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read as a table ({error}): give one that mnist_nn.ddp wrote") from error


def _training(name: str, row: Mapping[str, Any]) -> RunTiming:
    try:
        nodes, devices, seconds = int(row["nodes"]), int(row["devices"]), float(row["seconds"])
        if min(nodes, devices) < 1 or not 0 < seconds < math.inf:
            raise ValueError
    except (TypeError, ValueError):
        layout = ", ".join(f"{column} = {row[column]}" for column in LAYOUT)
        raise UsageError(f"{name} has {layout}: numbers above 0 are needed, remove the row") from None
    return RunTiming(f"{name}, batch {row['batch']}" if row.get("batch") else name, devices, nodes, seconds)
