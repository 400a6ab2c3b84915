"""How sure an error on test samples is.

All functions take plain arrays. SciPy is imported when a quantile is first asked for, and of it `special` alone, as
`stats` takes 0.7 s more, for which a short search would wait. Tests compare with `scipy.stats.binomtest`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

LEVEL = 0.95  # confidence of intervals


class Interval(NamedTuple):
    """An interval that holds the true value with the stated confidence."""

    low: float
    high: float


def interval_text(interval: Sequence[float] | None) -> str:
    """The interval of an error, low and high, for the end of a line; nothing where there is none."""
    return f" (95 % interval {interval[0]:.2%} to {interval[1]:.2%})" if interval else ""


def proportion(n_wrong: int, n: int) -> Interval:
    """The interval of an error rate measured on independent samples.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", Journal of the American
    Statistical Association 22, 1927. It is never below 0 or above 1, also where no sample is wrong.

    Args:
        n_wrong: samples that are wrong, 0 to n.
        n: samples, at least 1.

    Raises:
        ValueError: n_wrong is not between 0 and n, or n is 0.
    """
    from scipy.special import ndtri

    if not 0 <= n_wrong <= n or n == 0:
        raise ValueError(f"{n_wrong} of {n} is not a proportion")
    z = float(ndtri((1 + LEVEL) / 2))
    p = n_wrong / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Interval(max(0.0, centre - half), min(1.0, centre + half))
