"""The distributions of a sweep file as parts of a space. They draw what W&B's own code does, its package `sweeps`."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from scipy.special import betaincinv, ndtri

from mpitune.errors import UsageError
from mpitune.optimize.spaces import Choice, Float, Int
from mpitune.optimize.spaces.parameters import Quantile
from mpitune.optimize.spaces.reading import Constant

EDGE = 1e-9  # what has no ends is drawn from this quantile to that of 1 - EDGE
# The quantile function of each distribution that is no part of its own.
QUANTILES: dict[str, Callable[..., float]] = {
    "uniform": lambda u, min, max: min + u * (max - min),
    "log_uniform": lambda u, min, max: math.exp(min + u * (max - min)),
    "log_uniform_values": lambda u, min, max: min ** (1 - u) * max**u,
    "normal": lambda u, mu, sigma: mu + sigma * ndtri(u),
    "log_normal": lambda u, mu, sigma: math.exp(mu + sigma * ndtri(u)),
    "beta": lambda u, a, b: betaincinv(a, b, u),
}
IN_GRIDS = ("constant", "categorical", "int_uniform", "q_uniform")


@dataclass(frozen=True, repr=False)
class Drawn(Quantile):
    """A number of one of QUANTILES, with q a multiple of it: a whole number where q is one."""

    name: str = ""
    arguments: tuple[tuple[str, float], ...] = ()
    q: float | None = None

    def __repr__(self) -> str:
        return f"Quantile({', '.join([self.name, *(f'{n}={value}' for n, value in self.arguments)])}, q={self.q})"

    def at(self, u: float) -> Any:
        value = float(QUANTILES[self.name](min(1 - EDGE, max(EDGE, u)), **dict(self.arguments)))
        if self.q is None:
            return value
        rounded = float(np.round(value / self.q) * self.q)
        return int(rounded) if isinstance(self.q, int) else rounded

    def values(self, n: int | None) -> list[Any]:
        """Those of a q_uniform in a grid; as W&B's, without the highest."""
        ends = dict(self.arguments)
        return np.arange(ends["min"], ends["max"], self.q).tolist()


class Weighted(Choice):
    """One of several things, each with its probability."""

    def __init__(self, options: list[Any], probabilities: list[float]):
        self._ends = list(accumulate(probabilities))
        super().__init__(options)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, up to {self._ends})"

    def at(self, u: float) -> Any:
        return self.labels[min(len(self.labels) - 1, bisect_right(self._ends, u))]


def part_of(kind: str, keys: Mapping[str, Any], method: str) -> Any:
    """The part of a space that a parameter of a sweep file is. Raises UsageError."""
    arguments = {name: value for name, value in keys.items() if name != "distribution"}
    if method == "grid" and kind not in IN_GRIDS:
        raise UsageError("it has no grid: give values, int_uniform or q_uniform, or method: random")
    if kind == "categorical_w_probabilities":
        values, weights = arguments["values"], arguments["probabilities"]
        if method == "bayes" or len(values) != len(weights) or not math.isclose(sum(weights), 1):
            raise UsageError("give a probability for each value, 1 together, and method: random")
        return Weighted(values, weights)
    if kind in ("constant", "categorical"):
        return Constant(arguments["value"]) if kind == "constant" else Choice(arguments["values"])
    if kind.startswith(("q_", "beta", "normal", "log_normal")):
        q = arguments.pop("q", None)
        made = Drawn(0.0, 1.0, name=kind.removeprefix("q_"), arguments=tuple(sorted(arguments.items())), q=q)
        return replace(made, low=made.at(0.0), high=made.at(1.0))
    low, high = arguments["min"], arguments["max"]
    if kind == "inv_log_uniform":  # the inverse of such a number is one as well
        low, high = -high, -low
    if kind.endswith("log_uniform"):
        low, high = math.exp(low), math.exp(high)
    return Int(low, high) if kind == "int_uniform" else Float(float(low), float(high), log="log" in kind)
