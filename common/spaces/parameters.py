"""What one parameter may be: a range of numbers, or one of several things."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from common.errors import UsageError
from common.settings import without_address
from common.trial import Parameter

_PLAIN = (bool, int, float, str)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True)
class Float:
    """A real number.

    Attributes:
        low, high: the ends of its range, which belong to it.
        log: its logarithm is drawn evenly.
        step: it is one of low, low + step, low + 2 step, ...
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def __post_init__(self) -> None:
        _check_range(self)
        if self.step is not None and (not _is_number(self.step) or self.step <= 0):
            raise UsageError(f"{self}: give a step above 0")
        if self.log and self.step is not None:
            raise UsageError(f"{self}: log and step exclude each other")

    def at(self, u: float) -> float:
        """The value at u in [0, 1)."""
        if self.step is not None:
            n = math.floor((self.high - self.low) / self.step * (1 + 1e-12)) + 1
            return float(min(self.high, self.low + self.step * min(n - 1, int(u * n))))
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return float(min(self.high, max(self.low, math.exp(low + u * (high - low)))))
        return float(min(self.high, self.low + u * (self.high - self.low)))

    def values(self, n: int | None) -> list[Parameter]:
        """All values, or n even ones from low to high. Raises UsageError for a range without a number."""
        if n is None and self.step is None:
            raise UsageError(f"a grid needs to know how many values of {self} to try: give a step, or Grid(points=5)")
        if n is None:
            assert self.step is not None
            n = math.floor((self.high - self.low) / self.step * (1 + 1e-12)) + 1
            return [float(min(self.high, self.low + self.step * i)) for i in range(n)]
        return [self._even(i / (n - 1) if n > 1 else 0.5) for i in range(n)]

    def _even(self, u: float) -> float:
        whole = Float(self.low, self.high, self.log)
        return self.high if u == 1 else self.low if u == 0 else whole.at(u)

    def takes(self, value: object) -> bool:
        return _is_number(value) and self.low <= float(value) <= self.high  # type: ignore[arg-type]

    def drawn(self, value: Any) -> float:
        return float(value)


@dataclass(frozen=True)
class Int:
    """A whole number from low to high, both included; log and step as for `Float`."""

    low: int
    high: int
    log: bool = False
    step: int = 1

    def __post_init__(self) -> None:
        _check_range(self)
        if any(not isinstance(n, int) for n in (self.low, self.high, self.step)) or self.step < 1:
            raise UsageError(f"{self}: give whole numbers, and a step of at least 1")
        if self.log and self.step != 1:
            raise UsageError(f"{self}: log and step exclude each other")

    def at(self, u: float) -> int:
        """The value at u in [0, 1)."""
        if self.log:
            low, high = math.log(self.low - 0.5), math.log(self.high + 0.5)
            return min(self.high, max(self.low, round(math.exp(low + u * (high - low)))))
        n = (self.high - self.low) // self.step + 1
        return self.low + self.step * min(n - 1, int(u * n))

    def values(self, n: int | None) -> list[Parameter]:
        """All values, or at most n of them, evenly."""
        if n is None:
            return list(range(self.low, self.high + 1, self.step))
        evenly = Float(self.low, self.high, self.log).values(n)
        return list(dict.fromkeys(self.low + round((float(v) - self.low) / self.step) * self.step for v in evenly))

    def takes(self, value: object) -> bool:
        whole = _is_number(value) and float(value).is_integer()  # type: ignore[arg-type]
        return whole and self.low <= int(value) <= self.high  # type: ignore[call-overload]

    def drawn(self, value: Any) -> int:
        return int(value)


class Choice:
    """One of several things, of any type. What a journal cannot hold is named there by its `__name__` or its repr."""

    def __init__(self, *options: Any):
        self.options = options
        if not options:
            raise UsageError(f"{type(self).__name__}(): give at least one option")
        self.labels = [label_of(option) for option in options]
        twice = next((x for i, x in enumerate(self.labels) if _among(x, self.labels[:i])), None)
        if twice is not None:
            raise UsageError(f"{self!r}: {twice!r} is there twice, keep one")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.labels))})"

    def at(self, u: float) -> Parameter:
        """The option at u in [0, 1), as a journal holds it."""
        return self.labels[min(len(self.labels) - 1, int(u * len(self.labels)))]

    def values(self, n: int | None) -> list[Parameter]:
        return list(self.labels)

    def takes(self, value: object) -> bool:
        return _among(label_of(value), self.labels)

    def drawn(self, value: Any) -> Parameter:
        return label_of(value)

    def given(self, label: Parameter) -> Any:
        """The option that a journal calls so."""
        return next(o for o, name in zip(self.options, self.labels, strict=True) if same(name, label))


class Ordinal(Choice):
    """One of several things whose order means something: `Ordinal(16, 64, 512)`."""


Part = Float | Int | Choice


def _check_range(part: Float | Int) -> None:
    if not _is_number(part.low) or not _is_number(part.high):
        raise UsageError(f"{part}: give finite numbers as low and high")
    if part.low >= part.high:
        raise UsageError(f"{part}: low must be below high (a constant needs no range)")
    if part.log and part.low <= 0:
        raise UsageError(f"{part}: the logarithm needs a low above 0")


def label_of(option: Any) -> Parameter:
    """How a journal calls an option of a choice."""
    if type(option) in _PLAIN and not (isinstance(option, float) and not math.isfinite(option)):
        return option
    return str(getattr(option, "__name__", None) or without_address(repr(option)))[:200]


def same(one: Any, other: Any) -> bool:
    """Whether two labels are equal, where True is not 1."""
    return type(one) is type(other) and bool(one == other)


def _among(label: Any, labels: Iterable[Any]) -> bool:
    return any(same(label, other) for other in labels)
