"""How fast the shared solver iterates on a device, measured: `python -m mpitune doctor --benchmark`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from mpitune.devices.devices import free_memory
from mpitune.devices.rates import NO_TIME, Budget
from mpitune.svm import choose_plan, prepare, solve_gamma, squared_distances, warm_up

SIZES = (1_000, 4_000, 8_000)  # samples; each of ten binary problems, one-vs-rest, has all of them
CLASSES, FEATURES, GAMMA, PENALTIES, FOLDS = 10, 20, 0.02, (0.1, 1.0, 10.0), 2
ASSUMED = "10 us"  # of an iteration on a GPU, see `mpitune.svm.cuda.grid.MAX_ITER`


def measured(kind: str, deadline: str = "inf", largest: str = "8000") -> Iterator[dict[str, Any]]:
    """Measured rates of a device, for `mpitune.devices.rates`: after each measurement all that is known so far.

    Args:
        kind: "cpu" or "cuda", the device that this process sees.
        deadline: of `mpitune.devices.rates.Budget`; what would take longer is left out, but for the smallest size.
        largest: samples at most.
    """
    budget, rows = Budget(float(deadline)), []
    found: dict[str, float] = {}
    before, spent = 0, 0.0  # samples, seconds
    solve, clock = (_on_gpu(), time.perf_counter) if kind == "cuda" else (_on_cpu(), time.process_time)
    for n in [size for size in SIZES if size <= int(largest)] or [int(largest)]:
        if found and not budget.suffices(spent * (n / before) ** 2):
            rows.append((f"{n} samples", NO_TIME, ""))
            yield {"rows": rows, "rates": {"iterations_per_second": found}}
            break
        if kind == "cpu" and 24 * n**2 > free_memory():
            break
        x, y, folds = _problem(n)
        start = clock()
        iterations = solve(x, y, folds)
        before, spent = n, clock() - start
        found[str(n)] = iterations / spent
        paths = CLASSES * FOLDS
        rows.append((f"{n} samples, {paths} paths", f"{iterations / spent / 1e3:.4g} thousand iterations a second", ""))
        if kind == "cuda":
            of_one = 1e6 * spent * paths / iterations
            rows.append((f"{n} samples, one of {paths} paths", f"{of_one:.3g} us an iteration", ASSUMED))
        yield {"rows": rows, "rates": {"iterations_per_second": found}}


def _problem(n: int) -> tuple[np.ndarray, np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    """Clouds that overlap, and folds of which only a few samples are left out: their answers are not the point."""
    y = np.arange(n) % CLASSES
    x = np.random.default_rng(n).normal(size=(n, FEATURES)) + 1.5 * np.eye(CLASSES, FEATURES)[y]
    everything = np.arange(n)
    return x.astype(np.float32), y, [(everything[everything % 97 != k], everything[k::97]) for k in range(FOLDS)]


def _on_cpu() -> Any:
    warm_up()  # compiles

    def solve(x: np.ndarray, y: np.ndarray, folds: Any) -> int:
        samples = prepare(x, y)
        plan = choose_plan(samples, "ovr", n_points=len(PENALTIES) * FOLDS, memory=free_memory() // 2)
        distances = squared_distances(samples) if plan.distances else None
        return _total(
            solve_gamma(samples, GAMMA, penalties=list(PENALTIES), folds=folds, plan=plan, distances=distances)
        )

    return solve


def _on_gpu() -> Any:
    from mpitune.svm.cuda import Gpu, Loaded, solve_gammas

    device = Gpu()

    def solve(x: np.ndarray, y: np.ndarray, folds: Any) -> int:
        (grid,) = solve_gammas(Loaded(device, prepare(x, y)), [GAMMA], list(PENALTIES), folds, "ovr")
        return _total(grid)

    solve(*_problem(50))  # compiles
    return solve


def _total(grid: Iterable[Iterable[Any]]) -> int:
    """Iterations of all points."""
    return int(sum(point.iterations for fold in grid for point in fold))
