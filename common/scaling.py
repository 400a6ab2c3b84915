"""Speed-up and efficiency of one study on several layouts: `python -m common.scaling RESULTS... --into FOLDER`.

Each results folder holds the same study, run on another number of GPUs or CPU slots (`slurm/scaling.sh` makes such
folders). Writes scaling.csv, scaling.svg and scaling.png. The time of a study is the wall time of its command from
loading the data to the last figure, summed over its runs; time in the scheduler's queue is not part of it.

Speed-up is the time on the fewest slots divided by the time, times that number of slots; efficiency is speed-up per
slot. Busy is the share of the slots' time in which trials ran: what is missing there is start-up, waiting and report;
where efficiency is less than busy, the trials themselves became slower.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from common.errors import Exit, UsageError
from common.history import History, differing_setting
from common.journal import read_journal
from common.progress import duration
from common.settings import Parser, add_settings, from_namespace, setting
from common.table import write_table


@dataclass(frozen=True)
class Options:
    folders: tuple[Path, ...] = setting(help="results folders of the same study, each complete")
    into: Path = setting(Path("results"), "folder for the table and the figure", metavar="FOLDER")


@dataclass(frozen=True)
class Measured:
    """One study as it ran. busy: seconds in which trials ran, over all slots."""

    name: str
    n_slots: int
    n_nodes: int
    seconds: float
    busy: float


@dataclass(frozen=True)
class Point:
    """A measurement against the reference: the median of those on the fewest slots, taken as perfect."""

    measured: Measured
    speed_up: float

    @property
    def efficiency(self) -> float:
        return self.speed_up / self.measured.n_slots

    @property
    def busy(self) -> float:
        return self.measured.busy / (self.measured.n_slots * self.measured.seconds)

    def row(self) -> dict[str, str | int]:
        one = self.measured
        return {
            "slots": one.n_slots, "nodes": one.n_nodes, "seconds": f"{one.seconds:.6g}",
            "speed_up": f"{self.speed_up:.4g}", "efficiency": f"{self.efficiency:.4g}", "busy": f"{self.busy:.4g}",
            "study": one.name,
        }  # fmt: skip


def measured(folder: Path, history: History) -> Measured:
    """How long the study took, and on what.

    Raises UsageError where that cannot be said: the study is not complete, one of its runs was killed (no one knows
    when), or they had different numbers of slots.
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
    return Measured(folder.name, n_slots, n_nodes, sum(end["seconds"] for end in ends), busy)


def compare(all_measured: Sequence[Measured]) -> list[Point]:
    """Each measurement against those on the fewest slots, by number of slots."""
    fewest = min(one.n_slots for one in all_measured)
    reference = fewest * median(one.seconds for one in all_measured if one.n_slots == fewest)
    ordered = sorted(all_measured, key=lambda one: (one.n_slots, one.name))
    return [Point(one, reference / one.seconds) for one in ordered]


def draw(points: Sequence[Point], folder: Path) -> None:
    """scaling.svg and scaling.png: speed-up with the perfect line, and efficiency with busy, against the slots."""
    from common.figures import BLUE, GREY, ORANGE, save, subplots

    slots = [point.measured.n_slots for point in points]
    counts = sorted(set(slots))
    figure, (left, right) = subplots(1, 2, size=(8.4, 3.8))
    left.plot([0, counts[-1]], [0, counts[-1]], color=GREY, linewidth=1, linestyle="--", label="perfect")
    left.plot(slots, [point.speed_up for point in points], color=BLUE, marker="o", label="measured")
    left.set(title="speed-up", ylim=(0, None))
    right.plot(slots, [100 * point.efficiency for point in points], color=BLUE, marker="o", label="efficiency")
    right.plot(slots, [100 * point.busy for point in points], color=ORANGE, marker="s", label="busy")
    right.set(title="efficiency, and time in which trials ran", ylabel="%", ylim=(0, 110))
    for axes in (left, right):
        axes.set(xlabel="GPUs or CPU slots", xlim=(0, 1.05 * counts[-1]), xticks=counts)
        axes.legend(loc="lower right")
    save(figure, folder, "scaling")


def _read(folders: Sequence[Path]) -> list[Measured]:
    """All studies measured. Raises UsageError where they are not the same study."""
    found: list[tuple[Path, History]] = []
    for folder in folders:
        history = read_journal(folder)
        if history is None:
            raise UsageError(f"{folder} holds no study: give the results folder of one")
        found.append((folder, history))
    first, one = found[0]
    for folder, other in found[1:]:
        mine, theirs = one.header["settings"], other.header["settings"]
        if (name := differing_setting(mine, theirs)) is not None:
            raise UsageError(
                f"{folder} holds a study with {name} = {theirs.get(name)}, {first} one with {mine.get(name)}: "
                f"compare the same study"
            )
    return [measured(folder, history) for folder, history in found]


def main(arguments: Sequence[str] | None = None) -> Exit:
    parser = Parser(prog="python -m common.scaling", description="Speed-up of one study on several layouts.")
    add_settings(parser, Options)
    try:
        options = from_namespace(Options, parser.parse_args(arguments))
        points = compare(_read(options.folders))
    except UsageError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return Exit.USAGE
    print(f"{'slots':>5} {'nodes':>5} {'time':>12} {'speed-up':>9} {'efficiency':>10} {'busy':>6}  study")
    for point in points:
        one = point.measured
        print(
            f"{one.n_slots:5} {one.n_nodes:5} {duration(one.seconds):>12} {point.speed_up:9.2f} "
            f"{point.efficiency:10.1%} {point.busy:6.1%}  {one.name}"
        )
    write_table(options.into / "scaling.csv", [point.row() for point in points])
    draw(points, options.into)
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
