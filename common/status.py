"""How far a study is, from its journal alone: `python -m common.status RESULTS`.

With --repair, damaged lines are first set aside in a file of their own, under the journal's lock.

Exit status 0 only when the study is complete, 3 when it is complete with failed trials, 75 when there
is more to do (the same command as before does it), 2 when there is no study.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.engine.progress import duration
from common.errors import Exit, printable
from common.output import outlive_readers
from common.settings import program, setting
from common.storage.history import History, read_study
from common.storage.journal import is_running, repair
from common.storage.table import last_line


@dataclass(frozen=True)
class StatusOptions:
    """The command line."""

    folder: Path = setting(help="results folder of the study")
    repair: bool = setting(False, "set damaged lines of the journal aside; the search then runs their trials again")


def describe(folder: Path, history: History, running: bool) -> str:
    """State, counts, work per host and slot, and the failures, as lines."""
    results = history.results.values()
    failed = [result for result in results if result.failed]
    total = history.runs[-1].get("n_trials") if history.runs else None
    total = total if isinstance(total, int) else None  # some experiments cannot know it
    state = "complete" if history.complete else "running" if running else "stopped, run the same command to continue"
    lines = [
        f"study      {history.header['settings']['experiment']} in {folder}: {state}",
        f"trials     {len(results)} finished, {len(failed)} of them failed"
        + (f", {max(0, total - len(results))} missing of {total}" if total else ""),
        f"runs       {len(history.runs)}",
    ]
    work: dict[tuple[str, int, int, str], float] = defaultdict(float)
    count: Counter[tuple[str, int, int, str]] = Counter()
    for result in results:
        place = (result.place.host, result.place.rank, result.place.slot, result.place.device)
        work[place] += result.seconds
        count[place] += 1
    lines += [
        f"place      {host}/{rank}/{slot}/{device}: {count[host, rank, slot, device]} trials, "
        f"{duration(work[host, rank, slot, device])} of work"
        for host, rank, slot, device in sorted(work)
    ]
    lines += [f"failed     {result.key} at {result.place}: {last_line(result.error)}" for result in failed]
    return "\n".join(map(printable, lines))


def _repair(folder: Path) -> None:
    damaged, aside = repair(folder)
    for damage in damaged:
        print(f"damaged    {printable(str(damage))}")
    print(f"repair     {len(damaged)} damaged lines" + (f", set aside in {aside}" if damaged else ""))


def main(arguments: Sequence[str] | None = None) -> Exit:
    """The command line. Returns the exit status, which says how far the study is."""
    description = "How far a study is, from its journal alone."
    return program(StatusOptions, _show, arguments, prog="python -m common.status", description=description)


def _show(options: StatusOptions) -> Exit:
    folder = options.folder
    if options.repair:
        _repair(folder)
    history = read_study(folder)
    print(describe(folder, history, is_running(folder)))
    if not history.complete:
        return Exit.STOPPED
    return Exit.FAILED_TRIALS if any(result.failed for result in history.results.values()) else Exit.DONE


if __name__ == "__main__":
    outlive_readers()
    sys.exit(main())
