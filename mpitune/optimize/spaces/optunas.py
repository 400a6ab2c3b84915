"""Parts of a space, and points of it, as Optuna has them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from mpitune.errors import needs
from mpitune.optimize.spaces.parameters import Choice, Float, Int, Part, Quantile
from mpitune.trial import Parameter


def optuna() -> Any:
    """The library, silent. Raises UsageError where it is not installed."""
    with needs("Optuna", '"mpitune[search]", or use another strategy'):
        import optuna as library
    library.logging.set_verbosity(library.logging.ERROR)
    return library


def distribution_of(part: Part) -> Any:
    """What a part is to Optuna."""
    distributions = optuna().distributions
    if isinstance(part, Choice):
        return distributions.CategoricalDistribution(choices_of(part))
    if isinstance(part, Int):
        high = part.low + (part.high - part.low) // part.step * part.step
        return distributions.IntDistribution(part.low, high, log=part.log, step=part.step)
    if isinstance(part, Quantile):
        return distributions.FloatDistribution(0.0, 1.0)
    with warnings.catch_warnings(action="ignore"):  # of a last step below the highest value
        return distributions.FloatDistribution(part.low, part.high, log=part.log, step=part.step)


def choices_of(part: Choice) -> list[Any]:
    """The options as Optuna is given them: their labels, and None. It takes 1, 1.0 and True for one: then as texts."""
    choices = [None if option is None else label for option, label in zip(part.options, part.labels, strict=True)]
    if len(set(choices)) < len(choices):
        return [f"{place}: {label!r}" for place, label in enumerate(part.labels)]
    return choices


def suggested(trial: Any, name: str, part: Part) -> Parameter:
    """What a trial of Optuna says for a parameter."""
    drawn = trial._suggest(name, distribution_of(part))
    if isinstance(part, Choice):
        return part.labels[choices_of(part).index(drawn)]
    if isinstance(part, Int):
        return int(drawn)
    return part.at(drawn) if isinstance(part, Quantile) else float(drawn)


def told(parts: Mapping[str, Part], point: Mapping[str, Parameter]) -> dict[str, dict[str, Any]]:
    """What Optuna is told of a point, as keywords of a trial."""
    drawn_from = {name: distribution_of(parts[name]) for name in point}
    params = {name: nearest(parts[name], value, drawn_from[name]) for name, value in point.items()}
    return {"params": params, "distributions": drawn_from}


def nearest(part: Part, value: Parameter, distribution: Any) -> Any:
    """What Optuna is told for a value of a parameter: beside its steps the nearest that is on one."""
    if isinstance(part, Choice):
        return distribution.choices[part.index(value)]
    if isinstance(part, Quantile):
        return part.place(float(value))
    if isinstance(part, Float):
        return min(distribution.high, part.on_step(float(value)))
    return part.on_step(int(value)) if part.step > 1 else value
