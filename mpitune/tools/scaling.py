"""Speed-up and efficiency on several layouts: `python -m mpitune scaling RESULTS... --into FOLDER`.

Each results folder holds the same study, run on another number of GPUs or CPU slots (`slurm/scaling.sh` makes such
folders). Writes scaling.csv, scaling.svg and scaling.png. The time of a study is the wall time of its command from
loading the data to the last figure, summed over its runs; time in the scheduler's queue is not part of it.

Speed-up is the time on the fewest slots divided by the time, times that number of slots; efficiency is speed-up per
slot. Busy is the share of the slots' time in which trials ran. The rest is start-up, waiting and report. If efficiency
is less than busy, the trials themselves became slower.

It also takes tables of trainings instead of results folders, such as the ddp.csv of `mnist_nn.ddp`. All rows must have
the same network, images, optimizer and number of epochs, as far as they say so. Batch sizes may differ; a row's name
says its own. Rows of resumed trainings are left out: their seconds are of the last run only.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from mpitune.errors import Exit, UsageError, duration
from mpitune.settings import program, setting
from mpitune.storage.history import History, differing_setting, read_study, require_same_study
from mpitune.storage.table import write_table

LAYOUT = ("nodes", "devices", "seconds")  # columns of a table of trainings that are needed
SAME = (  # columns in which its rows must agree
    "network", "dataset", "train_size", "epochs", "device", "optimizer", "strategy", "amp", "samples",
)  # fmt: skip


@dataclass(frozen=True)
class ScalingOptions:
    """The command line."""

    sources: tuple[Path, ...] = setting(
        help="results folders of the same study, each complete; or tables (CSV) of the same training"
    )
    into: Path = setting(Path("results"), "folder for the table and the figure", metavar="FOLDER")


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


@dataclass(frozen=True)
class ScalingPoint:
    """A measurement against the reference: the median of those on the fewest slots, taken as perfect."""

    measured: RunTiming
    speed_up: float

    @property
    def efficiency(self) -> float:
        return self.speed_up / self.measured.n_slots

    @property
    def busy(self) -> float | None:
        run = self.measured
        return None if run.busy is None else run.busy / (run.n_slots * run.seconds)

    def row(self) -> dict[str, str | int]:
        run = self.measured
        return {
            "slots": run.n_slots, "nodes": run.n_nodes, "seconds": f"{run.seconds:.6g}",
            "speed_up": f"{self.speed_up:.4g}", "efficiency": f"{self.efficiency:.4g}",
            "busy": "" if self.busy is None else f"{self.busy:.4g}", "study": run.name,
        }  # fmt: skip


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
    resumed = [name for name, row in rows if row.get("trained_epochs", "") not in ("", row.get("epochs"))]
    if len(resumed) == len(rows):
        raise UsageError(
            f"{tables[0]} has resumed trainings only, whose seconds are of the last run: train one at once"
        )
    for name in resumed:
        print(
            f"{name} is left out: that training was resumed, and its seconds are of the last run only", file=sys.stderr
        )
    rows = [(name, row) for name, row in rows if name not in resumed]
    (first, reference), *others = rows
    for name, other in others:
        # A row of an earlier version does not say all.
        known = [column for column in SAME if column == "amp" or (reference.get(column) and other.get(column))]
        mine, theirs = ({column: row.get(column, "") for column in known} for row in (reference, other))
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


def compare(all_measured: Sequence[RunTiming]) -> list[ScalingPoint]:
    """Each measurement against those on the fewest slots, by number of slots."""
    fewest = min(run.n_slots for run in all_measured)
    reference = fewest * median(run.seconds for run in all_measured if run.n_slots == fewest)
    ordered = sorted(all_measured, key=lambda run: (run.n_slots, run.name))
    return [ScalingPoint(run, reference / run.seconds) for run in ordered]


def figure_of(points: Sequence[ScalingPoint]) -> Any:
    """Time with the perfect line, and efficiency with busy, against slots and nodes."""
    from mpitune.figures.plotting import BLUE, GREY, ORANGE, styled, subplots

    slots = [point.measured.n_slots for point in points]
    layouts = sorted({(point.measured.n_slots, point.measured.n_nodes) for point in points})
    counts = sorted(set(slots))
    perfect = points[0].measured.seconds * points[0].speed_up
    with styled():
        figure, (left, right) = subplots(1, 2, size=(8.4, 3.8))
        left.plot(counts, [perfect / n for n in counts], color=GREY, linewidth=1, linestyle="--", label="perfect")
        left.plot(slots, [point.measured.seconds for point in points], color=BLUE, marker="o", label="measured")
        left.set(title="time", ylabel="seconds", ylim=(0, None))
        right.plot(slots, [100 * point.efficiency for point in points], color=BLUE, marker="o", label="efficiency")
        busy = [(point.measured.n_slots, 100 * point.busy) for point in points if point.busy is not None]
        if busy:
            right.plot(*zip(*busy, strict=True), color=ORANGE, marker="s", label="time in which trials ran")
        right.set(title="efficiency", ylabel="%", ylim=(0, 110))
        labels = [f"{n}\n{'/'.join(str(nodes) for m, nodes in layouts if m == n)}" for n in counts]
        for axes in (left, right):
            axes.set(xlabel="GPUs or CPU slots, and nodes", xlim=(0, 1.05 * counts[-1]))
            axes.set_xticks(counts, labels)
            axes.legend(loc="best")
        return figure


def main(arguments: Sequence[str] | None = None) -> Exit:
    """The command line. Returns the exit status."""
    description = "Speed-up of one study, or training, on several layouts."
    return program(ScalingOptions, _show, arguments, prog="python -m mpitune scaling", description=description)


def _show(options: ScalingOptions) -> Exit:
    from mpitune.figures.plotting import save

    points = compare(read(options.sources))
    print(f"{'slots':>5} {'nodes':>5} {'time':>12} {'speed-up':>9} {'efficiency':>10} {'busy':>6}  study")
    for point in points:
        run = point.measured
        print(
            f"{run.n_slots:5} {run.n_nodes:5} {duration(run.seconds):>12} {point.speed_up:9.2f} "
            f"{point.efficiency:10.1%} {'' if point.busy is None else format(point.busy, '.1%'):>6}  {run.name}"
        )
    write_table(options.into / "scaling.csv", [point.row() for point in points])
    save(figure_of(points), options.into, "scaling")
    return Exit.DONE
