"""What strategies of `search()` are compared on: five functions, and two tables of real trainings.

The tables are results of the two programs (commit b0c6b34f has what made tables of their folders):

    python -m mnist_svm --data DATA --train-size 5000 --gpu none --workers 1 --results svm 24
    python -m mnist_nn --dataset digits --folds 3 --epochs 5 --max-channels 32 --max-hidden-layer 128 --gpu none \\
        --workers 1 --results networks 1 500

A strategy may propose any point, a table has some: the answer is that of the nearest one, each range being one long.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import math
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpitune import Choice, Float, Int, When

TABLES = Path(__file__).with_name("tables")
SVM, NETWORKS = TABLES / "svm_mnist_5000.csv.gz", TABLES / "networks_digits_500.csv.gz"
VALIDATED = 1000  # images of each fold of the first


class Task(NamedTuple):
    """A function of a point, the space that it is searched in, and the names of its values, to be minimized."""

    evaluate: Callable[[Mapping[str, Any]], dict[str, float]]
    space: dict[str, Any]
    objectives: tuple[str, ...] = ("v",)


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


@cache
def svm_errors(path: Path = SVM) -> np.ndarray:
    """Fraction of each fold that is wrong: float64 (gamma, C, fold), both parameters ascending."""
    rows = read_table(path)
    folds = [name for name in rows[0] if name.startswith("fold")]
    wrong = np.array([[float(row[name]) for name in folds] for row in rows]) / VALIDATED
    side = math.isqrt(len(rows))
    return wrong.reshape(side, side, len(folds))


def svm(p: Mapping[str, Any]) -> dict[str, float]:
    """The cross-validated error at a point of the grid."""
    return {"v": float(svm_errors()[p["gamma"], p["C"]].mean())}


@cache
def networks() -> tuple[np.ndarray, np.ndarray]:
    """The points of the trained networks, (n, 5), each range being one long; their cross-validated losses (n,)."""
    rows = read_table(NETWORKS)
    points = np.array([_scaled({name: float(row[name]) for name in NETWORK}) for row in rows])
    return points, np.array([float(row["loss"]) for row in rows])


def network(p: Mapping[str, Any]) -> dict[str, float]:
    """The cross-validated loss of the trained network that is nearest."""
    points, losses = networks()
    return {"v": float(losses[np.argmin(((points - _scaled(p)) ** 2).sum(axis=1))])}


def _scaled(p: Mapping[str, Any]) -> list[float]:
    found = []
    for name, part in NETWORK.items():
        low, high, value = (math.log(v) if part.log else v for v in (part.low, part.high, p[name]))
        found.append((value - low) / (high - low))
    return found


UNIT6 = {f"x{i}": Float(0, 1) for i in range(6)}
PLANE = {"x": Float(-5, 10), "y": Float(0, 15)}
ROSENBROCK = {
    "kind": Choice("two", "four"), "x0": Float(-2, 2), "x1": Float(-2, 2),
    "x2": When(Float(-2, 2), kind="four"), "x3": When(Float(-2, 2), kind="four"),
}  # fmt: skip
GRID = {"C": Int(0, 23), "gamma": Int(0, 23)}  # places of values that are even in their logarithm
NETWORK: dict[str, Any] = {
    "n_conv_layer": Int(1, 32), "kernel_size": Int(2, 8), "n_hidden_layer": Int(1, 128),
    "learning_rate": Float(1e-5, 1e-1, log=True), "momentum": Float(1e-2, 1, log=True),
}  # fmt: skip
TASKS = {
    "Branin": Task(branin, PLANE),
    "Hartmann-6": Task(hartmann, UNIT6),
    "Rosenbrock, conditional": Task(rosenbrock, ROSENBROCK),
    "Branin, noisy": Task(noisy, PLANE),
    "ZDT1": Task(zdt1, UNIT6, ("f", "g")),
    "SVM, MNIST 5,000": Task(svm, GRID),
    "networks, digits": Task(network, NETWORK),
}


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


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of a table of trainings."""
    with gzip.open(path, "rt", newline="") as file:
        return list(csv.DictReader(file))
