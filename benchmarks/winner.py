"""What `search.winner_` says beside what refitted winners score on samples that no search saw.

    python -m benchmarks.winner [TABLE ...] [--seconds CPU] [--results FILE]

Each table is drawn again and again: a sample to search, all others to know the truth. Bias is an estimate minus the
score of the refitted winner on those; both times 100 (of accuracies: per cent). Coverage is how often an interval of
95 % holds that score: Student's over the folds about best_score_, and `winner_.interval`.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.datasets as data
from scipy.stats import t
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestRegressor
from sklearn.linear_model import ElasticNet, LogisticRegression, Ridge
from sklearn.model_selection import RepeatedStratifiedKFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from benchmarks.machine import circumstances, publish, table
from benchmarks.race_tables import BALANCED, BOOST, FOREST, NEAR, NETS, SPARSE, TREE
from mpitune.sklearn import GridSearchCV, careful

LARGE = 2000  # new samples of populations, to know the truth
KNN, DECISIONS = (KNeighborsClassifier(), NEAR), (DecisionTreeClassifier(random_state=0), TREE)
HGB = HistGradientBoostingClassifier(early_stopping=False, min_samples_leaf=10, random_state=0), BOOST
TREES = RandomForestRegressor(40, random_state=0), FOREST
SVM = SVC(), {"C": np.logspace(-2, 3, 6), "gamma": np.logspace(-4, 1, 6)}
NET, LOGISTIC = (ElasticNet(max_iter=2000), NETS), (LogisticRegression(max_iter=300), BALANCED)
FEW = SPARSE, {"C": np.logspace(-3, 2, 15), "l1_ratio": [0.0, 1.0]}
RIDGE = Ridge(), {"alpha": np.logspace(-3, 5, 60)}
Draw = Callable[[int], tuple[Any, Any]]


def known(load: Callable[..., Any]) -> Draw:
    """A data set in a new order."""

    def draw(seed: int) -> tuple[Any, Any]:
        X, y = load(return_X_y=True)
        order = np.random.default_rng(seed).permutation(len(y))
        return ((X - X.mean(0)) / (X.std(0) + 1e-9))[order], (y / y.std() if load is data.load_diabetes else y)[order]

    return draw


def population(n: int, **options: Any) -> Draw:
    """New samples of one population of classes."""
    made = {"n_samples": n + LARGE, "n_features": 20, "n_informative": 5, "class_sep": 0.8, **options}

    def draw(seed: int) -> tuple[Any, Any]:
        X, y = data.make_classification(random_state=7, **made)
        order = np.random.default_rng(seed).permutation(len(y))
        return X[order], y[order]

    return draw


def noise(seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(200 + LARGE, 10)), rng.integers(0, 2, 200 + LARGE)


def sparse(seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(100 + LARGE, 60))
    return X, X[:, :10].sum(axis=1) + 4 * rng.normal(size=len(X))


def moons(seed: int) -> tuple[Any, Any]:
    return data.make_moons(200 + LARGE, noise=0.35, random_state=seed)


def friedman(seed: int) -> tuple[Any, Any]:
    return data.make_friedman1(200 + LARGE, noise=3.0, random_state=seed)


def rings(seed: int) -> tuple[Any, Any]:
    return data.make_circles(150 + LARGE, noise=0.3, factor=0.5, random_state=seed)


def quantiles(seed: int) -> tuple[Any, Any]:
    X, y = data.make_gaussian_quantiles(n_samples=200 + LARGE, n_features=5, n_classes=3, random_state=seed)
    return X, y


FIVE = RepeatedStratifiedKFold(n_splits=5, n_repeats=5, random_state=0)
TABLES: dict[str, tuple[Draw, int, Any, str, Any]] = {
    "cancer_svc": (known(data.load_breast_cancer), 200, SVM, "accuracy", 5),
    "digits_knn": (known(data.load_digits), 300, KNN, "accuracy", 5),
    "wine_logistic": (known(data.load_wine), 90, LOGISTIC, "accuracy", 5),
    "iris_tree": (known(data.load_iris), 75, DECISIONS, "accuracy", 5),
    "diabetes_net": (known(data.load_diabetes), 220, NET, "r2", 5),
    "class_boosting": (population(300, flip_y=0.2), 300, HGB, "accuracy", 5),
    "moons_svc": (moons, 200, SVM, "accuracy", 5),
    "friedman_forest": (friedman, 200, TREES, "r2", 5),
    "noise_tree": (noise, 200, DECISIONS, "accuracy", 5),
    "wide_logistic": (population(200, n_features=100, flip_y=0.1), 200, FEW, "roc_auc", 5),
    "rare_tree": (population(300, flip_y=0.05, weights=[0.88], class_sep=1.2), 300, DECISIONS, "f1", 5),
    "sparse_ridge": (sparse, 100, RIDGE, "neg_mean_squared_error", 5),
    "noise_knn": (noise, 200, KNN, "accuracy", 5),
    "moons_knn": (moons, 200, KNN, "accuracy", 5),
    "rings_knn": (rings, 150, KNN, "accuracy", 5),
    "quantiles_svc": (quantiles, 200, SVM, "accuracy", 10),
    "moons_knn, 5 x 5": (moons, 200, KNN, "accuracy", FIVE),
    "noise_knn, 5 x 5": (noise, 200, KNN, "accuracy", FIVE),
}


def measured(name: str, seconds: float) -> dict[str, Any]:
    draw, n, (model, grid), scoring, cv = TABLES[name]
    rows, begun = [], time.process_time()
    while time.process_time() - begun < seconds or len(rows) < 2:
        X, y = draw(len(rows))
        alike = {"default": True, "scoring": scoring, "refit": False, "workers": 0}
        search = GridSearchCV(model, grid, cv=cv, **alike).fit(X[:n], y[:n])
        split = [(np.arange(n), np.arange(n, len(y)))]
        truth = GridSearchCV(model, grid, cv=split, **alike).fit(X, y).cv_results_["mean_test_score"]
        found, k = search.winner_, search.n_splits_
        scores, true = found.scores[found.candidate], truth[found.candidate]
        student = t.ppf(0.975, k - 1) * scores.std(ddof=1) / np.sqrt(k)
        rows.append((
            found.score - true, found.corrected - true, abs(found.score - true) <= student,
            found.interval.low <= true <= found.interval.high, len(found.as_good), true - truth[0],
            found.default_will_do, truth[careful(search.cv_results_, getattr(cv, "n_repeats", 1))] - truth[0],
        ))  # fmt: skip
    means = np.mean(rows, axis=0)
    error = 100 * np.std(rows, axis=0)[1] / np.sqrt(len(rows))
    return {
        "table": name, "score": scoring, "samples": n, "searches": len(rows),
        "bias of best_score_": f"{100 * means[0]:+.1f}", "of corrected": f"{100 * means[1]:+.1f} +- {error:.1f}",
        "Student covers": f"{means[2]:.0%}", "interval covers": f"{means[3]:.0%}",
        "as good": f"{means[4]:.0f} of {len(truth)}", "winner - default": f"{100 * means[5]:+.1f}",
        "careful - default": f"{100 * means[7]:+.1f}", "default kept": f"{means[6]:.0%}",
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", default=list(TABLES))
    parser.add_argument("--seconds", type=float, default=60.0, help="CPU seconds of each table")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    text = f"{circumstances('scikit-learn', 'numpy', CPU_seconds=options.seconds)}\n\n"
    rows = []
    for name in options.tables:
        rows.append(measured(name, options.seconds))
        print(rows[-1], flush=True)
    publish(text + table(rows), options.results)


if __name__ == "__main__":
    main()
