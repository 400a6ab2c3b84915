"""What a search looks through: ranges, choices, conditions and constraints."""

from mpitune.optimize.spaces.parameters import Choice, Float, Int, Ordinal, Part
from mpitune.optimize.spaces.space import Point, Space, When

__all__ = ["Choice", "Float", "Int", "Ordinal", "Part", "Point", "Space", "When"]
