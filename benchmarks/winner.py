"""What `search.winner_` says, and what a race keeps, beside what refitted winners score on samples that no search saw.

    python -m benchmarks.winner [TABLE ...] [--seconds CPU] [--results FILE]

Each table is drawn again and again: a sample to search, all others to know the truth. Bias is an estimate minus the
score of the refitted winner on those, times 100 (of accuracies: per cent). Coverage is how often an interval of 95 %
holds that score: Student's over the folds about best_score_, and `winner_.interval`. "More than chance" is wrong where
the winner is not better than the default. The scores of 20 searches are raced at 0.95, over all orders of up to 5 folds
and 40 orders of more.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.datasets as data
from scipy.stats import t
from sklearn.linear_model import ElasticNet, LogisticRegression, Ridge
from sklearn.model_selection import KFold, RepeatedKFold, StratifiedShuffleSplit, TimeSeriesSplit
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from benchmarks.machine import circumstances, publish, table
from mpitune.sklearn import GridSearchCV
from mpitune.sklearn.search.racing import Race
from mpitune.sklearn.search.winner import winner_of

NEW = 2000  # samples of populations, to know the truth
RACED, ORDERS = 20, 40
LEAVES = {"max_depth": [1, 2, 3, 4, 6, 8], "min_samples_leaf": [1, 2, 4, 8, 16]}
KNN = KNeighborsClassifier(), {"n_neighbors": [*range(1, 31)], "weights": ["uniform", "distance"], "p": [1, 2]}
TREE = DecisionTreeClassifier(random_state=0), {**LEAVES, "criterion": ["gini", "entropy"]}
REGRESSION_TREE = DecisionTreeRegressor(random_state=0), LEAVES
NET = ElasticNet(max_iter=2000), {"alpha": np.logspace(-3, 1.5, 10), "l1_ratio": [0.05, 0.5, 1]}
LOGISTIC = LogisticRegression(max_iter=300), {"C": np.logspace(-4, 4, 15), "class_weight": [None, "balanced"]}
RIDGE = Ridge(), {"alpha": np.logspace(-3, 5, 30)}
SPLITS = StratifiedShuffleSplit(10, test_size=0.2, random_state=0)
THRICE = RepeatedKFold(n_splits=5, n_repeats=3, random_state=0)
Samples = tuple[Any, Any]


def known(load: Callable[..., Any]) -> Callable[[int, int], Samples]:
    """A data set in a new order."""

    def draw(seed: int, n: int) -> Samples:
        X, y = load(return_X_y=True)
        order = np.random.default_rng(seed).permutation(len(y))
        return ((X - X.mean(0)) / (X.std(0) + 1e-9))[order], (y / y.std() if load is data.load_diabetes else y)[order]

    return draw


def coins(seed: int, n: int) -> Samples:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n + NEW, 10)), rng.integers(0, 2, n + NEW)


def series(seed: int, n: int) -> Samples:
    """Each value of an autoregressive series, by the eight before it."""
    noise, z = np.random.default_rng(seed).normal(size=n + NEW + 8), np.zeros(n + NEW + 8)
    for now in range(2, len(z)):
        z[now] = 1.2 * z[now - 1] - 0.5 * z[now - 2] + noise[now]
    return np.stack([z[7 - lag : len(z) - lag - 1] for lag in range(8)], axis=1), z[8:]


def made(make: Callable[..., Any], **options: Any) -> Callable[[int, int], Samples]:
    return lambda seed, n: make(n + NEW, random_state=seed, **options)


RARE = made(data.make_classification, n_features=10, n_informative=5, weights=[0.85], flip_y=0.05)
WIDE = made(data.make_classification, n_features=40, n_informative=5, class_sep=0.5, flip_y=0.1)
TABLES: dict[str, tuple[Any, int, Any, str, Any]] = {  # samples, how many are searched, candidates, score, splits
    "coins, neighbours": (coins, 60, KNN, "accuracy", 5),
    "coins, tree": (coins, 100, TREE, "accuracy", 10),
    "moons, neighbours": (made(data.make_moons, noise=0.35), 100, KNN, "accuracy", 5),
    "rings, neighbours": (made(data.make_circles, noise=0.3, factor=0.5), 100, KNN, "accuracy", SPLITS),
    "wine, logistic": (known(data.load_wine), 60, LOGISTIC, "accuracy", 3),
    "cancer, tree": (known(data.load_breast_cancer), 150, TREE, "roc_auc", 5),
    "wide, logistic": (WIDE, 80, LOGISTIC, "neg_log_loss", 5),
    "rare, tree": (RARE, 150, TREE, "f1", 5),
    "diabetes, net": (known(data.load_diabetes), 150, NET, "neg_mean_squared_error", 5),
    "diabetes, ridge": (known(data.load_diabetes), 100, RIDGE, "r2", KFold(10)),
    "friedman, tree": (made(data.make_friedman1, noise=2.0), 120, REGRESSION_TREE, "r2", THRICE),
    "series, ridge": (series, 150, RIDGE, "neg_mean_squared_error", TimeSeriesSplit(5)),
}


def races(scores: np.ndarray, repeats: int, seed: int) -> Iterator[tuple[bool, float]]:
    """Of each order of the folds, whether the winner of all is kept, and the part of the fits that is spared."""
    (n, k), rng, means = scores.shape, np.random.default_rng(seed), scores.mean(axis=1)
    each = k // repeats
    drawn = (
        [int(r) * each + f for r in rng.permutation(repeats) for f in rng.permutation(each)] for _ in range(ORDERS)
    )
    for order in permutations(range(k)) if k <= 5 else drawn:
        race, made = Race(range(n), k, repeats=repeats), 0
        race.order = list(order)
        while pairs := race.next_folds():
            made += len(pairs)
            for number, fold in pairs:
                race.tell(number, -scores[number, fold])
        yield max(means[list(race.kept())]) >= means.max() - 1e-12, 1 - made / scores.size


def measured(name: str, seconds: float) -> tuple[dict[str, Any], dict[str, Any]]:
    draw, n, (model, grid), scoring, cv = TABLES[name]
    rows, raced, begun = [], [], time.process_time()
    while time.process_time() - begun < seconds or len(rows) < 2:
        X, y = draw(len(rows), n)
        alike = {"default": True, "scoring": scoring, "refit": False, "workers": 0}
        search = GridSearchCV(model, grid, cv=cv, **alike).fit(X[:n], y[:n])
        split = [(np.arange(n), np.arange(n, len(y)))]
        truth = GridSearchCV(model, grid, cv=split, **alike).fit(X, y).cv_results_["mean_test_score"]
        truth = np.full(len(truth), 0.5) if draw is coins else truth
        found, k = winner_of(search), search.n_splits_
        scores, true = found.scores[found.candidate], truth[found.candidate]
        student = t.ppf(0.975, k - 1) * scores.std(ddof=1) / np.sqrt(k)
        taken = found.default_candidate if found.default_will_do else found.candidate
        says = found.gain_interval.low > 0
        rows.append((
            found.score - true, found.corrected - true, abs(found.score - true) <= student,
            found.interval.low <= true <= found.interval.high, says, says and true <= truth[0], true - truth[0],
            truth[taken] - truth[0],
        ))  # fmt: skip
        if len(raced) < RACED:
            raced.append(np.mean(list(races(found.scores, search._splits.get("repeats", 1), len(raced))), axis=0))
    means, sums, races_ = np.mean(rows, axis=0), np.sum(rows, axis=0), np.array(raced)
    error = 100 * np.std(rows, axis=0)[1] / np.sqrt(len(rows))
    splits = type(cv).__name__ + f", {k}" if not isinstance(cv, int) else cv
    return {
        "table": name, "score": scoring, "samples": n, "splits": splits, "searches": len(rows),
        "bias of best_score_": f"{100 * means[0]:+.1f}", "of corrected": f"{100 * means[1]:+.1f} +- {error:.1f}",
        "Student covers": f"{means[2]:.0%}", "interval covers": f"{means[3]:.0%}",
        "more than chance": f"{sums[4]:.0f}, wrong {sums[5]:.0f}", "winner - default": f"{100 * means[6]:+.1f}",
        "careful - default": f"{100 * means[7]:+.1f}",
    }, {
        "table": name, "folds": k, "data sets": len(raced), "winner kept": f"{races_[:, 0].mean():.1%}",
        "in less than 95 % of orders": int((races_[:, 0] < 0.95).sum()), "lowest": f"{races_[:, 0].min():.0%}",
        "fits spared": f"{races_[:, 1].mean():.0%}",
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", default=list(TABLES))
    parser.add_argument("--seconds", type=float, default=40.0, help="CPU seconds of each table")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = [measured(name, options.seconds) for name in options.tables]
    text = circumstances("scikit-learn", "numpy", CPU_seconds=options.seconds)
    publish("\n\n".join([text, *(table(list(part)) for part in zip(*rows, strict=True))]), options.results)


if __name__ == "__main__":
    main()
