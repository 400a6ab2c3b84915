"""What a command line of Hydra sweeps, as Optuna's distributions."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from hydra.core.override_parser.types import Override, Transformer
from hydra.errors import HydraException
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from mpitune.errors import UsageError


def swept(override: Override, is_whole: bool) -> tuple[BaseDistribution, Sequence[Any]]:
    """What an override sweeps is to Optuna, and its values in Hydra's order; `is_whole`: each of them is tried."""
    sweep: Any = override.value()
    try:
        if override.is_interval_sweep():
            if is_whole:
                raise UsageError("nobody can count the values of an interval: give hydra.sweeper.n_trials=20")
            whole = isinstance(sweep.start, int) and isinstance(sweep.end, int)
            return (IntDistribution if whole else FloatDistribution)(sweep.start, sweep.end, "log" in sweep.tags), ()
        values = list(override.sweep_iterator())
    except (HydraException, ValueError) as error:
        raise UsageError(f"{override.input_line}: {error}") from error
    if not values:
        raise UsageError(f"{override.input_line}: there is no value")
    if override.is_range_sweep() and not is_whole:  # Optuna counts its steps in decimals, Hydra in bits
        start, step = Decimal(str(sweep.start)), Decimal(str(sweep.step))
        low, high = sorted((start, start + (len(values) - 1) * step))
        if isinstance(values[0], int):
            return IntDistribution(int(low), int(high), step=abs(int(step))), values
        return FloatDistribution(float(low), float(high), step=abs(float(step))), values
    texts = map(Transformer.str, values)  # shuffle() has another order whenever it is asked
    choices = [value if isinstance(value, int | float) else text for value, text in zip(values, texts, strict=True)]
    return CategoricalDistribution(choices), choices
