"""What a search looks through: ranges, choices, conditions and constraints."""

from mpitune.optimize.spaces.parameters import Choice, Float, Int, Part
from mpitune.optimize.spaces.reading import Constant, When
from mpitune.optimize.spaces.space import Point, Space

__all__ = ["Choice", "Constant", "Float", "Int", "Part", "Point", "Space", "When"]
