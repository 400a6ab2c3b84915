"""Errors and support vectors of every fold: the shared-kernel solver beside scikit-learn, on as many images as wanted.

    python -m benchmarks.svm_equal 10000 --data ../data [--multiclass ovr] [--points 10] [--jobs 2]

Points are spread over the grid of `benchmarks.svm_points`, all folds of each are fitted. scikit-learn's part is SVC, or
OneVsRestClassifier over it, which is given the matrix that its classes have in common: K - 1, float64, which has the
same solution as K. LIBSVM keeps what it is given in float32, and of a K near 1 too few digits are left: at gamma = 1e-6
and C = 1e6 its solution for K violated the conditions of optimality by 1.9, that for K - 1 by 0.003 (10,000 images,
digit 8 against the rest, fold 0, computed in float64). Decision values of one-vs-rest at C < 1 are closer together than
LIBSVM's tolerance of 1e-3, which then leaves many solutions to choose from: there both solvers get 1e-7.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from benchmarks.machine import circumstances, publish, table
from benchmarks.svm_points import FOLDS, GAMMAS, PENALTIES, GridPoint, splits, spread
from common.data import load
from common.images import standardised
from mpitune.svm import Data, TrainingSet, solve
from mpitune.svm.memory.matrices import keep

Counts = dict[tuple[int, int, int], tuple[int, int]]  # (gamma, C, fold) -> errors, support vectors


def tolerance_of(multiclass: str, C: float) -> float:
    return 1e-7 if multiclass == "ovr" and C < 1 else 1e-3


def ours(x: np.ndarray, y: np.ndarray, points: list[GridPoint], multiclass: str, memory: int) -> Counts:
    folds, counts = splits(len(y)), {}
    data = Data(x, y, "rbf", memory, multiclass=multiclass)
    matrices = keep(data.samples, multiclass, len(PENALTIES) * FOLDS, memory)
    trainings = [TrainingSet.without_weights(train, len(data.samples.classes)) for train, _ in folds]
    for g, gamma in enumerate(GAMMAS):
        for tolerance in (1e-3, 1e-7):
            chosen = sorted(c for a, c in points if a == g and tolerance_of(multiclass, PENALTIES[c]) == tolerance)
            if not chosen:
                continue
            with matrices.source(gamma) as source:
                for f, solved in enumerate(solve(data, source, PENALTIES[chosen], trainings, tolerance, libsvm=False)):
                    assert solved.solutions.converged.all(), (g, chosen, f)
                    wrong = (solved.labels(folds[f][1]) != y[folds[f][1]]).sum(axis=1)
                    for c, n_wrong, n_support in zip(chosen, wrong, solved.solutions.n_support, strict=True):
                        counts[g, c, f] = int(n_wrong), int(n_support)
    return counts


def theirs(x: np.ndarray, y: np.ndarray, point: GridPoint, fold: int, multiclass: str) -> tuple[int, int]:
    from sklearn.metrics.pairwise import euclidean_distances
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.svm import SVC

    train, validation = splits(len(y))[fold]
    gamma, C = GAMMAS[point[0]], PENALTIES[point[1]]
    given: dict[str, Any] = {"C": C, "tol": tolerance_of(multiclass, C), "cache_size": 1000}
    if multiclass == "ovr":
        model: Any = OneVsRestClassifier(SVC(kernel="precomputed", **given))
        exact = x.astype(np.float64)
        learned, asked = (
            np.expm1(-gamma * euclidean_distances(exact[part], exact[train], squared=True))
            for part in (train, validation)
        )
        support = np.concatenate([one.support_ for one in model.fit(learned, y[train]).estimators_])
    else:
        model, asked = SVC(gamma=gamma, **given), x[validation]
        support = model.fit(x[train], y[train]).support_
    return int((model.predict(asked) != y[validation]).sum()), len(np.unique(support))


def beside(ours: tuple[int, int], theirs: tuple[int, int]) -> str:
    return ", ".join(f"{one} / {other}" for one, other in zip(ours, theirs, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("n", type=int, help="training images")
    parser.add_argument("--data", type=Path, default=Path("data"), metavar="DIR")
    parser.add_argument("--multiclass", choices=("ovo", "ovr"), default="ovo")
    parser.add_argument("--points", type=int, default=10, metavar="K")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes for scikit-learn")
    parser.add_argument("--memory", type=float, default=8.0, metavar="GB")
    parser.add_argument("--results", type=Path, metavar="FILE")
    options = parser.parse_args()
    arrays = load("mnist", options.data, train_size=options.n, download=False)
    x, y = standardised(arrays["train_images"], 255), arrays["train_labels"]
    points = spread(options.points)
    here = ours(x, y, points, options.multiclass, int(options.memory * 1e9))
    asked = [(point, fold) for point in points for fold in range(FOLDS)]
    fits = Parallel(n_jobs=options.jobs)(delayed(theirs)(x, y, *each, options.multiclass) for each in asked)
    there = {(*point, fold): fit for (point, fold), fit in zip(asked, fits, strict=True)}
    errors = [here[key][0] - there[key][0] for key in there]
    vectors = [here[key][1] / there[key][1] - 1 for key in there]
    total = {
        "fits": len(there), "errors that differ": sum(map(bool, errors)), "most errors apart": max(map(abs, errors)),
        "support vectors apart, mean": f"{np.mean(np.abs(vectors)):.3%}",
        "support vectors apart, most": f"{max(map(abs, vectors)):.3%}",
    }  # fmt: skip
    rows = [
        {"gamma": f"{GAMMAS[g]:.0e}", "C": f"{PENALTIES[c]:.3g}"}
        | {f"fold {f}": beside(here[g, c, f], there[g, c, f]) for f in range(FOLDS)}
        for g, c in sorted(points)
    ]  # fmt: skip
    facts = circumstances("numpy", "numba", "scikit-learn", images=options.n, multiclass=options.multiclass)
    title = "Errors, ours / scikit-learn's, then support vectors likewise:"
    publish("\n\n".join([facts, table([total]), title, table(rows)]), options.results)


if __name__ == "__main__":
    main()
