"""Fourteen searches whose candidates are raced by `benchmarks/race.py`: samples drawn by a seed, a grid, a score."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from sklearn import datasets as d
from sklearn.base import is_classifier
from sklearn.ensemble import HistGradientBoostingClassifier as Boosting
from sklearn.ensemble import RandomForestRegressor as Forest
from sklearn.linear_model import ElasticNet, LogisticRegression, Ridge
from sklearn.model_selection import RepeatedKFold, RepeatedStratifiedKFold
from sklearn.neighbors import KNeighborsClassifier as Neighbours
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier as Tree

from mpitune.sklearn import GridSearchCV

LOG = np.logspace
TREE = {"max_depth": [1, 2, 3, 4, 6, 8], "min_samples_leaf": [1, 2, 4, 8, 16], "criterion": ["gini", "entropy"]}
NEAR = {"n_neighbors": [*range(1, 31)], "weights": ["uniform", "distance"], "p": [1, 2]}
BOOST = {"learning_rate": [0.03, 0.1, 0.3], "max_leaf_nodes": [3, 8, 31], "max_iter": [10, 20, 40]}
FOREST = {"max_features": [0.2, 0.4, 0.7, 1.0], "min_samples_leaf": [1, 3, 6, 12], "n_estimators": [5, 15, 40]}
NET = {"hidden_layer_sizes": [8, 32], "alpha": [1e-4, 1e-2, 1], "learning_rate_init": [1e-3, 3e-3, 1e-2, 3e-2]}
BALANCED = {"C": LOG(-4, 4, 15), "class_weight": [None, "balanced"]}
NETS = {"alpha": LOG(-3, 1.5, 10), "l1_ratio": [0.05, 0.2, 0.5, 0.7, 0.9, 1]}
SPARSE = LogisticRegression(solver="liblinear", random_state=0)
made = partial(d.make_classification, n_samples=300, n_informative=5, class_sep=0.8)
wide = partial(d.make_classification, n_samples=200, n_features=100, n_informative=6, flip_y=0.1)
line = partial(d.make_regression, n_samples=100, n_features=60, n_informative=10, noise=80)


def drawn(load: Any, n: int, random_state: int) -> Any:
    X, y = load(return_X_y=True)
    some = np.random.default_rng(random_state).permutation(len(y))[:n]
    return X[some], y[some]


TABLES: dict[str, tuple[Any, ...]] = {  # samples, estimator, grid, score
    "cancer, SVC": (
        partial(drawn, d.load_breast_cancer, 200),
        SVC(),
        {"C": LOG(-2, 3, 7), "gamma": LOG(-4, 1, 7)},
        None,
    ),
    "digits, neighbours": (partial(drawn, d.load_digits, 300), Neighbours(), NEAR, None),
    "wine, logistic": (partial(drawn, d.load_wine, 90), LogisticRegression(max_iter=300), BALANCED, None),
    "iris, tree": (partial(drawn, d.load_iris, 75), Tree(random_state=0), TREE, None),
    "diabetes, elastic net": (partial(drawn, d.load_diabetes, 220), ElasticNet(max_iter=2000), NETS, "r2"),
    "made, boosting": (partial(made, flip_y=0.2), Boosting(random_state=0, min_samples_leaf=10), BOOST, None),
    "moons, SVC": (partial(d.make_moons, 200, noise=0.35), SVC(), {"C": LOG(-2, 3, 6), "gamma": LOG(-4, 1, 6)}, None),
    "friedman, forest": (partial(d.make_friedman1, 200, noise=3), Forest(random_state=0), FOREST, "r2"),
    "noise, tree": (partial(made, flip_y=1.0), Tree(random_state=0), TREE, None),
    "digits, network": (partial(drawn, d.load_digits, 300), MLPClassifier(max_iter=40, random_state=0), NET, None),
    "wide, logistic": (wide, SPARSE, {"C": LOG(-3, 2, 15), "l1_ratio": [0, 1]}, "roc_auc"),
    "rare, tree": (partial(made, flip_y=0.05, weights=[0.88]), Tree(random_state=0), TREE, "f1"),
    "sparse, ridge": (line, Ridge(), {"alpha": LOG(-3, 5, 60)}, "neg_mean_squared_error"),
    "noise, neighbours": (partial(made, flip_y=1.0), Neighbours(), NEAR, None),
}


def searched(name: str, seed: int, folds: int, repeats: int = 1, race: float | None = None) -> GridSearchCV:
    source, model, grid, scoring = TABLES[name]
    X, y = source(random_state=seed)
    kind = RepeatedStratifiedKFold if is_classifier(model) else RepeatedKFold
    cv = kind(n_splits=folds, n_repeats=repeats, random_state=seed)
    search = GridSearchCV(model, grid, scoring=scoring, cv=cv, workers=0, race=race, refit=False)
    return search.fit(StandardScaler().fit_transform(X), y)


def losses_of(name: str, seed: int, folds: int, repeats: int) -> np.ndarray:
    search = searched(name, seed, folds, repeats)
    return -np.column_stack([search.cv_results_[f"split{n}_test_score"] for n in range(search.n_splits_)])
