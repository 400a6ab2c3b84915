"""The work that racing spares on a grid with all folds known, and whether it finds the same point.

    python -m benchmarks.racing benchmarks/tables/svm_mnist_5000.csv.gz          # 24 x 24 x 5, 5,000 images
    python -m benchmarks.racing benchmarks/results/svm_published_ovo.md          # the same grid, 60,000 images
    python -m benchmarks.racing DIR                                              # results folder of any mnist_svm

The race is replayed on the table. It is repeated with the folds in many other orders, since the first folds are chance.
The table compares the share of orders that keep the winner of all folds with the confidence that was asked for.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.machine import circumstances, publish, table
from benchmarks.problems import svm_errors
from mpitune.optimize.strategies.racing import Race


def raced(losses: np.ndarray, confidence: float) -> tuple[int, int]:
    """(winner, fits) of a race of these candidates; losses: (candidates, folds)."""
    race = Race(range(len(losses)), losses.shape[1], confidence=confidence)
    fits = 0
    seen = np.full(losses.shape, np.nan)
    while pairs := race.next_folds():
        fits += len(pairs)
        for number, fold in pairs:
            seen[number, fold] = losses[number, fold]
            race.tell(number, float(losses[number, fold]))
    return int(np.nanargmin(seen.mean(axis=1))), fits


def errors_of(path: Path) -> np.ndarray:
    """The errors of every fold of a grid: float64 (folds, gamma, C)."""
    if path.is_dir():
        return np.load(path / "validation_error.npy")
    if path.suffix == ".gz":
        return svm_errors(path).transpose(2, 0, 1)
    # The last table of `benchmarks.svm_published`: gamma, fold, and per cent for each C.
    rows = [line.strip("| \n").split("|") for line in path.read_text().rpartition("Validation error")[2].splitlines()]
    numbers = np.array([[float(cell) for cell in row] for row in rows[4:]])
    folds = int(numbers[:, 1].max()) + 1
    return numbers[:, 2:].reshape(-1, folds, numbers.shape[1] - 2).swapaxes(0, 1) / 100


def main() -> None:
    parser = argparse.ArgumentParser(description="Racing of folds, replayed on a grid of mnist_svm.")
    parser.add_argument("grid", type=Path, help="table of a grid, or results folder of mnist_svm")
    parser.add_argument("--orders", type=int, default=100, help="orders of the folds")
    parser.add_argument("--results", type=Path, help="keep the table in this file")
    arguments = parser.parse_args()
    errors = errors_of(arguments.grid)
    losses = errors.reshape(len(errors), -1).T
    means = losses.mean(axis=1)
    rows = []
    for confidence in (0.9, 0.95, 0.99):
        rng = np.random.default_rng(0)  # the same orders for each
        found = [raced(losses[:, rng.permutation(len(errors))], confidence) for _ in range(arguments.orders)]
        same = [means[winner] == means.min() for winner, _ in found]
        spared = [1 - fits / losses.size for _, fits in found]
        excess = [means[winner] - means.min() for winner, _ in found]
        rows.append(
            {
                "confidence": confidence, "fits spared": f"{np.median(spared):.1%}",
                "lowest to highest": f"{min(spared):.1%} to {max(spared):.1%}",
                "a best point of all folds": f"{np.mean(same):.0%} of the orders",
                "largest excess of the error": f"{max(excess):.4f}",
            }
        )  # fmt: skip
    shape = " x ".join(map(str, errors.shape[1:]))
    publish(circumstances(grid=f"{shape} x {len(errors)} folds") + "\n\n" + table(rows), arguments.results)


if __name__ == "__main__":
    main()
