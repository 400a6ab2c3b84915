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

    A parameter that a condition leaves out of some is judged among the others: else it had the condition's share.

    Args:
        candidates: all have a value.
        names: of parameters.

    Returns:
        Nothing of a parameter that too few candidates have, that does not vary, or where all of them have one value.
    """
    shares = {}
    for name in names:
        having = [candidate for candidate in candidates if name in candidate.params]
        ranks = np.unique([candidate.value for candidate in having], return_inverse=True)[1].astype(float)
        if (n := len(having)) < FEWEST or ranks.var() == 0:
            continue
        groups = _groups([candidate.params[name] for candidate in having])
        sizes = np.bincount(groups)
        if 1 < len(sizes) < n:  # where each candidate has a group of its own, nothing is known of chance
            within = ranks - (np.bincount(groups, ranks) / sizes)[groups]
            shares[name] = max(0.0, 1 - (within**2).sum() / (n - len(sizes)) / ranks.var(ddof=1))
    return dict(sorted(shares.items(), key=lambda share: -share[1]))


def _groups(values: Sequence[object]) -> np.ndarray:
    """The number of each value's group: its own if a text or one of few numbers, else numbers next to it share it."""
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    ends = np.unique(numbers)
    if len(ends) > MOST_GROUPS:
        ends = np.quantile(numbers, np.linspace(0, 1, min(MOST_GROUPS, len(numbers) // LEAST_GROUP) + 1)[1:-1])
    kinds = [str(np.searchsorted(ends, v, "right")) if isinstance(v, int | float) else repr(v) for v in values]
    return np.unique(kinds, return_inverse=True)[1]
