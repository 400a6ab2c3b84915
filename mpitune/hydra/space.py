"""What a command line of Hydra sweeps, as Optuna's distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    """

    drawn_from: BaseDistribution
    values: Sequence[Any] = ()

    @property
    def ends(self) -> list[Any]:
        """All choices, or the two ends of a range."""
        part: Any = self.drawn_from
        return list(part.choices) if isinstance(part, CategoricalDistribution) else [part.low, part.high]


def swept(override: Override, is_whole: bool) -> Swept:
    """What an override sweeps; whether each of its values is tried. Raises UsageError where that is nothing."""
    if override.is_interval_sweep():
        return Swept(_interval(override))
    try:
        values = list(override.sweep_iterator())
    except (HydraException, ValueError) as error:
        raise UsageError(f"{override.input_line}: {error}") from error
    if not values:
        raise UsageError(f"{override.input_line}: there is no value")
    if override.is_range_sweep() and not is_whole:
        return Swept(_steps(override, len(values)))
    texts = map(Transformer.str, values)  # shuffle() has another order whenever it is asked
    choices = [value if isinstance(value, int | float) else text for value, text in zip(values, texts, strict=True)]
    return Swept(CategoricalDistribution(choices), choices)


def _interval(override: Override) -> BaseDistribution:
    sweep: Any = override.value()
    low, high, log = sweep.start, sweep.end, "log" in sweep.tags
    if low > high or (log and low <= 0):
        fix = "above 0" if low <= high else "below the other"
        raise UsageError(f"{override.input_line}: give a lower end {fix}")
    whole = isinstance(low, int) and isinstance(high, int)
    return IntDistribution(low, high, log) if whole else FloatDistribution(low, high, log)


def _steps(override: Override, n: int) -> BaseDistribution:
    """So many numbers of a range. Optuna counts its steps in decimals, Hydra in bits."""
    sweep: Any = override.value()
    start, step = Decimal(str(sweep.start)), Decimal(str(sweep.step))
    low, high = sorted((start, start + (n - 1) * step))
    if all(isinstance(number, int) for number in (sweep.start, sweep.stop, sweep.step)):
        return IntDistribution(int(low), int(high), step=abs(sweep.step))
    return FloatDistribution(float(low), float(high), step=float(abs(step)))
