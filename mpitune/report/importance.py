"""The importance of each parameter: how much of the differences between candidates it explains by itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpitune.report.candidates import Candidate

FEWEST = 20  # candidates
MOST_GROUPS, LEAST_GROUP = 8, 5  # groups of a parameter with many values, and candidates of each at least


def importance_of(candidates: Sequence[Candidate], names: Sequence[str]) -> dict[str, float]:
    """The share of the variance that each of these parameters explains, the greatest first.

    It is that of the ranks of the values, so the scale of an error and infinite losses have no influence. Candidates
    with similar values of the parameter are a group, and the share is the squared correlation ratio of groups and
    ranks. It is corrected for chance: T. L. Kelley, "An unbiased correlation ratio measure", Proceedings of the
    National Academy of Sciences 21, 1935.

    Args:
        candidates: all have a value.
        names: of parameters. Nothing is said of one that does not vary.

    Returns:
        Nothing where there are too few candidates, or all have one value.
    """
    n = len(candidates)
    ranks = np.unique([candidate.value for candidate in candidates], return_inverse=True)[1].astype(float)
    if n < FEWEST or ranks.var() == 0:
        return {}
    shares = {}
    for name in names:
        groups = _groups([candidate.params.get(name) for candidate in candidates])
        sizes = np.bincount(groups)
        if 1 < len(sizes) < n:  # where each candidate has a group of its own, nothing is known of chance
            within = ranks - (np.bincount(groups, ranks) / sizes)[groups]
            shares[name] = max(0.0, 1 - (within**2).sum() / (n - len(sizes)) / ranks.var(ddof=1))
    return dict(sorted(shares.items(), key=lambda share: -share[1]))


def _groups(values: Sequence[object]) -> np.ndarray:
    """The number of each value's group: its own where values are few, else those next to it are in it, too."""
    numbers = all(isinstance(value, int | float) for value in values)
    column = np.array(values, float) if numbers else np.array(list(map(str, values)))
    different, groups = np.unique(column, return_inverse=True)
    if len(different) <= MOST_GROUPS or not numbers:
        return groups
    ends = np.quantile(column, np.linspace(0, 1, min(MOST_GROUPS, len(column) // LEAST_GROUP) + 1)[1:-1])
    return np.unique(np.searchsorted(ends, column, side="right"), return_inverse=True)[1]
