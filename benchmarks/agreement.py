"""Whose labels are those of the exact solution, where a grid's labels are not scikit-learn's.

    python -m benchmarks.agreement [iris wine breast_cancer] [--results FILE]

The grid is that of scikit-learn's example of RBF parameters: 13 values of C from 10^-2 to 10^10, 13 of gamma from 10^-9
to 10^3, 5 splits; samples are standardised. LIBSVM, which scikit-learn uses, keeps its kernel in float32. At a small
gamma K is nearly 1, so little of it is left there; at a large C what is lost counts most. The solver here keeps K - 1,
but leaves such fits to LIBSVM (`mpitune.svm.libsvm`), so that a search says what its estimator does.

The judge is a plain solver in double, which moves one pair of multipliers at a time to a tolerance of 1e-5.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # before numpy comes

import argparse
import time
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from sklearn import datasets
from sklearn.model_selection import ParameterGrid, StratifiedShuffleSplit
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from benchmarks.machine import circumstances, publish, table
from mpitune.svm import fit_grid, warm_up

NAMES = ["iris", "wine", "breast_cancer"]
EXAMPLE = {"C": np.logspace(-2, 10, 13), "gamma": np.logspace(-9, 3, 13)}
TOLERANCE = 1e-5
LIMIT = 5_000_000  # pairs that are moved at most


@njit
def _betas(matrix: np.ndarray, sign: np.ndarray, bound: float) -> tuple[np.ndarray, float, bool]:
    """Solve one binary problem by sequential minimal optimisation.

    The pair is chosen by second order: Fan, Chen and Lin, JMLR 6, 2005.

    Args:
        matrix: float64 (m, m), the kernel.
        sign: float64 (m,), +1 or -1.
        bound: of the multipliers, C.

    Returns:
        y * alpha, float64 (m,); the threshold; whether the tolerance was reached.
    """
    f, beta = -sign.copy(), np.zeros(sign.size)
    least, most = np.where(sign > 0, 0.0, -bound), np.where(sign > 0, bound, 0.0)
    for _ in range(LIMIT):
        i = j = -1
        lowest, highest, gain = np.inf, -np.inf, 0.0
        for t in range(sign.size):
            if beta[t] < most[t] and f[t] < lowest:
                i, lowest = t, f[t]
        for t in range(sign.size):
            if beta[t] > least[t]:
                highest, gap = max(highest, f[t]), f[t] - lowest
                if gap > 0:
                    bend = max(matrix[i, i] + matrix[t, t] - 2 * matrix[i, t], 1e-12)
                    if gap * gap / bend > gain:
                        j, gain = t, gap * gap / bend
        if highest - lowest < TOLERANCE:
            free = (beta > least) & (beta < most)
            return beta, f[free].mean() if free.any() else (lowest + highest) / 2, True
        step = (f[j] - lowest) / max(matrix[i, i] + matrix[j, j] - 2 * matrix[i, j], 1e-12)
        step = min(step, most[i] - beta[i], beta[j] - least[j])
        beta[i] = most[i] if step == most[i] - beta[i] else beta[i] + step
        beta[j] = least[j] if step == beta[j] - least[j] else beta[j] - step
        f += step * (matrix[i] - matrix[j])
    return beta, 0.0, False


def labels_in_double(
    x: np.ndarray, y: np.ndarray, asked: np.ndarray, *, C: float, gamma: float
) -> tuple[np.ndarray, bool]:
    """Predict with an RBF kernel, by votes of pairs of classes.

    Args:
        x: float64 (m, n_features), the training samples.
        y: their labels (m,).
        asked: float64 (n, n_features), the samples whose labels are wanted.
        C: the bound of the multipliers.
        gamma: of the kernel.

    Returns:
        Labels (n,), and whether every pair of classes was solved to the tolerance.
    """
    classes, done = np.unique(y), True
    votes = np.zeros((len(asked), len(classes)), np.int64)
    for a, b in combinations(range(len(classes)), 2):
        either = (y == classes[a]) | (y == classes[b])
        own, sign = x[either], np.where(y[either] == classes[a], 1.0, -1.0)
        matrix, between = (_kernel(each, own, gamma) for each in (own, asked))
        beta, threshold, reached = _betas(matrix, sign, C)
        positive, done = between @ beta > threshold, done and reached
        votes[positive, a] += 1
        votes[~positive, b] += 1
    return classes[votes.argmax(axis=1)], done


def _kernel(a: np.ndarray, b: np.ndarray, gamma: float) -> np.ndarray:
    """K - 1 where K is nearly 1, else K: a constant changes no solution, as the multipliers' sum is 0."""
    distances = ((a[:, None] - b) ** 2).sum(axis=2)
    return np.expm1(-gamma * distances) if gamma < 1 else np.exp(-gamma * distances)


def measure(name: str) -> dict[str, object]:
    """A row: of the fits whose labels differ, how many are the judge's."""
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    x = StandardScaler().fit_transform(x)
    splits = list(StratifiedShuffleSplit(n_splits=5, test_size=0.2, random_state=42).split(x, y))
    candidates = list(ParameterGrid(EXAMPLE))
    begin = time.process_time()
    ours = _ours(candidates, x, y, splits)
    middle = time.process_time()
    theirs = {
        (c, s): SVC(**candidates[c]).fit(x[train], y[train]).predict(x[asked])
        for s, (train, asked) in enumerate(splits)
        for c in range(len(candidates))
    }
    end = time.process_time()
    verdicts = []
    for (c, s), found in ours.items():
        if not np.array_equal(found, theirs[c, s]):
            train, asked = splits[s]
            judged, done = labels_in_double(x[train], y[train], x[asked], **candidates[c])
            right = np.array_equal(found, judged), np.array_equal(theirs[c, s], judged)
            verdicts.append(right if done else None)
    return {
        "data": f"{name} {x.shape[0]} x {x.shape[1]}",
        "fit_grid (s)": f"{middle - begin:.3f}",
        "scikit-learn (s)": f"{end - middle:.2f}",
        "fits": len(ours),
        "labels differ": len(verdicts),
        "mpitune.svm has the judge's": verdicts.count((True, False)),
        "scikit-learn has them": verdicts.count((False, True)),
        "neither": verdicts.count((False, False)),
        "not judged": verdicts.count(None),
    }


def _ours(candidates: Any, x: np.ndarray, y: np.ndarray, splits: Any) -> dict[tuple[int, int], np.ndarray]:
    every = fit_grid(SVC(), candidates, x, y, splits)
    return {(one.candidate, one.split): one.model.predict(one.x_validation) for one in every if one.model is not None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME", help=f"rows: {', '.join(NAMES)}")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep the table in this file")
    settings = parser.parse_args()
    if unknown := set(settings.names) - set(NAMES):
        parser.error(f"no row is called {sorted(unknown)[0]!r}: {', '.join(NAMES)}")
    warm_up()
    rows = [measure(name) for name in settings.names]
    publish(f"{circumstances('scikit-learn', 'numba', 'numpy', threads=1)}\n\n{table(rows)}", settings.results)


if __name__ == "__main__":
    main()
