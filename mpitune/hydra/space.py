"""What a command line of Hydra sweeps, as Optuna's distributions."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from hydra.core.override_parser.types import Override, Transformer
from hydra.errors import HydraException
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from mpitune.errors import UsageError


@dataclass(frozen=True)
class Swept:
    """A parameter that is swept.

    Attributes:
        drawn_from: what it is to Optuna.
        values: all of them in Hydra's order, where one may be twice; none of an interval.
        texts: Hydra's own for the fractions of a range.
    """

    drawn_from: BaseDistribution
    values: Sequence[Any] = ()
    texts: Mapping[float, str] = field(default_factory=dict)

    @property
    def ends(self) -> list[Any]:
        """All choices, or the two ends of a range."""
        part: Any = self.drawn_from
        return list(part.choices) if isinstance(part, CategoricalDistribution) else [part.low, part.high]

    def text(self, value: Any) -> str:
        """A value as Hydra reads it. A number of a range has the text of the one that is nearest."""
        if self.texts:
            return self.texts[min(self.texts, key=lambda number: abs(number - value))]
        return str(value)


def swept(override: Override) -> Swept:
    """What an override sweeps. Raises UsageError where that is nothing."""
    if override.is_interval_sweep():
        return Swept(_interval(override))
    if override.is_range_sweep():
        return _range(override)
    values = list(override.sweep_iterator())
    texts = map(Transformer.str, values)  # shuffle() has another order whenever it is asked
    choices = [value if isinstance(value, int | float) else text for value, text in zip(values, texts, strict=True)]
    return Swept(CategoricalDistribution(_some(choices, override)), choices)


def _interval(override: Override) -> BaseDistribution:
    sweep: Any = override.value()
    low, high, log = sweep.start, sweep.end, "log" in sweep.tags
    if low > high or (log and low <= 0):
        fix = "above 0" if low <= high else "below the other"
        raise UsageError(f"{override.input_line}: give a lower end {fix}")
    whole = isinstance(low, int) and isinstance(high, int)
    return IntDistribution(low, high, log) if whole else FloatDistribution(low, high, log)


def _range(override: Override) -> Swept:
    """Its numbers. Optuna counts its steps in decimals, Hydra in bits: 0.24 is "0.24000000000000002" there."""
    sweep: Any = override.value()
    try:
        numbers = [*sweep.range()]
    except (HydraException, ValueError) as error:
        raise UsageError(f"{override.input_line}: {error}") from error
    if isinstance(_some(numbers, override)[0], int):
        drawn_from: BaseDistribution = IntDistribution(min(numbers), max(numbers), step=abs(sweep.step))
        values, texts = numbers, {}
    else:
        start, step = Decimal(str(sweep.start)), Decimal(str(sweep.step))
        values = [float(start + n * step) for n in range(len(numbers))]
        drawn_from = FloatDistribution(min(values), max(values), step=abs(sweep.step))
        texts = dict(zip(values, map(Transformer.str, numbers), strict=True))
    if sweep.shuffle:
        random.shuffle(values)
    return Swept(drawn_from, values, texts)


def _some(values: list[Any], override: Override) -> list[Any]:
    if not values:
        raise UsageError(f"{override.input_line}: there is no value")
    return values
