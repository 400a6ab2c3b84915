"""The space of a search: its parameters, their conditions on each other, and constraints.

    Space({
        "kernel": Choice("rbf", "linear"),
        "C": Float(1e-3, 1e6, log=True),
        "degree": [2, 3, 4],                                        # the same as Choice(2, 3, 4)
        "gamma": When(Float(1e-6, 1e-2, log=True), kernel="rbf"),   # only where kernel is rbf
        "folds": 5,                                                 # a constant
    }, constraints=[lambda p: p["C"] > 1 or p["kernel"] == "rbf"])

A point is made of one number in [0, 1) for each parameter, so everything that draws numbers (a random stream, a Sobol
sequence) draws points. A *drawn* point holds what a journal can hold; `Space.given` makes of it what an objective gets.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mpitune.errors import UsageError, named
from mpitune.identity import header_text
from mpitune.optimize.spaces.parameters import Choice, Part, same, same_value, shown
from mpitune.optimize.spaces.reading import When, part_of
from mpitune.trial import Parameter, exact

Point = dict[str, Parameter]
EXAMPLE = '{"lr": Float(1e-5, 0.1, log=True)}'


class Space:
    """Parameters by name.

    Args:
        parts: By name: Float, Int, Choice, a list (a choice), `When` of one of these, or a constant.
        constraints: Functions of a point (as the objective gets it), true where it is allowed.

    Raises:
        UsageError: There is no parameter, a condition names an unknown parameter, and so on.
    """

    TRIES = 10_000  # points that are drawn in vain before the constraints count as impossible

    def __init__(self, parts: Mapping[str, Any], constraints: Sequence[Callable[[Mapping[str, Any]], bool]] = ()):
        if not isinstance(parts, Mapping):
            raise UsageError(f"the space is {parts!r}: give parameters by name, such as {EXAMPLE}")
        if (wrong := next((name for name in parts if not isinstance(name, str) or not name), None)) is not None:
            raise UsageError(f"a parameter is called {wrong!r}: give a text")
        self.conditions: dict[str, dict[str, tuple[Any, ...]]] = {}
        self._parts: dict[str, Any] = {}
        for name, part in parts.items():
            if isinstance(part, When):
                self.conditions[name], part = part.conditions, part.part
            self._parts[name] = part_of(name, part)
        self.constants = {n: p for n, p in self._parts.items() if not isinstance(p, Part)}
        self.parts: dict[str, Part] = {n: self._parts[n] for n in self._in_order() if n not in self.constants}
        if not self.parts:
            only = f" but constants ({named(self.constants)})" if self.constants else ""
            raise UsageError(f"the space has no parameters{only}: give at least one, such as {EXAMPLE}")
        self.constraints = tuple(constraints)
        self._labels = {
            name: {o: [self.parts[o].drawn(v) for v in allowed] for o, allowed in conditions.items() if o in self.parts}
            for name, conditions in self.conditions.items()
        }

    def __repr__(self) -> str:
        return f"{{{', '.join(self.described())}}}"

    def described(self) -> tuple[str, ...]:
        """For the journal: a text for each part, its name first, and one for the constraints."""
        parts = [f"{name}: {self._part_text(name, part)}" for name, part in self._parts.items()]
        mark = header_text(self.constraints).rpartition(" ")[2]
        return (*parts, f"{len(self.constraints)} constraints {mark}") if self.constraints else tuple(parts)

    def _part_text(self, name: str, part: Any) -> str:
        text = repr(part) if isinstance(part, Part) else header_text(part)
        conditions = (f"{other}={header_text(values)}" for other, values in self.conditions.get(name, {}).items())
        return f"When({text}, {', '.join(conditions)})" if name in self.conditions else text

    def things(self) -> list[Any]:
        """All that is in it of its user's own: options, constants, conditions, constraints."""
        options = (option for part in self.parts.values() if isinstance(part, Choice) for option in part.options)
        return [*options, *self.constants.values(), *self.conditions.values(), *self.constraints]

    @property
    def dimensions(self) -> int:
        return len(self.parts)

    def is_active(self, name: str, point: Mapping[str, Any]) -> bool:
        """Whether a parameter is there, beside those of `point` that come before it."""
        return all(
            self.is_active(other, point) and any(same_value(value, self.constants[other]) for value in allowed)
            if other in self.constants
            else any(same(label, point.get(other)) for label in self._labels[name][other])
            for other, allowed in self.conditions.get(name, {}).items()
        )

    def at(self, numbers: Iterable[float], values: Mapping[str, Any] = {}) -> Point:
        """The point of numbers in [0, 1), one for each parameter, also for those that are not there or have a value."""
        point: Point = {}
        for (name, part), u in zip(self.parts.items(), numbers, strict=True):
            if self.is_active(name, point):
                point[name] = part.drawn(values[name]) if name in values else part.at(float(u))
        return point

    def draw(self, numbers: Callable[[], Iterable[float]]) -> Point:
        """The first point that is allowed. Raises UsageError where there seems to be none."""
        for _ in range(self.TRIES if self.constraints else 1):
            if self.allows(point := self.at(numbers())):
                return point
        raise UsageError(f"none of {self.TRIES} points fulfils the constraints: relax them, or narrow the space")

    def allows(self, point: Mapping[str, Parameter]) -> bool:
        """Whether a point fulfils all constraints. Raises UsageError where one of them raises."""
        params = self.params_of(point) if self.constraints else {}
        try:
            return all(constraint(params) for constraint in self.constraints)
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise UsageError(
                f"a constraint raised {reason} for {params}: correct it; a parameter whose condition fails is not there"
            ) from error

    def params_of(self, point: Mapping[str, Parameter]) -> dict[str, Any]:
        """The point as an objective gets it: with constants, and with the options themselves."""
        whole: dict[str, Any] = {}
        for name, part in self._parts.items():
            if name in point:
                whole[name] = part.value_of(point[name]) if isinstance(part, Choice) else point[name]
            elif name in self.constants and self.is_active(name, point):
                whole[name] = part
        return whole

    def drawn(self, values: Mapping[str, Any], numbers: Callable[[], Iterable[float]]) -> Point:
        """A point of a user's own, completed by numbers in [0, 1). Raises UsageError if it is not in the space.

        A number may be beside the steps of its range. Parameters whose condition fails are left out. Constraints hold.
        """
        for name, value in values.items():
            if name in self.constants:
                if not same_value(value, self.constants[name]):
                    fix = f"leave it out, or give it a range instead of the constant {shown(self.constants[name])}"
                    raise UsageError(f"a point to begin with has {name} = {shown(value)}: {fix}")
                continue
            if name not in self.parts:
                raise UsageError(
                    f"a point to begin with has {name}, which the space does not have: it has {named(self.parts)}"
                )
            if not (part := self.parts[name]).takes(value):
                fix = "give one of these" if isinstance(part, Choice) else f"give one from {part.low} to {part.high}"
                raise UsageError(f"a point to begin with has {name} = {shown(value)}, which is not in {part}: {fix}")
        for _ in range(self.TRIES if self.constraints else 1):
            if self.allows(point := self.at(numbers(), values)):
                return point
            if point.keys() <= values.keys():
                break
        raise UsageError(f"a point to begin with does not fulfil the constraints: {dict(values)}")

    def held(self, values: Mapping[str, Parameter]) -> Point | None:
        """The point that has these values and no others; None where the space has no such point."""
        left, point = dict(values), dict[str, Parameter]()
        for name, part in self.parts.items():
            if not self.is_active(name, point):
                continue
            value = left.pop(name, None)
            if value is None or not (part.has(value) if isinstance(part, Choice) else part.takes(value)):
                return None
            point[name] = value if isinstance(part, Choice) else part.drawn(value)
            if type(point[name]) is not type(value):
                return None  # as 1 of an Int in a Float
        return point if not left and self.allows(point) else None

    def grid(self, points: int | None) -> Iterator[Point]:
        """All combinations, the last parameter running fastest. points: values of each range without a step."""
        columns = [part.values(points) for part in self.parts.values()]
        seen: set[Any] = set()
        for row in itertools.product(*columns):
            point: Point = {}
            for name, value in zip(self.parts, row, strict=True):
                if self.is_active(name, point):
                    point[name] = value
            if self.conditions:
                if (key := exact(point)) in seen:
                    continue
                seen.add(key)
            if self.allows(point):
                yield point

    def _in_order(self) -> list[str]:
        """Names, each after those that it depends on."""
        ordered: list[str] = []

        def add(name: str, waiting: tuple[str, ...]) -> None:
            if name in waiting:
                raise UsageError(f"{named(waiting)} depend on each other in a circle: take one condition away")
            if name in ordered:
                return
            for other in self.conditions.get(name, {}):
                if other not in self._parts:
                    raise UsageError(
                        f"{name} depends on {other}, which the space does not have: it has {named(self._parts)}"
                    )
                add(other, (*waiting, name))
            ordered.append(name)

        for name in self._parts:
            add(name, ())
        for name, conditions in self.conditions.items():
            for other, allowed in conditions.items():
                part = self._parts[other]
                wrong = next((v for v in allowed if isinstance(part, Part) and not part.takes(v)), None)
                if wrong is not None:
                    raise UsageError(f"{name} depends on {other} = {wrong!r}, which is not in {part}")
        return ordered
