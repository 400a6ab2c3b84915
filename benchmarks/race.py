"""How often a race over folds keeps the winner of all folds, and what it spares.

    python -m benchmarks.race [--results benchmarks/results/race.md] [--orders 1000] [--tables FILE]

The tables of `race_tables.py` and simulated scores are raced in many orders of their folds. Schedules are simulated,
with fits of log-normal times. Two searches are made with and without a race, in this process.
"""

from __future__ import annotations

import argparse
import heapq
import pickle
import time
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import circumstances, publish, table
from benchmarks.race_tables import TABLES, losses_of, searched
from mpitune.optimize.strategies.racing import Race
from mpitune.sklearn.race import FITS_PER_SLOT

SIMULATED: dict[str, Any] = {  # losses of c candidates on k folds
    "normal, equal": lambda r, c, k: r.normal(size=(c, k)),
    "normal, spread": lambda r, c, k: r.normal(size=(c, k)) + r.normal(size=(c, 1)),
    "discrete": lambda r, c, k: r.binomial(30, 0.2, (c, k)) / 30 + r.normal(0, 0.05, k),
    "neighbouring": lambda r, c, k: (
        2 * np.linspace(-1.2, 0.8, c)[:, None] ** 2 + r.normal(0, 0.3, (c, k)).cumsum(0) / 3
    ),
    "half hopeless": lambda r, c, k: r.normal(size=(c, k)) + 10.0 * (np.arange(c)[:, None] % 2),
}


def raced(losses: np.ndarray, repeats: int = 1) -> tuple[bool, float, float, list[list[int]]]:
    """Whether the winner is kept, the part of fits spared, what is lost in standard errors, candidates by look."""
    (n, folds), looks = losses.shape, []
    race = Race(range(n), folds, repeats=repeats, doubling=True)
    while pairs := race.next_folds():
        looks.append([number for number, _ in pairs])
        for number, fold in pairs:
            race.tell(number, losses[number, fold])
    means = losses.mean(axis=1)
    best, lost = int(means.argmin()), min(means[list(race.kept())]) - means.min()
    error = max(losses[best].std(ddof=1) / np.sqrt(folds), 1e-12)
    return lost <= 1e-12, 1 - sum(map(len, looks)) / losses.size, lost / error, looks


def row_of(what: str, races: list[Any]) -> dict[str, Any]:
    kept, spared, lost, _ = zip(*races, strict=True)
    return {
        "scores": what, "races": len(races), "winner kept": f"{np.mean(kept):.1%}",
        "fits spared": f"{np.mean(spared):.0%}", "lost, standard errors": f"{np.mean(lost):.3f}",
    }  # fmt: skip


def of_tables(kept: Path, orders: int) -> Iterator[dict[str, Any]]:
    if not kept.exists():
        each = [(name, k, r, seed) for name in TABLES for k, r in ((5, 1), (10, 1), (5, 5)) for seed in range(2)]
        kept.write_bytes(pickle.dumps({(n, k, r, seed): losses_of(n, seed, k, r) for n, k, r, seed in each}))
    everything: dict[tuple[int, int], list[Any]] = {}
    for name, k, repeats, seed in (known := pickle.loads(kept.read_bytes())):
        random, races = np.random.default_rng([seed, k, repeats]), everything.setdefault((k, repeats), [])
        drawn = (
            [b * k + fold for b in random.permutation(repeats) for fold in random.permutation(k)]
            for _ in range(orders // 2)
        )
        each = list(permutations(range(k)) if (k, repeats) == (5, 1) else drawn)  # all 120 of five folds
        races += [raced(known[name, k, repeats, seed][:, order], repeats) for order in each]
        if seed == 1:
            yield row_of(f"{name}, {k} x {repeats} folds", races[-2 * len(each) :])
    yield from (row_of(f"all tables, {k} x {repeats} folds", races) for (k, repeats), races in everything.items())


def of_simulated(orders: int) -> Iterator[dict[str, Any]]:
    for name, make in SIMULATED.items():
        for c, k in ((12, 5), (60, 5), (60, 10), (60, 25)):
            races = [raced(make(np.random.default_rng([i, c, k]), c, k)) for i in range(orders // 2)]
            yield row_of(f"{name}, {c} candidates, {k} folds", races)


def span(times: np.ndarray, slots: int) -> float:
    free = [0.0] * slots
    for seconds in times:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


def seconds_of(losses: np.ndarray, seconds: np.ndarray, slots: int) -> float:
    """Of a race: a look's fits the longest first, once these are known; then others of candidates that are left.

    Of these the first are those of candidates of which none has ended, which may be long, then the longest.
    """
    (n, folds), now, running = losses.shape, 0.0, list[tuple[float, int, int]]()
    race, known, begun, ended = Race(range(n), folds, doubling=True), set[int](), set[Any](), set[Any]()
    guess = lambda pair: (-seconds[pair[0]] if pair[0] in known else -np.inf, pair)  # noqa: E731
    while pairs := race.next_folds():
        left = [
            (number, fold) for number in sorted(race.kept()) for fold in range(folds) if (number, fold) not in begun
        ]
        wanted = set(pairs if len(left) >= FITS_PER_SLOT * slots else left)
        queue, later = sorted(wanted.intersection(left), key=guess), [pair for pair in left if pair not in wanted]
        while not ended.issuperset(pairs):
            while len(running) < slots and (queue or later):
                pair = queue.pop(0) if queue else later.pop(min(range(len(later)), key=lambda n: guess(later[n])))
                begun.add(pair)
                heapq.heappush(running, (now + seconds[pair[0]], *pair))
            now, *done = heapq.heappop(running)
            known.add(done[0])
            ended.add(tuple(done))
        for number, fold in pairs:
            race.tell(number, losses[number, fold])
    return max([now, *(end for end, _, _ in running)])


def of_schedules(repeats: int = 10) -> Iterator[dict[str, Any]]:
    """Seconds of a race by those of all fits at once: the mean of simulations, and the worst one."""
    for c, k in ((60, 5), (60, 10), (60, 25), (500, 10)):
        for spread in (0.0, 1.0):
            row: dict[str, Any] = {"candidates": c, "folds": k, "spread of means": spread}
            for slots in (1, 2, 4, 8, 16, 32, 64, 128):
                ratios = []
                for i in range(repeats):
                    random = np.random.default_rng([i, c, k, 3])
                    losses = random.normal(size=(c, k)) + spread * random.normal(size=(c, 1))
                    seconds = np.exp(0.7 * random.normal(size=c))
                    ratios.append(seconds_of(losses, seconds, slots) / span(np.repeat(seconds, k), slots))
                row[f"{slots} slots"] = f"{np.mean(ratios):.2f} ({max(ratios):.2f})"
            yield row


def of_searches() -> Iterator[dict[str, Any]]:
    for name in ("made, boosting", "friedman, forest"):
        used = {}
        for race in (None, 0.95):
            begin = time.process_time()
            search = searched(name, 0, 5, 5, race)
            used[race] = time.process_time() - begin
        fits = f"{np.sum(search.cv_results_['n_splits_evaluated'])} of {25 * len(search.cv_results_['params'])}"
        row = {"search, 5 x 5 folds": name, "all folds, CPU s": f"{used[None]:.1f}", "raced": f"{used[0.95]:.1f}"}
        yield {**row, "ratio": f"{used[0.95] / used[None]:.2f}", "fits in the table": fits}


def main() -> None:
    parser = argparse.ArgumentParser(description="Races over folds: the winner kept, the fits spared.")
    parser.add_argument("--orders", type=int, default=1000, help="of folds, for each table")
    parser.add_argument("--tables", type=Path, default=Path("race_tables.pickle"), help="keep scores in this file")
    parser.add_argument("--results", type=Path, help="keep the tables in this file")
    arguments = parser.parse_args()
    parts = of_tables(arguments.tables, arguments.orders), of_simulated(arguments.orders), of_schedules(), of_searches()
    text = [circumstances("numpy", "scikit-learn", orders=arguments.orders), *(table(list(rows)) for rows in parts)]
    publish("\n\n".join(text), arguments.results)


if __name__ == "__main__":
    main()
