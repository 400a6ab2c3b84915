"""What the values that users write into a space stand for: ranges, choices, conditions, constants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mpitune.errors import UsageError
from mpitune.optimize.spaces.parameters import Choice, Float, Int, Part, shown

# What ranges of scipy.stats, Optuna, scikit-optimize, Ray Tune and Hyperopt have, and hardly anything else.
SIGNS = ("rvs", "low", "to_internal_repr", "get_sampler", "pos_args")


class When:
    """A parameter that is there only where others have certain values: `When(Int(1, 9), model="tree")`.

    A value may be a tuple of values, of which one must hold; of several conditions all must hold.
    """

    def __init__(self, part: Part | Any, **conditions: Any):
        if not conditions:
            raise UsageError("When(...) without a condition: give one, such as kernel='rbf'")
        self.part = part
        self.conditions = {n: v if isinstance(v, tuple) else (v,) for n, v in conditions.items()}

    def __repr__(self) -> str:
        return f"When({self.part!r}, {', '.join(f'{n}={v!r}' for n, v in self.conditions.items())})"


class Constant:
    """A value that each trial gets, where the value by itself looks like a range: `Constant((64, 64))`."""

    def __init__(self, value: Any):
        self.value = value

    def __repr__(self) -> str:
        return f"Constant({shown(self.value)})"


def part_of(name: str, part: Any) -> Any:
    """The part of a space, or the constant, that a user's value stands for. Raises UsageError where that is not clear.

    A list is a choice.
    """
    if isinstance(part, Constant | Float | Int):
        return part.value if isinstance(part, Constant) else part
    if isinstance(part, list):
        try:
            part = Choice(part)
        except UsageError as error:
            fix = f"if the list is one value, write {Constant(part)}"
            raise UsageError(f"{name} is a list, so it is a choice: {error}; {fix}") from error
    if isinstance(part, Choice):
        if (inner := next((option for option in part.options if _is_drawn_from(option)), None)) is not None:
            raise UsageError(f"{name} is a choice with {shown(inner)} in it: give that a name of its own")
        return part
    if isinstance(part, Mapping):
        if (inner := next((key for key, value in part.items() if _is_drawn_from(value)), None)) is not None:
            one = f'"{name}.{inner}": {shown(part[inner])}'
            raise UsageError(f"{name} is a dict with ranges in it: give each a name of its own in the space, as {one}")
        return part
    if isinstance(part, type | np.generic):
        return part
    if isinstance(part, range | tuple | set | frozenset) or hasattr(part, "tolist"):
        values = part.tolist() if hasattr(part, "tolist") else list(part)
        raise UsageError(f"{name} = {shown(part)}: write {shown(values)} for a choice, or Constant(...) for one value")
    if isinstance(part, Iterator) or any(hasattr(part, sign) for sign in SIGNS):
        fix = "write Float(low, high), Int(low, high) or a list, or Constant(...) for one value"
        raise UsageError(f"{name} = {shown(part)} looks like a range: {fix}")
    return part


def _is_drawn_from(value: Any) -> bool:
    """Whether a value in another one is a part of a space, which nobody would draw from there."""
    if isinstance(value, Mapping):
        return any(map(_is_drawn_from, value.values()))
    return isinstance(value, Part | When)
