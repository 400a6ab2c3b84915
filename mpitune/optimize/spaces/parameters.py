"""What one parameter may be: a range of numbers, or one of several things."""

from __future__ import annotations

import math
import numbers
from bisect import bisect_left
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np

from mpitune.errors import UsageError
from mpitune.identity import NO_IDENTITY, for_people, label_of
from mpitune.trial import Parameter, exact

GRID = "mpitune.strategies.Grid(points=5)"
MOST_OPTIONS = 10_000_000  # values of one range in a grid
CHARACTERS_SHOWN = 100  # characters of a value in a message


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def shown(value: object) -> str:
    """A value in a message: its repr, cut where it is long."""
    text = repr(value)
    return text if len(text) <= CHARACTERS_SHOWN else f"{text[:CHARACTERS_SHOWN]}..."


class _Range:
    """A range from low to high, which belong to it. What it takes beside these two has a name."""

    low: Any
    high: Any
    log: bool
    step: Any

    def __new__(cls, *ends: Any, **named: Any) -> Self:
        if len(ends) > 2:
            name = "log" if isinstance(ends[2], bool) else "step"
            raise UsageError(f"{cls.__name__}{ends}: give all but the ends by name, such as {name}={ends[2]!r}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name in ("low", "high"):  # numbers of NumPy and fractions become Python's
            if _is_number(end := getattr(self, name)) and not isinstance(end, int | float):
                object.__setattr__(self, name, int(end) if isinstance(end, numbers.Integral) else float(end))
        if not _is_number(self.low) or not _is_number(self.high):
            raise UsageError(f"{self}: give finite numbers as low and high")
        if self.low >= self.high:
            raise UsageError(f"{self}: low must be below high (a constant needs no range)")
        if not isinstance(self.log, bool | np.bool_):
            raise UsageError(f"{self}: give log=True or log=False")
        object.__setattr__(self, "log", bool(self.log))
        if self.log and self.low <= 0:
            raise UsageError(f"{self}: the logarithm needs a low above 0")
        if self.log and self.step != type(self).step:
            raise UsageError(f"{self}: log and step exclude each other")

    def takes(self, value: object) -> bool:
        """Whether it is a number of the range, also beside its steps."""
        return _is_number(value) and self.low <= float(value) <= self.high  # type: ignore[arg-type]

    def _require_few(self, n: int) -> None:
        if n > MOST_OPTIONS:
            raise UsageError(f"a grid would have {n} values of {self}: give fewer, such as strategy={GRID}")


@dataclass(frozen=True)
class Float(_Range):
    """A real number.

    Attributes:
        low, high: the ends of its range, which belong to it.
        log: its logarithm is drawn evenly.
        step: it is one of low, low + step, low + 2 step, ...

    Example:
        >>> round(Float(1e-5, 1e-1, log=True).at(0.5), 9)  # half way between the logarithms
        0.001
        >>> Float(0, 1, step=0.25).values(None)
        [0.0, 0.25, 0.5, 0.75, 1.0]
    """

    low: float
    high: float
    _: KW_ONLY
    log: bool = False
    step: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step is not None and (not _is_number(self.step) or self.step <= 0):
            raise UsageError(f"{self}: give a step above 0")

    @property
    def n_steps(self) -> int:
        """How many values there are with a step."""
        assert self.step is not None
        return math.floor((self.high - self.low) / self.step * (1 + 1e-12)) + 1

    def at(self, u: float) -> float:
        """The value at u in [0, 1)."""
        if self.step is not None:
            return self._after(min(self.n_steps - 1, int(u * self.n_steps)))
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return float(min(self.high, max(self.low, math.exp(low + u * (high - low)))))
        return float(min(self.high, self.low + u * (self.high - self.low)))

    def _after(self, n: int) -> float:
        """The value after n steps."""
        assert self.step is not None
        return float(min(self.high, self.low + self.step * n))

    def values(self, n: int | None) -> list[Parameter]:
        """All values, or n even ones from low to high. Raises UsageError for a range without a number."""
        if n is None and self.step is None:
            raise UsageError(f"a grid needs to know how many values of {self} to try: give a step, or strategy={GRID}")
        self._require_few(self.n_steps if n is None else n)
        if n is None:
            return [self._after(i) for i in range(self.n_steps)]
        whole = Float(self.low, self.high, log=self.log)
        evenly = [self.low, *(whole.at(i / (n - 1)) for i in range(1, n - 1)), self.high] if n > 1 else [whole.at(0.5)]
        return list(dict.fromkeys(map(self.on_step, evenly)))

    def on_step(self, value: float) -> float:
        """The value itself where it is on a step up to rounding, else the nearest that is."""
        if self.step is None:
            return value
        nearest = self._after(min(self.n_steps - 1, round((value - self.low) / self.step)))
        return value if abs(value - nearest) < 1e-9 * self.step else nearest

    def drawn(self, value: Any) -> float:
        return float(value)


class Quantile(Float):
    """A number of any distribution: `at(u)` is its quantile. Samplers of Optuna draw u from 0 to 1, both included."""

    def place(self, value: float) -> float:
        """The least u that has this value."""
        return bisect_left(range(2**40), value, key=lambda n: self.at(n / 2**40)) / 2**40

    def drawn(self, value: Any) -> Any:
        return value


@dataclass(frozen=True)
class Int(_Range):
    """A whole number from low to high, both included; log and step as for `Float`.

    Example:
        >>> Int(8, 32, step=8).values(None)
        [8, 16, 24, 32]
    """

    low: int
    high: int
    _: KW_ONLY
    log: bool = False
    step: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(not isinstance(n, int) for n in (self.low, self.high, self.step)) or self.step < 1:
            raise UsageError(f"{self}: give whole numbers, and a step of at least 1")

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
            self._require_few((self.high - self.low) // self.step + 1)
            return list(range(self.low, self.high + 1, self.step))
        return list(dict.fromkeys(self.on_step(float(v)) for v in Float(self.low, self.high, log=self.log).values(n)))

    def on_step(self, value: float) -> int:
        """The nearest value that is on a step."""
        nearest = self.low + round((value - self.low) / self.step) * self.step
        return min(self.low + (self.high - self.low) // self.step * self.step, nearest)

    def takes(self, value: Any) -> bool:
        """Whether it is a whole number of the range, also beside its steps."""
        return super().takes(value) and float(value).is_integer()

    def drawn(self, value: Any) -> int:
        return int(value)


class Choice:
    """One of several things, of any type; type and content tell them apart, so 1, 1.0, True and "1" are four.

    What a journal cannot hold has a text there, see `mpitune.identity`: None, tuples, lists and dicts of plain values
    their repr, all else its name or repr, and digits of its content. A list or tuple that stands alone holds the
    options: `Choice(["relu", "gelu"])`.

    Example:
        >>> Choice("relu", "gelu").values(None)
        ['relu', 'gelu']
    """

    def __init__(self, *options: Any):
        if len(options) == 1 and isinstance(options[0], list | tuple):
            options = tuple(options[0])
        self.options = options
        if not options:
            raise UsageError(f"{type(self).__name__}(): give at least one option")
        self.labels = [label_of(option) for option in options]
        self._places: dict[Any, int] = {}
        for place, label in enumerate(self.labels):
            if isinstance(label, str) and label.endswith(NO_IDENTITY):
                self.labels[place] = label = f"{label}{place}"
            if self._places.setdefault(exact({"": label}), place) != place:
                raise UsageError(f"{self!r}: {shown(label)} is there twice, keep one")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.labels))})"

    def at(self, u: float) -> Parameter:
        """The option at u in [0, 1), as a journal holds it."""
        return self.labels[min(len(self.labels) - 1, int(u * len(self.labels)))]

    def values(self, n: int | None) -> list[Parameter]:
        return list(self.labels)

    def takes(self, value: object) -> bool:
        return self._place_of(value) is not None

    def drawn(self, value: Any) -> Parameter:
        return self.labels[self.place(value)]

    def place(self, value: Any) -> int:
        """Which option a value is, or the label of which. Raises ValueError for any other."""
        if (place := self._place_of(value)) is None:
            raise ValueError(f"{shown(value)} is not in {self}")
        return place

    def value_of(self, label: Parameter) -> Any:
        """The option that a journal calls so."""
        return self.options[self.index(label)]

    def has(self, label: Parameter) -> bool:
        """Whether a journal calls an option so."""
        return exact({"": label}) in self._places

    def index(self, label: Parameter) -> int:
        """Which option a journal calls so."""
        return self._places[exact({"": label})]

    def _place_of(self, value: Any) -> int | None:
        """Which option it is, or is called so by people; a number of NumPy may be one of Python."""
        if self.has(label := label_of(value)):
            return self.index(label)
        if type(value) is str and self.has(value):  # a label itself, as a sampler draws it
            return self.index(value)
        if isinstance(value, np.generic) and type(value.item()) is not type(value):
            return self._place_of(value.item())
        names = [for_people(label) if isinstance(value, str) else None for label in self.labels]
        return next((n for n, o in enumerate(self.options) if o is value or names[n] == value), None)


Part = Float | Int | Choice


def same(value: Any, other: Any) -> bool:
    """Whether two labels are equal, where True is not 1."""
    return exact({"": value}) == exact({"": other})


def same_value(value: Any, other: Any) -> bool:
    """Whether two values are equal in type and content."""
    return value is other or same(label_of(value), label_of(other))


def short(value: Any) -> str:
    """A value of a parameter in a few characters."""
    text = f"{value:.6g}" if isinstance(value, float) else " ".join(str(for_people(label_of(value))).split())
    return text if len(text) <= CHARACTERS_SHOWN else f"{text[:CHARACTERS_SHOWN]}..."
