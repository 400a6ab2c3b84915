"""How sure an error on test samples is: intervals, and the quality of probabilities.

All functions take plain arrays. SciPy is imported when a quantile is first asked for, and of it `special` alone, as
`stats` takes 0.7 s more, for which a short search would wait. Tests compare with `scipy.stats.binomtest`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

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


class Calibration(NamedTuple):
    """How well probabilities say how often the answer is right.

    Attributes:
        confidence: float (n_bins,), mean probability of the answer in each bin of equal width; NaN where it is empty.
        accuracy: float (n_bins,), share of right answers in each bin; NaN where it is empty.
        counts: int (n_bins,), answers in each bin.
        expected_error: mean distance of the two, weighted by counts (M. Naeini, G. Cooper, M. Hauskrecht, 2015).
        brier: mean squared distance of probabilities and truth, summed over classes (G. Brier, 1950).
        log_loss: mean of -log of the probability of the right class, in nats.
    """

    confidence: np.ndarray
    accuracy: np.ndarray
    counts: np.ndarray
    expected_error: float
    brier: float
    log_loss: float


def calibration(probabilities: np.ndarray, labels: np.ndarray) -> Calibration:
    """Reliability of predicted probabilities.

    Args:
        probabilities: float (n, n_classes), rows that sum to 1.
        labels: int (n,), the right class of each row.
    """
    n, n_bins = len(labels), 10
    answer, sure = probabilities.argmax(axis=1), probabilities.max(axis=1).astype(np.float64)
    right = answer == labels
    bins = np.minimum((sure * n_bins).astype(int), n_bins - 1)
    count = np.bincount(bins, minlength=n_bins)
    with np.errstate(invalid="ignore"):
        confidence = np.bincount(bins, sure, n_bins) / count
        accuracy = np.bincount(bins, right, n_bins) / count
    truth = np.zeros_like(probabilities, dtype=np.float64)
    truth[np.arange(n), labels] = 1
    of_truth = np.clip(probabilities[np.arange(n), labels].astype(np.float64), np.finfo(np.float64).tiny, 1)
    return Calibration(
        confidence,
        accuracy,
        count,
        float(np.nansum(count * np.abs(confidence - accuracy)) / n),
        float(((probabilities - truth) ** 2).sum(axis=1).mean()),
        float(-np.log(of_truth).mean()),
    )
