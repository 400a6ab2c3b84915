"""Probabilities from decision values, as LIBSVM has them.

A sigmoid of each pair's decision value is fitted to the decision values that five folds of the pair have for each
other (J. Platt, "Probabilistic outputs for support vector machines", 1999; H.-T. Lin, C.-J. Lin, R. Weng, "A note on
Platt's probabilistic outputs", Machine Learning 68, 2007). Probabilities of classes are those that fit all pairs best
(T.-F. Wu, C.-J. Lin, R. Weng, "Probability estimates for multi-class classification by pairwise coupling", JMLR 5,
2004, their second method).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpitune.svm.solver.path import solve_paths

FOLDS = 5
STEEP = 0.02  # times 1/4 is how much the tolerance may change a probability
LEAST = 1e-7  # LIBSVM's least probability of a pair


def shuffled(count: int, seed: int) -> np.ndarray:
    """The order in which scikit-learn's LIBSVM cuts samples into folds, int64 (count,).

    It is drawn by the Mersenne Twister with D. Lemire's bounds ("Fast random integer generation in an interval", ACM
    TOMACS 29, 2019).
    """
    raw = np.random.RandomState(seed)._bit_generator.random_raw
    order = np.arange(count)
    for i in range(count):
        high, low = divmod(int(raw()) * (count - i), 1 << 32)
        while low < ((1 << 32) - (count - i)) % (count - i):
            high, low = divmod(int(raw()) * (count - i), 1 << 32)
        order[i], order[i + high] = order[i + high], order[i]
    return order


def sigmoids(
    matrix: np.ndarray,
    sign: np.ndarray,
    order: np.ndarray,
    penalties: np.ndarray,
    weights: np.ndarray,
    tolerance: float,
    max_iter: int,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The sigmoid 1 / (1 + exp(A f + B)) of one pair of classes for every C.

    Arguments are as for `solve_paths`, of one problem; ``order`` has the rows of the pair's samples in the order in
    which they were given, the positive class first; ``seed`` is that of the folds which have decision values computed.

    Returns:
        A and B, float64 (2, n_penalties); and whether they are determined, bool (n_penalties,): the thresholds of all
        folds are, and the sigmoid is not so steep that the tolerance of decision values shows.
    """
    order = order[shuffled(len(order), seed)]
    values, determined = np.zeros((len(order), len(penalties))), np.ones(len(penalties), np.bool_)
    for fold in range(FOLDS):
        part = slice(fold * len(order) // FOLDS, (fold + 1) * len(order) // FOLDS)
        held_out, kept = order[part], sign.copy()
        kept[held_out] = 0
        if not ((kept > 0).any() and (kept < 0).any()):
            values[part] = kept.max() + kept.min()  # only one class is left, or none
            continue
        path = solve_paths(matrix, kept[None], penalties, tolerance, max_iter, weights[None], pair=True).of(0)
        determined &= ~(path.gaps > tolerance)
        used = path.betas.any(axis=0)
        rows = matrix[np.ix_(path.columns[used], held_out)].astype(np.float64)
        values[part] = rows.T @ path.betas[:, used].T - path.rhos
    positive = sign[order] > 0
    slopes = np.array([_sigmoid(values[:, c], positive) for c in range(len(penalties))]).T
    return slopes, determined & (np.abs(slopes[0]) * tolerance < STEEP)


def _sigmoid(values: np.ndarray, positive: np.ndarray) -> tuple[float, float]:
    """A and B by Newton's method with backtracking, with Platt's targets; LIBSVM's constants."""
    ups = int(positive.sum())
    downs = len(values) - ups
    target = np.where(positive, (ups + 1) / (ups + 2), 1 / (downs + 2))
    a, b = 0.0, float(np.log((downs + 1) / (ups + 1)))

    def loss(a: float, b: float) -> float:
        z = values * a + b
        return float((target * z + np.logaddexp(0.0, -z)).sum())

    now = loss(a, b)
    for _ in range(100):
        p = probability(values, a, b)
        curvature = p * (1 - p)
        h11, h22 = float((values**2 * curvature).sum()) + 1e-12, float(curvature.sum()) + 1e-12
        h21 = float((values * curvature).sum())
        g1, g2 = float((values * (target - p)).sum()), float((target - p).sum())
        if abs(g1) < 1e-5 and abs(g2) < 1e-5:
            break
        determinant = h11 * h22 - h21 * h21
        step_a, step_b = -(h22 * g1 - h21 * g2) / determinant, -(h11 * g2 - h21 * g1) / determinant
        slope, size = g1 * step_a + g2 * step_b, 1.0
        while size >= 1e-10:
            new = loss(a + size * step_a, b + size * step_b)
            if new < now + 1e-4 * size * slope:
                a, b, now = a + size * step_a, b + size * step_b, new
                break
            size /= 2
        else:
            break
    return a, b


def probability(values: np.ndarray, a: float | np.ndarray, b: float | np.ndarray) -> np.ndarray:
    """1 / (1 + exp(a f + b)) without overflow, float64 in the shape of the values f."""
    z = values * a + b
    small = np.exp(-np.abs(z))
    return np.where(z >= 0, small, 1.0) / (1 + small)


def coupled(values: np.ndarray, pairs: Sequence[tuple[int, int]], a: np.ndarray, b: np.ndarray, k: int) -> np.ndarray:
    """Probabilities of classes, float64 (n, k), from decision values (n, n_pairs) and a sigmoid for each pair.

    As in scikit-learn's LIBSVM, the iteration runs for two classes too, so they may be up to 0.0025 from the sigmoid.
    """
    pairwise = np.zeros((len(values), k, k))
    for m, (i, j) in enumerate(pairs):
        pairwise[:, i, j] = np.clip(probability(values[:, m], a[m], b[m]), LEAST, 1 - LEAST)
        pairwise[:, j, i] = 1 - pairwise[:, i, j]
    q = -pairwise.transpose(0, 2, 1) * pairwise
    q[:, range(k), range(k)] = (pairwise**2).sum(axis=1)
    result = np.empty((len(values), k))
    active, p = np.arange(len(values)), np.full((len(values), k), 1 / k)
    for _ in range(max(100, k)):
        qp = np.einsum("nij,nj->ni", q, p)
        pqp = np.einsum("ni,ni->n", p, qp)
        open_ = np.abs(qp - pqp[:, None]).max(axis=1) >= 0.005 / k
        result[active[~open_]] = p[~open_]
        active, q, p, qp, pqp = active[open_], q[open_], p[open_], qp[open_], pqp[open_]
        if not len(active):
            return result
        for c in range(k):
            diff = (pqp - qp[:, c]) / q[:, c, c]
            p[:, c] += diff
            pqp = (pqp + diff * (diff * q[:, c, c] + 2 * qp[:, c])) / (1 + diff) ** 2
            qp = (qp + diff[:, None] * q[:, c]) / (1 + diff)[:, None]
            p /= (1 + diff)[:, None]
    result[active] = p
    return result
