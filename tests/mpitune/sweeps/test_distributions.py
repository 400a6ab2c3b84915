"""Each distribution of a sweep file draws what its definition says."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from mpitune.errors import UsageError
from mpitune.optimize.spaces.optunas import nearest
from mpitune.optimize.spaces.parameters import Quantile
from mpitune.sweeps.distributions import part_of

U = np.linspace(0.001, 0.999, 333)


def rounded(quantiles: Any, q: float) -> Any:
    return np.round(quantiles / q) * q


# What W&B's own code draws (the package `sweeps`, params.py) at each of U.
DEFINITIONS: dict[str, tuple[dict[str, Any], Callable[[], Any]]] = {
    "int_uniform": ({"min": -3, "max": 5}, lambda: stats.randint.ppf(U, -3, 6)),
    "uniform": ({"min": -1, "max": 4}, lambda: stats.uniform.ppf(U, -1, 5)),
    "q_uniform": ({"min": 1, "max": 9, "q": 3}, lambda: rounded(stats.uniform.ppf(U, 1, 8), 3)),
    "log_uniform": ({"min": -3, "max": 2}, lambda: stats.loguniform.ppf(U, math.exp(-3), math.exp(2))),
    "log_uniform_values": ({"min": 0.1, "max": 50}, lambda: stats.loguniform.ppf(U, 0.1, 50)),
    "q_log_uniform": ({"min": 0, "max": 3, "q": 0.5}, lambda: rounded(stats.loguniform.ppf(U, 1, math.exp(3)), 0.5)),
    "q_log_uniform_values": ({"min": 1, "max": 64, "q": 2}, lambda: rounded(stats.loguniform.ppf(U, 1, 64), 2)),
    "normal": ({"mu": 3, "sigma": 0.5}, lambda: stats.norm.ppf(U, 3, 0.5)),
    "q_normal": ({"mu": 3, "sigma": 4, "q": 0.5}, lambda: rounded(stats.norm.ppf(U, 3, 4), 0.5)),
    "log_normal": ({"mu": 1, "sigma": 0.5}, lambda: stats.lognorm.ppf(U, 0.5, scale=math.e)),
    "q_log_normal": ({"mu": 1, "sigma": 1, "q": 1}, lambda: rounded(stats.lognorm.ppf(U, 1, scale=math.e), 1)),
}


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_a_distribution_draws_what_its_definition_says(kind: str) -> None:
    given, quantiles = DEFINITIONS[kind]
    part = part_of({"distribution": kind, **given}, "random")
    drawn = [part.at(u) for u in U]
    assert np.allclose(drawn, quantiles(), rtol=1e-6, atol=1e-9)
    whole = kind == "int_uniform" or isinstance(given.get("q"), int)
    assert {type(value) for value in drawn} == {int if whole else float}
    assert all(part.takes(value) for value in drawn)


def test_a_grid_has_the_values_that_it_has_there() -> None:
    quarters = part_of({"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.25}, "grid")
    assert quarters.values(None) == [0, 0.25, 0.5, 0.75]
    assert part_of({"min": 2, "max": 4}, "grid").values(None) == [2, 3, 4]
    with pytest.raises(UsageError, match="no grid: give values"):
        part_of({"distribution": "normal"}, "grid")


def test_things_are_drawn_by_their_probabilities() -> None:
    part = part_of({"values": ["a", None, [1, 2]], "probabilities": [0.5, 0, 0.5]}, "random")
    assert [part.value_of(part.at(u)) for u in (0.0, 0.49, 0.5, 0.999999)] == ["a", "a", [1, 2], [1, 2]]


@pytest.mark.parametrize("kind", ["normal", "q_log_uniform_values"])
def test_a_sampler_that_learns_draws_quantiles(kind: str) -> None:
    """So TPE begins as the distribution is, and learns of what was drawn by others, too."""
    pytest.importorskip("optuna")
    part = part_of({"distribution": kind, **DEFINITIONS[kind][0]}, "bayes")
    assert isinstance(part, Quantile)
    for u in (0.1, 0.5, 0.9):
        assert part.at(nearest(part, part.at(u), None)) == pytest.approx(part.at(u))
