"""What strategies of `search()` find, beside Optuna alone: the best value after so many trials, for ten seeds.

    python -m benchmarks.strategies [--figure docs/figures] [--results FILE]

Optuna alone is asked and told one trial after the other in one process: `search(window=1)` must find as good values
with its samplers, whose random numbers are others. A window of 8 shows what parallel trials cost in quality. What is
searched is in `benchmarks/problems.py`: five functions and two tables of real trainings.
"""

from __future__ import annotations

import argparse
import logging
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from benchmarks.machine import circumstances, publish, table
from benchmarks.problems import TASKS, quality
from mpitune import RunOptions, Space, When, search
from mpitune.figures.plotting import BLUE, GREEN, GREY, INK, ORANGE, RED, save, styled, subplots
from mpitune.optimize.strategies.from_optuna import suggested

QUIET = RunOptions(quiet=True)
NAMED = {"tpe": "TPESampler", "cmaes": "CmaEsSampler", "nsga2": "NSGAIISampler"}
COLOURS = {"random": GREY, "sobol": GREEN, "tpe": BLUE, "cmaes": ORANGE, "nsga2": RED}
Curves = dict[tuple[str, str, str], np.ndarray]  # (seed, trials) by task, strategy and who ran it
OURS, EIGHT, ALONE = "search(), one by one", "a window of 8", "Optuna alone"


def curve(values: list[dict[str, float]], params: list[Mapping[str, Any]], name: str) -> list[float]:
    """What is best after 1, 2, ... trials."""
    return [quality(values[:k], params[:k], name) for k in range(1, len(values) + 1)]


def ours(name: str, strategy: Any, n: int, seed: int, window: int) -> list[float]:
    task = TASKS[name]
    study = search(
        lambda trial: task.evaluate(trial.params), task.space, strategy=strategy, n_trials=n, minimize=task.objectives,
        seed=seed, workers=0, window=window, options=QUIET,
    )  # fmt: skip
    return curve([dict(t.values) for t in study.trials], [t.params for t in study.trials], name)


def alone(name: str, strategy: str, n: int, seed: int) -> list[float]:
    """Optuna without us."""
    task = TASKS[name]
    space = Space(task.space)
    sampler = getattr(optuna.samplers, NAMED[strategy])(seed=seed)
    study = optuna.create_study(directions=["minimize"] * len(task.objectives), sampler=sampler)
    values, params = [], []
    for _ in range(n):
        trial = study.ask()
        point: dict[str, Any] = {}
        for part_name, part in space.parts.items():
            if space.is_active(part_name, point):
                point[part_name] = suggested(trial, part_name, part)
        found = task.evaluate(point)
        study.tell(trial, [found[objective] for objective in task.objectives])
        values.append(found)
        params.append(point)
    return curve(values, params, name)


def measured(n: int, seeds: int) -> Curves:
    curves: Curves = {}
    for name, task in TASKS.items():
        flat = not any(isinstance(part, When) for part in task.space.values())
        several = len(task.objectives) > 1
        for way in ["random", "sobol", "tpe", *(["nsga2"] if several else ["cmaes"] if flat else [])]:
            curves[name, way, OURS] = np.array([ours(name, way, n, seed, 1) for seed in range(seeds)])
            if way in NAMED:
                curves[name, way, EIGHT] = np.array([ours(name, way, n, seed, 8) for seed in range(seeds)])
                curves[name, way, ALONE] = np.array([alone(name, way, n, seed) for seed in range(seeds)])
    return curves


def described(curves: Curves, n: int, seeds: int) -> str:
    rows = [
        {"function or table": name, "strategy": way}
        | {who: _spread(curves.get((name, way, who))) for who in (OURS, EIGHT, ALONE)}
        for name, way, who in curves if who == OURS
    ]  # fmt: skip
    pairs = [
        (found[:, -1], curves[name, way, ALONE][:, -1])
        for (name, way, who), found in curves.items() if who == OURS and way in NAMED
    ]  # fmt: skip
    better = sum(float(np.sum(one < other) + np.sum(one == other) / 2) for one, other in pairs)
    head = circumstances("optuna", "cmaes", n_trials=n, seeds=seeds)
    return (
        f"{head}\n\nMedians and ranges; smaller is better. search() one by one has found a better value than Optuna "
        f"alone in {better:g} of {len(pairs) * seeds} pairs of one seed (equal ones count half).\n\n{table(rows)}"
    )


def _spread(found: np.ndarray | None) -> str:
    if found is None:
        return ""
    last = found[:, -1].tolist()
    return f"{statistics.median(last):.3g} ({min(last):.3g} to {max(last):.3g})"


@styled()
def draw(curves: Curves, folder: Path) -> None:
    """A panel for each task: the median of the best value against trials, and the range of all seeds."""
    figure, panels = subplots(2, 4, size=(11.0, 5.6))
    for axes, name in zip(panels.flat, TASKS, strict=False):
        top = -np.inf
        for (task, way, who), found in curves.items():
            if task != name or who == EIGHT:
                continue
            median, trials = np.median(found, axis=0), np.arange(1, found.shape[1] + 1)
            if who == ALONE:
                axes.plot(trials, median, ":", color=INK, linewidth=1.2)
                continue
            top = max(top, float(median[min(2, len(median) - 1)]))
            axes.plot(trials, median, color=COLOURS[way], linewidth=1.6)
            axes.fill_between(trials, found.min(axis=0), found.max(axis=0), color=COLOURS[way], alpha=0.1, linewidth=0)
        low = min(float(found.min()) for (task, _, _), found in curves.items() if task == name)
        axes.set(title=name, ylim=(low - 0.05 * (top - low), top), xlabel="trials")
    for axes in panels[:, 0]:
        axes.set_ylabel("best value so far")
    legend = panels.flat[len(TASKS)]
    legend.set_axis_off()
    for way, colour in COLOURS.items():
        legend.plot([], [], color=colour, label=way)
    legend.plot([], [], ":", color=INK, label="Optuna alone, the same sampler")
    legend.legend(loc="center left", title="medians; shaded: the range of all seeds", alignment="left")
    save(figure, folder, "strategies")


def main() -> None:
    parser = argparse.ArgumentParser(description="What strategies of search() find, beside Optuna alone.")
    parser.add_argument("--n", type=int, default=50, help="trials of each search")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--figure", type=Path, metavar="FOLDER", help="draw strategies.svg and .png there")
    parser.add_argument("--results", type=Path, help="keep the table in this file")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    curves = measured(arguments.n, arguments.seeds)
    publish(described(curves, arguments.n, arguments.seeds), arguments.results)
    if arguments.figure:
        draw(curves, arguments.figure)


if __name__ == "__main__":
    main()
