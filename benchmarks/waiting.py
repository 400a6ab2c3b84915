"""How busy workers are, and what a strategy finds in equal time: rounds, a window, no order at all, Optuna alone.

    python -m benchmarks.waiting [--seeds 20] [--results FILE]

The workers are simulated, the study and the strategies are real. Trials (or the steps of a stage) take log-normal times
with a mean of 1; each has the same time in every order. All run for `PER_WORKER` times that mean. A stage's loss falls
with its steps, towards that of the whole training.
"""

from __future__ import annotations

import argparse
import heapq
import logging
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna

from benchmarks.machine import circumstances, publish, table
from benchmarks.problems import TASKS
from benchmarks.strategies import NAMED
from mpitune import Space
from mpitune.engine.study import Study
from mpitune.optimize.strategies import ASHA, Hyperband, Optuna, strategy_of
from mpitune.optimize.strategies.base import Problem, TrialSegment
from mpitune.optimize.strategies.from_optuna import suggested
from mpitune.optimize.tuning import ASYNCHRONOUS, ROUNDS, WINDOW, LeadersPart, SearchLimit, Tuning, WorkersPart
from mpitune.trial import Result, Trial, seed_of

PER_WORKER = 20  # trials, if none waits
STEPS = 27
SIGMAS = 0.3, 1.0
SEVERAL = 2, 16  # workers, beside one
ALONE = "Optuna alone"


class Way(NamedTuple):
    """An order, and its size for so many workers."""

    name: str
    order: str
    size: Callable[[int], int]


WAYS = [
    Way("rounds", ROUNDS, lambda workers: workers),
    Way("window of 1.5", WINDOW, lambda workers: math.ceil(1.5 * workers) if workers > 1 else 1),
    Way("window of 2", WINDOW, lambda workers: 2 * workers if workers > 1 else 1),
    Way("window of 4", WINDOW, lambda workers: 4 * workers if workers > 1 else 1),
    Way("asynchronous", ASYNCHRONOUS, lambda workers: workers),
]


class Found(NamedTuple):
    busy: float  # share of the workers' time
    best: float


def simulated(
    workers: int, horizon: float, seconds: Callable[[Any], float], ask: Callable[[], list[Any]],
    ended: Callable[[Any], list[Any]],
) -> float:  # fmt: skip
    """Let workers do what is asked until the horizon. `ask` is called while a worker has nothing. Returns how busy."""
    running: list[tuple[float, int, Any]] = []
    queue, now, busy, n = [], 0.0, 0.0, 0
    while now <= horizon:
        while len(running) < workers and (queue or (queue := ask())):
            one, n = queue.pop(0), n + 1
            took = seconds(one)
            busy += min(took, horizon - now)
            heapq.heappush(running, (now + took, n, one))
        if not running:
            break
        now, _, one = heapq.heappop(running)
        if now <= horizon:
            queue += ended(one)
    return busy / workers / horizon


def drawn(seed: int, key: str, sigma: float) -> float:
    return float(np.exp(np.random.default_rng(seed_of(seed, f"seconds/{key}")).normal(-(sigma**2) / 2, sigma)))


def ours(way: Way, strategy: Any, name: str, workers: int, sigma: float, seed: int) -> Found:
    task, staged = TASKS[name], not isinstance(strategy, str)
    horizon = PER_WORKER * (STEPS / 3 if staged else 1.0)  # of three trials one may be trained to its end
    size, n = way.size(workers), 4 * PER_WORKER * workers
    problem = Problem(Space(task.space), {"v": False}, seed, n, size, staged)
    plan = LeadersPart(strategy_of(strategy), (), SearchLimit(None, None), None, None)
    tuning = Tuning("", "", (), seed, size, way.order, (), WorkersPart(None, problem, Path()), plan)
    study = Study(tuning.searches(), {}, {})
    start, best = study.start(), [math.inf]

    def ended(trial: Trial) -> list[Trial]:
        segment = TrialSegment.of(trial)
        value = task.evaluate(segment.point)["v"] + (1 / segment.until if staged else 0.0)
        if segment.last:
            best.append(value)
        steps = {f"v@{segment.until}": value} if staged else {}
        return [trial for batch in study.record(Result(trial.key, {"v": value, **steps})) for trial in batch]

    def ask() -> list[Trial]:
        batches, start[:] = start[:], []
        while study.is_behind and not batches:
            batches = study.catch_up()
        return [trial for batch in batches for trial in batch]

    def seconds(trial: Trial) -> float:
        return TrialSegment.of(trial).cost * drawn(seed, trial.key, sigma)

    return Found(simulated(workers, horizon, seconds, ask, ended), min(best))


def alone(strategy: str, name: str, workers: int, sigma: float, seed: int) -> Found:
    """Optuna without us: each worker asks when it has nothing to do, and tells its result at once."""
    task = TASKS[name]
    problem = Problem(space := Space(task.space), {"v": False}, seed, None, workers)
    study = optuna.create_study(sampler=Optuna(NAMED[strategy]).made(problem))

    def ask() -> list[Any]:
        trial = study.ask()
        point: dict[str, Any] = {}
        for part_name, part in space.parts.items():
            if space.is_active(part_name, point):
                point[part_name] = suggested(trial, part_name, part)
        return [(trial, point)]

    def ended(one: Any) -> list[Any]:
        trial, point = one
        study.tell(trial, task.evaluate(point)["v"])
        return []

    busy = simulated(workers, PER_WORKER, lambda one: drawn(seed, f"t{one[0].number:06}", sigma), ask, ended)
    return Found(busy, study.best_value)


def measured(seeds: int) -> tuple[list[dict[str, Any]], str]:
    """The rows of the table, and how often a way has found more than rounds, with several workers."""
    rows, better = [], dict[str, list[float]]()
    names = "Branin", "Hartmann-6", "Rosenbrock, conditional", "networks, digits"
    searches: list[tuple[str, Any, str]] = [("tpe", "tpe", name) for name in names]
    searches += [("ASHA", ASHA(STEPS), names[-1]), ("BOHB", Hyperband(STEPS, sampler="tpe"), names[-1])]
    for label, strategy, name in searches:
        for workers, sigma in ((1, SIGMAS[-1]), *((n, sigma) for n in SEVERAL for sigma in SIGMAS)):
            found = {
                way.name: [ours(way, strategy, name, workers, sigma, seed) for seed in range(seeds)]
                for way in WAYS
                if way.order != ASYNCHRONOUS or label != "BOHB"
            }
            if label in NAMED:
                found[ALONE] = [alone(label, name, workers, sigma, seed) for seed in range(seeds)]
            about = {"strategy": label, "function or table": name, "workers": workers, "sigma": sigma}
            rows.append(about | {way: shown(found.get(way)) for way in (*(way.name for way in WAYS), ALONE)})
            for way, those in found.items() if label == "tpe" and workers > 1 else ():
                pairs = zip(those, found["rounds"], strict=True)
                better.setdefault(way, []).extend(0.5 + (b.best > a.best) / 2 - (b.best < a.best) / 2 for a, b in pairs)
    return rows, ", ".join(f"{way} {statistics.mean(won):.0%}" for way, won in better.items() if way != "rounds")


def shown(found: list[Found] | None) -> str:
    if not found:
        return ""
    low, middle, high = statistics.quantiles((one.best for one in found), n=4, method="inclusive")
    return f"{statistics.mean(one.busy for one in found):.0%}, {middle:.3g} ({low:.3g} to {high:.3g})"


def main() -> None:
    parser = argparse.ArgumentParser(description="How busy workers are, and what a strategy finds in equal time.")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--results", type=Path, help="keep the table in this file")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rows, better = measured(arguments.seeds)
    text = (
        f"{circumstances('optuna', seeds=arguments.seeds, per_worker=PER_WORKER)}\n\n"
        "How busy the workers are, and the best value after equal time: median (quartiles); smaller is better.\n"
        "A window of 2 has two places for each worker, that of one worker has one. With TPE and several workers\n"
        f"a way has found more than rounds (equal ones count half): {better}.\n\n{table(rows)}"
    )
    publish(text, arguments.results)


if __name__ == "__main__":
    main()
