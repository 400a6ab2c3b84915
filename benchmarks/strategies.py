"""What strategies of `search()` find and what a trial costs, beside Optuna alone.

    python -m benchmarks.strategies                the best value after so many trials, on five functions, ten seeds
    python -m benchmarks.strategies --overhead     wall time of trials that sleep, on 1, 2 and 16 workers

Optuna alone is asked and told one trial after the other in one process, with the seeds that `search(batch=1)` gives its
samplers: it must propose the same. Rounds of 8 show what parallel trials cost in quality. For wall time
Optuna's processes share a journal file (its JournalStorage), which is its way to work in parallel without a server.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import math
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from benchmarks.machine import circumstances, publish, table
from common import Choice, Float, RunOptions, Space, When, search
from common.strategies.base import Problem
from common.strategies.from_optuna import Optuna, suggested

QUIET = RunOptions(quiet=True)


def branin(p: Mapping[str, Any]) -> dict[str, float]:
    x, y = p["x"], p["y"]
    b, c, t = 5.1 / (4 * math.pi**2), 5 / math.pi, 1 / (8 * math.pi)
    return {"v": (y - b * x**2 + c * x - 6) ** 2 + 10 * (1 - t) * math.cos(x) + 10}


A6 = np.array(
    [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
)
P6 = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)


def hartmann(p: Mapping[str, Any]) -> dict[str, float]:
    x = np.array([p[f"x{i}"] for i in range(6)])
    return {"v": float(-np.array([1, 1.2, 3, 3.2]) @ np.exp(-(A6 * (x - P6) ** 2).sum(axis=1)))}


def rosenbrock(p: Mapping[str, Any]) -> dict[str, float]:
    """Two or four dimensions, of which the second kind has the deeper valley."""
    x = [p["x0"], p["x1"], *((p["x2"], p["x3"]) if p["kind"] == "four" else ())]
    valley = sum(100 * (b - a * a) ** 2 + (1 - a) ** 2 for a, b in itertools.pairwise(x))
    return {"v": math.log10(1e-3 + valley) - (0.5 if p["kind"] == "four" else 0.0)}


def noisy(p: Mapping[str, Any]) -> dict[str, float]:
    digits = f"{p['x']:.17g}{p['y']:.17g}".encode()
    return {"v": branin(p)["v"] + 5 * float(np.random.default_rng(list(digits)).normal())}


def zdt1(p: Mapping[str, Any]) -> dict[str, float]:
    x = [p[f"x{i}"] for i in range(6)]
    g = 1 + 9 * sum(x[1:]) / 5
    return {"f": x[0], "g": g * (1 - math.sqrt(x[0] / g))}


UNIT6 = {f"x{i}": Float(0, 1) for i in range(6)}
PLANE = {"x": Float(-5, 10), "y": Float(0, 15)}
ROSENBROCK = {
    "kind": Choice("two", "four"), "x0": Float(-2, 2), "x1": Float(-2, 2),
    "x2": When(Float(-2, 2), kind="four"), "x3": When(Float(-2, 2), kind="four"),
}  # fmt: skip
FUNCTIONS: dict[str, tuple[Callable[[Mapping[str, Any]], dict[str, float]], dict[str, Any], tuple[str, ...]]] = {
    "Branin": (branin, PLANE, ("v",)),
    "Hartmann-6": (hartmann, UNIT6, ("v",)),
    "Rosenbrock, conditional": (rosenbrock, ROSENBROCK, ("v",)),
    "Branin, noisy": (noisy, PLANE, ("v",)),
    "ZDT1": (zdt1, UNIT6, ("f", "g")),
}
NAMED = {"tpe": "TPESampler", "cmaes": "CmaEsSampler", "nsga2": "NSGAIISampler"}


def quality(values: list[dict[str, float]], params: list[Mapping[str, Any]], name: str) -> float:
    """The best value; of the noisy function what it is without noise; of two objectives the undominated area."""
    if name == "ZDT1":
        left, height = 8.0, 8.0
        width = 0.0
        for f, g in sorted((v["f"], v["g"]) for v in values):
            if g < height:
                width += (1 - min(f, 1.0)) * (height - g)
                height = g
        return left - width
    best = min(range(len(values)), key=lambda i: values[i]["v"])
    return branin(params[best])["v"] if name == "Branin, noisy" else values[best]["v"]


def ours(name: str, strategy: Any, n: int, seed: int, batch: int) -> float:
    function, space, objectives = FUNCTIONS[name]
    study = search(
        lambda trial: function(trial.params), space, strategy=strategy, n_trials=n, minimize=objectives, seed=seed,
        workers=0, batch=batch, options=QUIET,
    )  # fmt: skip
    return quality([dict(t.values) for t in study.trials], [t.params for t in study.trials], name)


def alone(name: str, strategy: str, n: int, seed: int) -> float:
    """Optuna without us."""
    function, parts, objectives = FUNCTIONS[name]
    space = Space(parts)
    sampler = Optuna(NAMED[strategy]).made(Problem(space, dict.fromkeys(objectives, False), seed))
    study = optuna.create_study(directions=["minimize"] * len(objectives), sampler=sampler)
    values, params = [], []
    for _ in range(n):
        trial = study.ask()
        point: dict[str, Any] = {}
        for part_name, part in space.parts.items():
            if space.is_active(part_name, point):
                point[part_name] = suggested(trial, part_name, part)
        found = function(point)
        study.tell(trial, [found[objective] for objective in objectives])
        values.append(found)
        params.append(point)
    return quality(values, params, name)


def compare(n: int, seeds: int) -> str:
    rows = []
    for name, (_, space, objectives) in FUNCTIONS.items():
        flat = not any(isinstance(part, When) for part in space.values())
        ways = ["random", "sobol", "tpe", *(["cmaes"] if flat and len(objectives) == 1 else [])]
        ways += ["nsga2"] if len(objectives) > 1 else []
        for way in ways:
            one = [ours(name, way, n, seed, 1) for seed in range(seeds)]
            eight = [ours(name, way, n, seed, 8) for seed in range(seeds)] if way in NAMED else None
            theirs = [alone(name, way, n, seed) for seed in range(seeds)] if way in NAMED else None
            rows.append(
                {
                    "function": name, "strategy": way, "search(), one by one": _spread(one),
                    "rounds of 8": _spread(eight), "Optuna alone": _spread(theirs),
                }
            )  # fmt: skip
    head = circumstances("optuna", "cmaes", n_trials=n, seeds=seeds)
    return f"{head}\n\nMedians and ranges; smaller is better.\n\n{table(rows)}"


def _spread(values: list[float] | None) -> str:
    if values is None:
        return ""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def _optuna_worker(path: str, n: int, seconds: float) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    backend = optuna.storages.journal.JournalFileBackend(path)
    study = optuna.load_study(study_name="s", storage=optuna.storages.JournalStorage(backend))

    def objective(trial: Any) -> float:
        x = trial.suggest_float("x", 0, 1)
        time.sleep(seconds)
        return float(x)

    study.optimize(objective, callbacks=[optuna.study.MaxTrialsCallback(n, states=None)])


def processor_seconds() -> float:
    """Of this process and all that have ended of those that it started."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def optuna_seconds(n: int, workers: int, seconds: float, sampler: str) -> tuple[float, float]:
    """Wall and processor time of n trials on so many processes that share a journal file."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "journal.log")
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(path))
        optuna.create_study(study_name="s", storage=storage, sampler=getattr(optuna.samplers, sampler)(seed=0))
        context = multiprocessing.get_context("fork")
        processes = [context.Process(target=_optuna_worker, args=(path, n, seconds)) for _ in range(workers)]
        start, used = time.perf_counter(), processor_seconds()
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        return time.perf_counter() - start, processor_seconds() - used


def our_seconds(n: int, workers: int, seconds: float, strategy: Any) -> tuple[float, float]:
    def objective(trial: Any) -> float:
        time.sleep(seconds)
        return float(trial.params["x"])

    with tempfile.TemporaryDirectory() as folder:
        start, used = time.perf_counter(), processor_seconds()
        search(
            objective, {"x": Float(0, 1)}, strategy=strategy, n_trials=n, minimize="v", workers=workers,
            results=Path(folder) / "r", options=QUIET,
        )  # fmt: skip
        return time.perf_counter() - start, processor_seconds() - used


def overhead(per_worker: int, seconds: float, repeats: int) -> str:
    """What a trial costs beside its sleep: a long study less a short one, so that starts are left out."""
    rows = []
    for workers in (1, 2, 16):
        n, few = per_worker * workers, 4 * workers
        ways: dict[str, Callable[[int], tuple[float, float]]] = {
            "search(), random": lambda n, w=workers: our_seconds(n, w, seconds, "random"),
            "search(), tpe": lambda n, w=workers: our_seconds(n, w, seconds, Optuna("TPESampler")),
            "Optuna's journal, random": lambda n, w=workers: optuna_seconds(n, w, seconds, "RandomSampler"),
            "Optuna's journal, tpe": lambda n, w=workers: optuna_seconds(n, w, seconds, "TPESampler"),
        }  # type: ignore[dict-item]
        spent: dict[str, list[float]] = {way: [] for way in ways}
        used: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(repeats):  # the ways take turns
            for way, run in ways.items():
                long, short = run(n), run(few)
                ideal = seconds * (n - few) / workers
                spent[way].append((long[0] - short[0] - ideal) * workers / (n - few))
                used[way].append((long[1] - short[1]) / (n - few))
        for way, values in spent.items():
            rows.append({
                "workers": workers, "way": way, "trials": n,
                "ms of a worker beside its sleep": _milliseconds(values),
                "processor ms": _milliseconds(used[way]),
            })  # fmt: skip
    return circumstances("optuna", sleep=seconds, repeats=repeats) + "\n\n" + table(rows)


def _milliseconds(values: list[float]) -> str:
    return f"{1e3 * statistics.median(values):.1f} ({1e3 * min(values):.1f} to {1e3 * max(values):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description="Strategies of search(), and what a trial costs.")
    parser.add_argument("--n", type=int, default=60, help="trials of each search, or of each worker with --overhead")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--overhead", type=float, nargs="?", const=0.1, metavar="S", help="trials that sleep S seconds")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, help="keep the table in this file")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if arguments.overhead:
        publish(overhead(arguments.n, arguments.overhead, arguments.repeats), arguments.results)
    else:
        publish(compare(arguments.n, arguments.seeds), arguments.results)


if __name__ == "__main__":
    main()
