"""Spaces: what is drawn is in them, what is conditional, what is refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution

from mpitune import Choice, Constant, Float, Int, Space, When
from mpitune.errors import UsageError
from mpitune.identity import label_of

UNIT = st.floats(0, 1, exclude_max=True)


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), UNIT)
def test_a_float_is_within(low: float, width: float, u: float) -> None:
    assert low <= Float(low, low + width).at(u) <= low + width


@given(st.integers(1, 1000), st.integers(1, 1000), st.booleans(), UNIT)
def test_an_int_is_within_and_each_can_be_drawn(low: int, width: int, log: bool, u: float) -> None:
    part = Int(low, low + width, log=log)
    assert low <= part.at(u) <= low + width and isinstance(part.at(u), int)
    assert part.at(0.0) == low and part.at(math.nextafter(1, 0)) == low + width


def test_logarithms_are_even_and_steps_are_exact() -> None:
    assert Float(1e-4, 1.0, log=True).at(0.5) == pytest.approx(1e-2)
    assert sorted({Float(0, 1, step=0.25).at(u) for u in np.linspace(0, 0.999, 50)}) == [0, 0.25, 0.5, 0.75, 1]
    assert sorted({Int(1, 10, step=4).at(u) for u in np.linspace(0, 0.999, 50)}) == [1, 5, 9]
    counts = np.bincount([Int(1, 4).at(u) for u in np.linspace(0, 0.9999, 4000)])[1:]
    assert counts.tolist() == [1000] * 4


def test_what_depends_on_others_is_there_only_then() -> None:
    space = Space(
        {
            "rate": When(Float(0, 1), kind=("tree", "boost"), depth=3),  # before what it depends on
            "kind": Choice("tree", "boost", "line"),
            "depth": When(Int(3, 4), kind="tree"),
            "folds": 5,
            "rows": When(7, kind="line"),
        }
    )
    points = [space.at(numbers) for numbers in np.random.default_rng(0).random((200, 3))]
    for point in points:
        assert ("depth" in point) == (point["kind"] == "tree")
        assert ("rate" in point) == (point.get("depth") == 3)
        whole = space.params_of(point)
        assert whole["folds"] == 5 and ("rows" in whole) == (point["kind"] == "line")
    assert {len(point) for point in points} == {1, 2, 3}
    assert [space.params_of(p).get("rate") for p in space.grid(2)].count(None) == 3
    assert len(list(space.grid(2))) == 5


def test_type_and_value_tell_options_apart() -> None:
    """None has the repr that a text is; two functions have one name; a journal gives each back."""
    options = (None, "None", 1, 1.0, True, "1", lambda: 1, lambda: 2, float("nan"), "nan")
    part = every = Choice(*options)
    assert len({(type(label), label) for label in part.labels}) == len(options)
    assert part.labels[:6] == ["None", "'None'", 1, 1.0, True, "1"]
    for option in options:
        assert part.value_of(json.loads(json.dumps(part.drawn(option)))) is option
    assert (
        Choice(math.sin, 0.5).drawn("sin") == label_of(math.sin) and Choice(math.sin, 0.5).drawn(np.float64(0.5)) == 0.5
    )
    space = Space({"a": every, "b": When(Int(1, 2), a=None), "c": When(Int(1, 2), a="None")})
    points = list(space.grid(None))
    assert len(points) == len(options) + 2
    assert all(
        ("b" in p) == (space.params_of(p)["a"] is None) and ("c" in p) == (space.params_of(p)["a"] == "None")
        for p in points
    )
    assert len(list(Space({"a": Choice(1, True, 1.0), "b": When(Int(1, 2), a=True)}).grid(None))) == 4


def test_a_list_is_a_choice_and_other_values_are_constants() -> None:
    options = {"x": [1, 2], "y": Choice(["a", "b"]), "z": Choice((4, 8)), "w": When([True, None], x=1)}
    space = Space({**options, "one": [[64, 64]], "pair": Constant((0.9, 0.99)), "text": "ab"})
    same = Space({"x": Choice(1, 2), "y": Choice("a", "b"), "z": Choice(4, 8), "w": When(Choice(True, None), x=1)})
    assert all(repr(space.parts[name]) == repr(part) for name, part in same.parts.items())
    points = [space.params_of(point) for point in space.grid(None)]
    assert len(points) == 12 and points[0] == {
        "x": 1, "y": "a", "z": 4, "w": True, "one": [64, 64], "pair": (0.9, 0.99), "text": "ab"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("part", "fix"),
    [
        (np.logspace(0, 2, 3), "write [1.0, 10.0, 100.0] for a choice"),
        (range(1, 4), "write [1, 2, 3] for a choice"),
        ((1, 2), "write [1, 2] for a choice, or Constant"),
        (iter([1]), "looks like a range"),
        (scipy.stats.norm(), "looks like a range"),
        (FloatDistribution(0, 1), "looks like a range: write Float(low, high)"),
        (CategoricalDistribution([1, 2]), "looks like a range: write Float(low, high), Int(low, high) or a list"),
        ({"lr": Float(0, 1)}, 'as "p.lr": Float(low=0, high=1'),
        ({"a": {"lr": Float(0, 1)}}, 'as "p.a": '),
        ([Float(0, 1), 3], "give that a name of its own"),
    ],
)
def test_what_looks_like_a_range_and_is_none_is_refused(part: Any, fix: str) -> None:
    with pytest.raises(UsageError, match=re.escape(fix)):
        Space({"x": Float(0, 1), "p": part})


def test_a_grid_stays_on_steps_and_in_its_range() -> None:
    assert Float(0, 1, step=0.25).values(4) == [0, 0.25, 0.75, 1] and Float(0, 1, step=0.1).values(11)[3] == 0.3
    assert Int(0, 11, step=4).values(2) == [0, 8] and Float(0, 1, step=0.3).values(2) == pytest.approx([0, 0.9])
    assert Int(np.int64(1), np.int64(3)) == Int(1, 3) and Float(0, 1, step=0.1).on_step(0.27) == pytest.approx(0.3)


def test_constraints_hold_and_impossible_ones_are_told() -> None:
    space = Space({"a": Int(0, 9), "b": Int(0, 9)}, [lambda p: p["a"] < p["b"]])
    rng = np.random.default_rng(1)
    assert all(p["a"] < p["b"] for p in (space.draw(lambda: rng.random(2)) for _ in range(50)))  # type: ignore[operator]
    assert len(list(space.grid(None))) == 45
    assert all(space.drawn({"a": 8}, lambda: rng.random(2)) == {"a": 8, "b": 9} for _ in range(5))
    with pytest.raises(UsageError, match=re.escape("does not fulfil the constraints: {'a': 9}")):
        space.drawn({"a": 9}, lambda: rng.random(2))
    with pytest.raises(UsageError, match="none of 10000 points fulfils the constraints: relax them"):
        Space({"a": Int(0, 9)}, [lambda p: False]).draw(lambda: rng.random(1))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Space({}), "the space has no parameters: give at least one"),
        (lambda: Float(1, 1), "Float(low=1, high=1, log=False, step=None): low must be below high"),
        (lambda: Float(1, 10, 0.5), "Float(1, 10, 0.5): give all but the ends by name, such as step=0.5"),  # type: ignore[misc]
        (lambda: Int(1, 10, True), "Int(1, 10, True): give all but the ends by name, such as log=True"),  # type: ignore[misc]
        (lambda: Float(1, 10, log=0.5), "log=0.5, step=None): give log=True or log=False"),  # type: ignore[arg-type]
        (lambda: Float(0, 1, log=True), "the logarithm needs a low above 0"),
        (lambda: Float(0, float("nan")), "give finite numbers as low and high"),
        (lambda: Choice(None, 1, None), "'None' is there twice, keep one"),
        (lambda: list(Space({"x": Int(0, 10**9)}).grid(None)), "a grid would have 1000000001 values of Int"),
        (lambda: Float(0, 1, step=0.0), "give a step above 0"),
        (lambda: Float(1, 2, log=True, step=0.5), "log and step exclude each other"),
        (lambda: Int(1, 2.5), "give whole numbers"),
        (lambda: Choice(), "Choice(): give at least one option"),
        (lambda: Choice([]), "Choice(): give at least one option"),
        (
            lambda: Space({"x": [64, 64]}),
            "x is a list, so it is a choice: Choice(64, 64): 64 is there twice, keep one; "
            "if the list is one value, write Constant([64, 64])",
        ),
        (lambda: When(Float(0, 1)), "When(...) without a condition"),
        (lambda: Space({"x": When(Float(0, 1), y=2)}), "x depends on y, which the space does not have: it has x"),
        (lambda: Space({"x": When(Int(0, 1), y=1), "y": When(Int(0, 1), x=1)}), "depend on each other in a circle"),
        (
            lambda: Space({"x": When(Int(0, 1), y="c"), "y": Choice("a", "b")}),
            "depends on y = 'c', which is not in Choice",
        ),
        (lambda: Space({"": Int(0, 1)}), "a parameter is called ''"),
        (lambda: list(Space({"x": Float(0, 1)}).grid(None)), "how many values of Float(low=0, high=1"),
    ],
)
def test_bad_spaces(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(UsageError) as error:
        make()
    assert told in str(error.value)
