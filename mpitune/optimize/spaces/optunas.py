"""Optuna's distributions as parts of a space, and the other way."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from mpitune.errors import needs
from mpitune.optimize.spaces.parameters import Choice, Float, Int, Ordinal, Part, Quantile
from mpitune.trial import Parameter


def optuna() -> Any:
    """The library, silent. Raises UsageError where it is not installed."""
    with needs("Optuna", '"mpitune[search]", or use another strategy'):
        import optuna as library
    library.logging.set_verbosity(library.logging.ERROR)
    return library


def part_of(distribution: Any) -> Part | None:
    """What a distribution of Optuna is; None for anything else."""
    kind = type(distribution).__name__
    if kind == "CategoricalDistribution":
        return Choice([*distribution.choices])
    if kind not in ("FloatDistribution", "IntDistribution"):
        return None
    low, high, log, step = (getattr(distribution, name) for name in ("low", "high", "log", "step"))
    steps = {} if log or step is None else {"step": step}
    return (Float if kind[0] == "F" else Int)(low, high, log=log, **steps)


def distribution_of(part: Part) -> Any:
    """What a part is to Optuna."""
    distributions = optuna().distributions
    if isinstance(part, Ordinal):
        return distributions.IntDistribution(0, len(part.labels) - 1)
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
        return part.labels[drawn if isinstance(part, Ordinal) else choices_of(part).index(drawn)]
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
        place = part.index(value)
        return place if isinstance(part, Ordinal) else distribution.choices[place]
    if isinstance(part, Quantile):
        return part.place(float(value))
    if isinstance(part, Float):
        return min(distribution.high, part.on_step(float(value)))
    return part.on_step(int(value)) if part.step > 1 else value
