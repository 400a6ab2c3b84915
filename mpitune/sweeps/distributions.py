"""The distributions of a sweep file as parts of a space. They draw what W&B's own code does, its package `sweeps`."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from scipy.special import ndtri

from mpitune.errors import UsageError, mended, named
from mpitune.optimize.spaces import Choice, Float, Int
from mpitune.optimize.spaces.parameters import Quantile, shown
from mpitune.optimize.spaces.reading import Constant

EDGE = 1e-9  # what has no ends is drawn from this quantile to that of 1 - EDGE
# The quantile function of each distribution that is no part of its own.
QUANTILES: dict[str, Callable[..., float]] = {
    "uniform": lambda u, min, max: min + u * (max - min),
    "log_uniform": lambda u, min, max: math.exp(min + u * (max - min)),
    "log_uniform_values": lambda u, min, max: min ** (1 - u) * max**u,
    "normal": lambda u, mu, sigma: mu + sigma * ndtri(u),
    "log_normal": lambda u, mu, sigma: math.exp(mu + sigma * ndtri(u)),
}
# What a parameter of each may have, with its default; None: it must be there.
KINDS: dict[str, dict[str, Any]] = {
    "constant": {"value": None}, "categorical": {"values": None},
    "categorical_w_probabilities": {"values": None, "probabilities": None},
    **{kind: {"min": None, "max": None} for kind in ("int_uniform", "uniform", "log_uniform", "log_uniform_values")},
    **{f"q_{kind}": {"min": None, "max": None, "q": 1.0} for kind in ("uniform", "log_uniform", "log_uniform_values")},
    **{kind: {"mu": 0.0, "sigma": 1.0} for kind in ("normal", "log_normal")},
    **{f"q_{kind}": {"mu": 0.0, "sigma": 1.0, "q": 1.0} for kind in ("normal", "log_normal")},
}  # fmt: skip
IN_GRIDS = ("constant", "categorical", "int_uniform", "q_uniform")


@dataclass(frozen=True, repr=False)
class QuantizedDraw(Quantile):
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


def part_of(keys: Mapping[str, Any], method: str) -> Any:
    """The part of a space that a parameter of a sweep file is. Raises UsageError."""
    if (kind := keys.get("distribution", _kind(keys))) not in KINDS:
        raise UsageError(f"its distribution is {kind!r:.100}: give one of {named(KINDS)}")
    arguments = {**KINDS[kind], **keys}
    arguments.pop("distribution", None)
    if unknown := [name for name in arguments if name not in KINDS[kind]]:
        raise UsageError(f"it has {unknown[0]!r}: {mended(unknown[0], KINDS[kind])}")
    if missing := [name for name, value in KINDS[kind].items() if value is None and name not in keys]:
        raise UsageError(f"it has no {missing[0]}: {kind} needs {named(missing)}")
    if method == "grid" and kind not in IN_GRIDS:
        raise UsageError("it has no grid: give values, int_uniform or q_uniform, or method: random")
    if kind == "constant":
        return Constant(arguments["value"])
    if kind.startswith("categorical"):
        if not isinstance(values := arguments["values"], list) or not values:
            raise UsageError(f"values is {shown(values)}: give a list with one value or more")
        if kind == "categorical":
            return Choice(values)
        weights = arguments["probabilities"]
        numbers = isinstance(weights, list) and all(isinstance(weight, int | float) for weight in weights)
        right = numbers and len(weights) == len(values) and min(weights) >= 0 and math.isclose(sum(weights), 1)
        if method == "bayes" or not right:
            raise UsageError("give a probability for each value, 1 together, and method: random")
        return Weighted(values, weights)
    for name, value in arguments.items():
        least = name in ("q", "sigma") or kind.endswith("values")
        if not isinstance(value, int | float) or isinstance(value, bool) or (least and value <= 0):
            raise UsageError(f"{name} is {shown(value)}: give a number" + " above 0" * least)
    if kind.startswith(("q_", "normal", "log_normal")):
        q = arguments.pop("q", None)
        made = QuantizedDraw(0.0, 1.0, name=kind.removeprefix("q_"), arguments=tuple(sorted(arguments.items())), q=q)
        return replace(made, low=made.at(0.0), high=made.at(1.0))
    low, high = arguments["min"], arguments["max"]
    if kind == "log_uniform":
        low, high = math.exp(low), math.exp(high)
    return Int(low, high) if kind == "int_uniform" else Float(float(low), float(high), log="log" in kind)


def _kind(keys: Mapping[str, Any]) -> str:
    """The distribution that a parameter has by its keys."""
    if "value" in keys or "values" in keys:
        return "constant" if "value" in keys else "categorical" + "_w_probabilities" * ("probabilities" in keys)
    return "int_uniform" if all(isinstance(keys.get(end, 0), int) for end in ("min", "max")) else "uniform"
