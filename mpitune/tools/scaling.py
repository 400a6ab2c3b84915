"""Speed-up and efficiency on several layouts: `python -m mpitune scaling RESULTS... --into FOLDER`.

Each results folder holds the same study, run on another number of GPUs or CPU slots (`slurm/scaling.sh` makes such
folders). Writes scaling.csv, scaling.svg and scaling.png. The time of a study is the wall time of its command from
loading the data to the last figure, summed over its runs; time in the scheduler's queue is not part of it.

Speed-up is the time on the fewest slots divided by the time, times that number of slots; efficiency is speed-up per
slot. Busy is the share of the slots' time in which trials ran. The rest is start-up, waiting and report. If efficiency
is less than busy, the trials themselves became slower.

It also takes tables of trainings instead of results folders, such as the ddp.csv of `mnist_nn.ddp`. All rows must have
the same network, data and number of epochs. Batch sizes may differ; a row's name says its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from mpitune.engine.progress import duration
from mpitune.errors import Exit
from mpitune.settings import program, setting
from mpitune.storage.table import write_table
from mpitune.tools.timings import RunTiming, read


@dataclass(frozen=True)
class ScalingOptions:
    """The command line."""

    sources: tuple[Path, ...] = setting(
        help="results folders of the same study, each complete; or tables (CSV) of the same training"
    )
    into: Path = setting(Path("results"), "folder for the table and the figure", metavar="FOLDER")


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


def compare(all_measured: Sequence[RunTiming]) -> list[ScalingPoint]:
    """Each measurement against those on the fewest slots, by number of slots."""
    fewest = min(run.n_slots for run in all_measured)
    reference = fewest * median(run.seconds for run in all_measured if run.n_slots == fewest)
    ordered = sorted(all_measured, key=lambda run: (run.n_slots, run.name))
    return [ScalingPoint(run, reference / run.seconds) for run in ordered]


def draw(points: Sequence[ScalingPoint], folder: Path) -> None:
    """scaling.svg and scaling.png, see `figure_of`."""
    from mpitune.plotting import save

    save(figure_of(points), folder, "scaling")


def figure_of(points: Sequence[ScalingPoint]) -> Any:
    """Time with the perfect line, and efficiency with busy, against slots and nodes."""
    from mpitune.plotting import BLUE, GREY, ORANGE, styled, subplots

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
    points = compare(read(options.sources))
    print(f"{'slots':>5} {'nodes':>5} {'time':>12} {'speed-up':>9} {'efficiency':>10} {'busy':>6}  study")
    for point in points:
        run = point.measured
        print(
            f"{run.n_slots:5} {run.n_nodes:5} {duration(run.seconds):>12} {point.speed_up:9.2f} "
            f"{point.efficiency:10.1%} {'' if point.busy is None else format(point.busy, '.1%'):>6}  {run.name}"
        )
    write_table(options.into / "scaling.csv", [point.row() for point in points])
    draw(points, options.into)
    return Exit.DONE
