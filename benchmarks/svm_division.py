"""When batches of the grid search are divided: makespans played with the costs of the published grid, and CPU time.

    python -m benchmarks.svm_division --results benchmarks/results/svm_division.md
    python -m benchmarks.svm_division --measure --images 1000 --data DIR      # a gamma whole and by fold, measured

The real coordinator plays against slots that take as long as each gamma of `svm_published_ovo.md` did (24 gammas, 24
values of C, 5 folds, 60,000 images). Before: where a round had fewer than eight batches per slot, all were divided by
fold. The coordinator goes by the experiment's own costs, which differ from what really passes.
"""

from __future__ import annotations

import argparse
import heapq
import re
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import circumstances, publish, table
from mnist_svm.experiment import KERNEL_PART, SvmGrid
from mnist_svm.points import TuningGrid
from mpitune import RunOptions, run_study
from mpitune.engine.coordinator import Coordinator
from mpitune.engine.messages import Returned, Run
from mpitune.engine.slots import Resources
from mpitune.engine.study import Study
from mpitune.experiment import Scheduling, WorkerContext
from mpitune.trial import Batch, Outcome, Place, Result, Rounds, Trial

PUBLISHED = Path(__file__).parent / "results" / "svm_published_ovo.md"
SLOTS = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 25, 30, 32, 36, 40, 48, 60, 64, 80, 96, 100, 120, 150, 200)
FEW = 8  # batches per slot, below which all were divided before


class Memory:
    """Stands for the journal, as nothing is to be kept."""

    def append(self, outcomes: Sequence[Outcome]) -> list[Result]:
        return [result for _, result in outcomes]

    def note(self, **record: Any) -> None:
        pass


def seconds_of_gammas() -> list[float]:
    """Seconds that each gamma took, all folds, from the published table."""
    mean, _, _ = PUBLISHED.read_text().partition("Validation error of each fold")
    rows = re.findall(r"^\| -\d\.\d{4} +\| (\d+) +\|", mean, flags=re.M)
    return [float(seconds) for seconds in rows]


def play(
    n_slots: int, batches: Sequence[Batch], scheduling: Scheduling, seconds: Callable[[Batch, float], float]
) -> tuple[float, float]:
    """(makespan, work of all slots) in seconds, of one round. seconds: of a batch that begins at that time."""
    now = 0.0
    events: list[tuple[float, int, tuple[int, int], Batch, float]] = []
    free = dict.fromkeys(((0, slot) for slot in range(n_slots)), 0.0)

    def tell(rank: int, message: Any) -> None:
        if isinstance(message, Run):
            slot = (rank, message.slot)
            begin = max(free[slot], now)
            took = seconds(message.batch, begin)
            free[slot] = begin + took
            heapq.heappush(events, (free[slot], len(events), slot, message.batch, took))

    def search() -> Rounds:
        yield batches

    places = {slot: Place("host", *slot, "cpu") for slot in free}
    study = Study([search()], {}, {})
    coordinator = Coordinator(study, Memory(), scheduling, Resources(places, tell, clock=lambda: now))
    coordinator.step()
    work = 0.0
    while not coordinator.finished:
        now, _, slot, batch, took = heapq.heappop(events)
        work += took
        results = tuple(Result(trial.key, {"error": 0.0}, seconds=took / len(batch)) for trial in batch)
        coordinator.handle(slot[0], Returned(slot[1], results, 1))
        coordinator.step()
    return now, work


def simulate(part: float, known: bool) -> str:
    """A row for each number of slots. part: of a gamma's work, what its folds share. known: whether costs are true."""
    grid = SvmGrid(24)
    (search,) = grid.searches()
    batches = list(next(search))
    gamma_seconds = dict(zip(grid.gammas.tolist(), seconds_of_gammas(), strict=True))

    def seconds(batch: Batch, begin: float) -> float:
        whole, share = gamma_seconds[float(batch[0].params["gamma"])], len(batch) / (grid.n_tuning * grid.folds)
        return whole * (part + (1 - part) * share)

    def cost(trial: Trial) -> float:
        return gamma_seconds[float(trial.params["gamma"])] if known else grid.cost(trial)

    rows = []
    for n_slots in SLOTS:
        divided = [piece for batch in batches for piece in grid.split_batch(batch)]
        before = play(n_slots, divided if len(batches) < FEW * n_slots else batches, Scheduling(cost=cost), seconds)
        start = time.perf_counter()
        costs = Scheduling(
            cost=cost,
            split_batch=grid.split_batch,
            shared_cost=lambda batch, workers: part * cost(batch[0]) * grid.n_tuning * grid.folds,
        )
        after = play(n_slots, batches, costs, seconds)
        took = time.perf_counter() - start
        whole = sum(gamma_seconds.values())
        rows.append({
            "slots": n_slots, "makespan before, s": f"{before[0]:.0f}", "now, s": f"{after[0]:.0f}",
            "now / before": f"{after[0] / before[0]:.2f}", "work before / least": f"{before[1] / whole:.2f}",
            "work now / least": f"{after[1] / whole:.2f}", "coordinator, s": f"{took:.2f}",
        })  # fmt: skip
    what = "what each gamma really took" if known else "the experiment's guesses"
    return f"Folds share {part:.0%} of a gamma's work; the coordinator goes by {what}:\n\n" + table(rows)


def measure(images: int, n_tuning: int, data: Path | None, repeats: int) -> str:
    """CPU time of one gamma with all its folds, whole and fold by fold, in pairs."""
    options: dict[str, Any] = {"data_folder": data} if data else {"dataset": "digits"}
    grid = SvmGrid(n_tuning, train_size=images, solver="shared", **options)
    objective = grid.objective(WorkerContext("cpu", grid.data()))
    (search,) = grid.searches()
    batches = list(next(search))
    list(objective(batches[0][:1]))  # compiles
    rows = []
    for batch in batches[:: max(1, len(batches) // 5)]:
        parts, ratios, wholes = grid.split_batch(batch), [], []
        for _ in range(repeats):
            start = time.process_time()
            answers = [(result.key, result.values) for result in objective(batch)]  # type: ignore[union-attr]
            whole = time.process_time() - start
            by_fold = (result for part in parts for result in objective(part))
            again = [(result.key, result.values) for result in by_fold]  # type: ignore[union-attr]
            assert answers == again, "results depend on the division"
            ratios.append((time.process_time() - start - whole) / whole)
            wholes.append(whole)
        rows.append({
            "log10 gamma": f"{np.log10(float(batch[0].params['gamma'])):.2f}",
            "whole, CPU s": f"{np.median(wholes):.2f}",
            "by fold / whole": f"{np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            "so folds share": f"{(np.median(ratios) - 1) / 4:.1%}",
        })  # fmt: skip
    return f"{images} images, {n_tuning} values of C, n = {repeats}:\n\n" + table(rows)


class Now(SvmGrid):
    """The grid, without its figures."""

    def report(self, *arguments: Any) -> None:
        pass


class Before(Now):
    """The same with every gamma divided by fold, as it was on a few slots."""

    def _search(self, grid: TuningGrid) -> Rounds:
        search = super()._search(grid)
        results = yield [part for batch in next(search) for part in self.split_batch(batch)]
        try:
            results = yield search.send(results)
            search.send(results)
        except StopIteration as end:
            return end.value


def children_seconds() -> float:
    """CPU time of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def programs(images: int, n_tuning: int, data: Path | None, repeats: int) -> str:
    """CPU time of all workers of whole searches on one and two slots, before and now, in pairs."""
    options: dict[str, Any] = {"data_folder": data} if data else {"dataset": "digits"}
    options.update(train_size=images, solver="shared")
    rows = []
    for workers in (1, 2):
        spent: dict[type[SvmGrid], list[float]] = {Before: [], Now: []}
        answers = []
        for _ in range(repeats):
            for kind, times in spent.items():
                start = children_seconds()
                with tempfile.TemporaryDirectory() as folder:
                    run_options = RunOptions(gpu="none", workers=workers, results=Path(folder), quiet=True)
                    outcomes = run_study(kind(n_tuning, **options), run_options)
                times.append(children_seconds() - start)
                answers.append([(result.key, result.values) for _, result in outcomes])
        assert all(answer == answers[0] for answer in answers), "results depend on the division"
        ratios = [now / before for before, now in zip(spent[Before], spent[Now], strict=True)]
        rows.append({
            "slots": workers,
            "before, CPU s": f"{np.median(spent[Before]):.2f}",
            "now, CPU s": f"{np.median(spent[Now]):.2f}",
            "now / before": f"{np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        })  # fmt: skip
    what = f"{images} images, {n_tuning} x {n_tuning}, CPU seconds of all workers from start to end"
    return f"Whole searches, {what}, n = {repeats}:\n\n" + table(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="measure too, on one core")
    parser.add_argument("--programs", action="store_true", help="whole searches too, on one and two slots")
    parser.add_argument("--images", type=int, default=1000, metavar="N")
    parser.add_argument("--tuning", type=int, default=5, metavar="N", help="values of C, and of gamma")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of MNIST; digits without it")
    parser.add_argument("--results", type=Path, metavar="FILE")
    options = parser.parse_args()
    texts = [
        circumstances("numba", played="svm_published_ovo.md"),
        simulate(KERNEL_PART, False),
        simulate(KERNEL_PART, True),
    ]
    if options.measure:
        texts.append(measure(options.images, options.tuning, options.data, options.repeats))
    if options.programs:
        texts.append(programs(options.images, options.tuning, options.data, options.repeats))
    publish("\n\n".join(texts), options.results)


if __name__ == "__main__":
    main()
