"""What an Optuna script finds under `python -m mpitune`, and whether its workers are busy, beside Optuna alone.

    python -m benchmarks.door found [--seeds 50 --n 30]  # best values with a window of 1 and of 8, and a rank test
    python -m benchmarks.door gp                         # near-duplicates among 16 open trials of a Gaussian process
    python -m benchmarks.door busy                       # how long 16 workers evaluate of the time that they have

What is searched is in `benchmarks/problems.py`. Optuna's 8 processes share a journal file; their trials, and only
theirs, sleep for 20 ms, so that eight are open. Trials of `busy` sleep, for times whose logarithms are normal.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from scipy.stats import mannwhitneyu

from benchmarks.machine import circumstances, load, publish, table
from benchmarks.problems import TASKS, Task, quality
from mpitune import RunOptions, Space
from mpitune.optimize.strategies.from_optuna import suggested
from mpitune.optuna import optimize

HERE = RunOptions(gpu="none", workers=0, quiet=True)
EIGHT = 8
NEAR, OPEN = 0.02, 16
Objective = Callable[[optuna.Trial], Any]


def objective_of(task: Task, seconds: float = 0.0) -> Objective:
    space = Space(task.space)

    def objective(trial: optuna.Trial) -> list[float]:
        point: dict[str, Any] = {}
        for name, part in space.parts.items():
            if space.is_active(name, point):
                point[name] = suggested(trial, name, part)
        time.sleep(seconds)
        found = task.evaluate(point)
        return [found[one] for one in task.objectives]

    return objective


def study_of(task: Task, sampler: optuna.samplers.BaseSampler, **more: Any) -> optuna.Study:
    return optuna.create_study(directions=["minimize"] * len(task.objectives), sampler=sampler, **more)


def best(study: optuna.Study, name: str, n: int) -> float:
    """The quality of the first n trials."""
    trials = study.trials[:n]
    assert all(trial.state.is_finished() for trial in trials)
    return quality(
        [dict(zip(TASKS[name].objectives, t.values, strict=True)) for t in trials], [t.params for t in trials], name
    )


def by_the_door(name: str, seed: int, n: int, window: int) -> float:
    study = study_of(TASKS[name], optuna.samplers.TPESampler(seed=seed))
    optimize(study, objective_of(TASKS[name]), n_trials=n, window=window, options=HERE)
    return best(study, name, n)


def alone(name: str, seed: int, n: int) -> float:
    study = study_of(TASKS[name], optuna.samplers.TPESampler(seed=seed))
    study.optimize(objective_of(TASKS[name]), n_trials=n)
    return best(study, name, n)


def journal(path: Path) -> Any:
    return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))


def one_of_eight(folder: Path, number: int, names: list[str], seeds: int, n: int, together: Any) -> None:
    """A process that takes part in all studies."""
    warnings.simplefilter("ignore")
    for k, name in enumerate(names):
        for seed in range(seeds):
            task, path = TASKS[name], folder / f"{k}-{seed}"
            sampler = optuna.samplers.TPESampler(seed=EIGHT * seed + number)
            if number == 0:
                study_of(task, sampler, storage=journal(path), study_name="s")
            together.wait()
            study = optuna.load_study(study_name="s", storage=journal(path), sampler=sampler)
            enough = optuna.study.MaxTrialsCallback(n, states=None)
            study.optimize(objective_of(task, 0.02), callbacks=[enough])
            together.wait()


def by_eight(names: list[str], seeds: int, n: int) -> dict[str, list[float]]:
    """The best values of studies by eight processes."""
    fork = multiprocessing.get_context("fork")
    together = fork.Barrier(EIGHT)
    with tempfile.TemporaryDirectory() as folder:
        given = [(Path(folder), number, names, seeds, n, together) for number in range(EIGHT)]
        processes = [fork.Process(target=one_of_eight, args=one) for one in given]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        return {
            name: [
                best(optuna.load_study(study_name="s", storage=journal(Path(folder) / f"{k}-{seed}")), name, n)
                for seed in range(seeds)
            ]
            for k, name in enumerate(names)
        }  # fmt: skip


def found(names: list[str], seeds: int, n: int) -> str:
    eight = by_eight(names, seeds, n)
    rows = []
    for name in names:
        theirs = [alone(name, seed, n) for seed in range(seeds)]
        one, many = ([by_the_door(name, seed, n, window) for seed in range(seeds)] for window in (1, EIGHT))
        rows.append({
            "function or table": name, "Optuna alone": _quartiles(theirs), "window 1": _quartiles(one),
            "p": f"{mannwhitneyu(one, theirs).pvalue:.2f}", "Optuna, 8 processes": _quartiles(eight[name]),
            "window 8": _quartiles(many), "p of these two": f"{mannwhitneyu(many, eight[name]).pvalue:.2f}",
        })  # fmt: skip
    head = circumstances("optuna", "scipy", n_trials=n, seeds=seeds, sampler="TPESampler()", load=load())
    return f"{head}\n\nMedians and quartiles; smaller is better. p: of the test of Mann and Whitney.\n\n{table(rows)}"


def _quartiles(values: list[float]) -> str:
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75))
    return f"{median:.3g} ({low:.3g} to {high:.3g})"


def near(study: optuna.Study) -> list[bool]:
    """Whether each proposal is close to one of the 15 before it; those left out that are drawn at random."""
    points = np.array([[trial.params[f"x{i}"] for i in range(6)] for trial in study.trials])
    return [
        bool((np.abs(points[k - OPEN + 1 : k] - points[k]).max(axis=1) < NEAR).any())
        for k in range(10 + OPEN, len(points))
    ]


def gp(seeds: int, n: int) -> str:
    import torch

    torch.set_num_threads(1)
    task, rows = TASKS["Hartmann-6"], []
    for way in (f"window {OPEN}", f"Optuna, {OPEN} threads"):
        duplicates, values, seconds = [], [], []
        for seed in range(seeds):
            study, began = study_of(task, optuna.samplers.GPSampler(seed=seed)), time.monotonic()
            if way[0] == "w":
                optimize(study, objective_of(task), n_trials=n, window=OPEN, options=HERE)
            else:
                study.optimize(objective_of(task, 0.2), n_trials=n, n_jobs=OPEN)
            seconds.append(time.monotonic() - began)
            duplicates.append(sum(near(study)))
            values.append(best(study, "Hartmann-6", n))
        of = f"near another, of {n - 10 - OPEN}"
        rows.append({
            "way": way, of: f"{np.mean(duplicates):.1f} ({min(duplicates)} to {max(duplicates)})",
            "best value": _quartiles(values), "seconds": f"{np.median(seconds):.0f}",
        })  # fmt: skip
    head = circumstances("optuna", "torch", n_trials=n, seeds=seeds, sampler="GPSampler()", load=load())
    return f"{head}\n\n{table(rows)}"


class Sleeping:
    """Trials that note when they begin, and how long they sleep."""

    def __init__(self, notes: str, mean: float):
        self._notes, self._mean = notes, mean

    def __call__(self, trial: optuna.Trial) -> float:
        x, begun = trial.suggest_float("x", 0, 1), time.monotonic()
        seconds = self._mean * random.Random(trial.number).lognormvariate(0, 0.3)
        time.sleep(seconds)
        with open(self._notes, "a") as file:
            file.write(f"{begun} {time.monotonic()}\n")
        return x


def busy(workers: int, mean: float, each: int, sampler: str) -> dict[str, Any]:
    """Which part of the workers' time trials run, from when all have begun until no trial is left to begin."""
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes"
        study = optuna.create_study(sampler=getattr(optuna.samplers, sampler)(seed=0))
        options = RunOptions(gpu="none", workers=workers, quiet=True)
        optimize(study, Sleeping(str(notes), mean), n_trials=each * workers, options=options)
        ran = np.array([[float(word) for word in line.split()] for line in notes.read_text().splitlines()])
    begins = np.sort(ran[:, 0])
    first, last = begins[workers - 1], begins[-1]
    spent = (np.minimum(ran[:, 1], last) - np.maximum(ran[:, 0], first)).clip(0).sum()
    return {
        "sampler": sampler, "workers": workers, "trials": len(ran), "mean sleep, s": mean,
        "busy": f"{spent / workers / (last - first):.1%}", "load": load(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="What an Optuna script finds under python -m mpitune.")
    parser.add_argument("what", choices=("found", "gp", "busy"))
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--n", type=int, default=30, help="trials of each study, or of each worker")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=1.0, help="that a trial sleeps")
    parser.add_argument("--results", type=Path, help="keep the table in this file")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if arguments.what == "busy":
        rows = [busy(arguments.workers, arguments.seconds, arguments.n, s) for s in ("RandomSampler", "TPESampler")]
        publish(f"{circumstances('optuna')}\n\n{table(rows)}", arguments.results)
    elif arguments.what == "gp":
        publish(gp(arguments.seeds, arguments.n), arguments.results)
    else:
        publish(found(arguments.tasks, arguments.seeds, arguments.n), arguments.results)


if __name__ == "__main__":
    main()
