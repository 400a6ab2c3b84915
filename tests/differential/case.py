"""A whole random search from one integer, as text."""

from __future__ import annotations

import ast
import importlib
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tests.differential.data import BINARY, REGRESSION, Data, data, splits
from tests.differential.estimators import Model, model

SEARCHES = ("GridSearchCV", "RandomizedSearchCV", "HalvingGridSearchCV", "HalvingRandomSearchCV")
MODULES = (
    "sklearn.calibration", "sklearn.callback", "sklearn.compose", "sklearn.decomposition",
    "sklearn.discriminant_analysis", "sklearn.dummy", "sklearn.ensemble", "sklearn.feature_selection",
    "sklearn.impute", "sklearn.kernel_approximation", "sklearn.linear_model",
    "sklearn.metrics", "sklearn.model_selection", "sklearn.multiclass", "sklearn.multioutput", "sklearn.naive_bayes",
    "sklearn.neighbors", "sklearn.pipeline", "sklearn.preprocessing", "sklearn.svm", "sklearn.tree", "lightgbm",
    "xgboost",
)  # fmt: skip
FIRST = ("import numpy as np", "import pandas as pd", "from scipy import sparse, stats")
CUBE = "cube = lambda z: z**3"


@dataclass(frozen=True)
class Case:
    """A search, as text.

    Attributes:
        seed: it was made of.
        lines: that make the samples.
        model: the estimator.
        grids: parameters with their values; several are a list of grids.
        search: the class.
        options: further arguments of the class.
        ours: arguments that only our class has.
        given: to `fit`, beside X and y.
    """

    seed: int
    lines: tuple[str, ...]
    model: str
    grids: tuple[Mapping[str, tuple[str, ...]], ...]
    search: str
    options: Mapping[str, str] = field(default_factory=dict)
    ours: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)

    @property
    def grid(self) -> str:
        texts = [
            "{"
            + ", ".join(
                f"{key!r}: " + (values[0] if values[0].startswith("stats.") else f"[{', '.join(values)}]")
                for key, values in grid.items()
            )
            + "}"
            for grid in self.grids
        ]
        return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"

    def call(self, name: str, given: Mapping[str, str]) -> str:
        """The line that makes the search, by the class of that name."""
        arguments = [self.model, self.grid, *(f"{key}={text}" for key, text in given.items())]
        return f"{name}({', '.join(arguments)})"

    @property
    def fit(self) -> str:
        return ", ".join(["X, y", *(f"{key}={text}" for key, text in self.given.items())])

    def made(self, searches: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
        """Everything of the script by name: the samples, and `search`, which is not fitted yet.

        Args:
            searches: the class that each name of a search means.
            more: further arguments of the search.
        """
        names: dict[str, Any] = {**_everything(), **searches, "__name__": "a_case", "_more": dict(more)}
        call = self.call(self.search, self.options)[:-1] + ", **_more)"
        exec("\n".join([CUBE, *self.lines, f"search = {call}"]), names)
        return names

    @property
    def text(self) -> str:
        """The lines of a script, but for its imports; `GridSearchCV` is of scikit-learn or of this package."""
        given = {**self.options, **self.ours}
        return "\n".join([*self.lines, f"search = {self.call(self.search, given)}", f"search.fit({self.fit})"])


@cache
def _homes() -> dict[str, str]:
    """Public names, each with the module that has it."""
    importlib.import_module("sklearn.experimental.enable_halving_search_cv")
    found: dict[str, str] = {}
    for name in MODULES:
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", dir(module)):
            if public[0].isupper() or ("_" in public and name.startswith("sklearn")):
                found.setdefault(public, name)
    return {"chi2": "sklearn.feature_selection", **found}


@cache
def _everything() -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec("\n".join(FIRST), names)
    return {**{name: getattr(importlib.import_module(home), name) for name, home in _homes().items()}, **names}


def _scoring(draw: random.Random, found: Data) -> tuple[dict[str, str], list[str]]:
    """Arguments `scoring` and `refit`; the names of the metrics where there are several."""
    regression = found.task == REGRESSION
    if regression:
        names = ["r2", "neg_mean_squared_error", "neg_median_absolute_error", "neg_max_error", "explained_variance"]
        objects = [
            "make_scorer(mean_absolute_error, greater_is_better=False)",
            "lambda m, X, y: -float(np.mean((np.ravel(m.predict(X)) - np.ravel(y)) ** 2))",
        ]
        several = [
            "['r2', 'neg_mean_absolute_error']",
            "{'a': 'r2', 'b': make_scorer(max_error, greater_is_better=False)}",
        ]
    else:
        names = ["accuracy", "balanced_accuracy", "f1_macro", "neg_log_loss", "roc_auc", "average_precision"]
        names += ["roc_auc_ovr", "f1", "neg_brier_score", "matthews_corrcoef", "top_k_accuracy"]
        objects = [
            "make_scorer(f1_score, average='macro')",
            "make_scorer(roc_auc_score, response_method='predict_proba', multi_class='ovr')",
            "lambda m, X, y: float(np.mean(m.predict(X) == np.ravel(y)))",
        ]
        several = [
            "['accuracy', 'balanced_accuracy']", "('accuracy', 'neg_log_loss')",
            "{'a': 'accuracy', 'b': make_scorer(f1_score, average='macro')}",
            "lambda m, X, y: {'a': float(np.mean(m.predict(X) == np.ravel(y))), 'b': float(len(set(m.predict(X))))}",
        ]  # fmt: skip
        if found.task != BINARY:
            names = [name for name in names if name not in ("roc_auc", "average_precision", "f1")]
    kind = draw.random()
    if kind < 0.35:
        return {}, []
    if kind < 0.7:
        return {"scoring": repr(draw.choice(names))}, []
    if kind < 0.8:
        return {"scoring": draw.choice(objects)}, []
    text = draw.choice(several)
    metrics = re.findall(r"'(\w+)'(?::|, '|\]|\))", text)
    if text.startswith(("{", "lambda")):
        metrics = ["a", "b"]
    return {"scoring": text}, metrics


def _given(draw: random.Random, made: Model, cv: str) -> dict[str, str]:
    given = {"groups": "groups"} if "Group" in cv else {}
    if made.weights and draw.random() < 0.12:
        given[made.weights] = "w"
    elif draw.random() < 0.01:
        given["sample_weight"] = "w"
    return given


def _grids(draw: random.Random, made: Model) -> tuple[dict[str, tuple[str, ...]], ...]:
    """At most some 16 candidates, in one grid or two."""
    limit = draw.choice([2, 3, 5, 8, 16])
    values = {key: tuple(each) for key, each in made.values.items()}
    names = sorted(values)
    draw.shuffle(names)
    size = 1
    for name in names:
        most = max(1, limit // size)
        values[name] = values[name][:most]
        size *= len(values[name])
    if len(names) > 1 and draw.random() < 0.12:
        seeds = [name for name in names if name.endswith("random_state")]  # without it two fits would differ
        return tuple({name: values[name] for name in dict.fromkeys(part + seeds)} for part in (names[:1], names[1:]))
    return (values,)


def case_of(seed: int) -> Case:
    """The search of that seed."""
    draw = random.Random(seed)
    found = data(draw)
    made = model(draw, found)
    cv = splits(draw, found)
    search = draw.choices(SEARCHES, (62, 18, 12, 8))[0]
    options, metrics = _scoring(draw, found)
    if metrics and search.startswith("Halving") and draw.random() < 0.9:  # several metrics are refused there
        options, metrics = {}, []
    if cv is not None:
        options["cv"] = cv
    if metrics:
        mean = f"mean_test_{metrics[0]}"
        options["refit"] = draw.choice(
            [repr(metrics[0]), repr(metrics[-1]), "False", f"lambda r: int(np.argmax(r[{mean!r}]))"]
        )
    elif draw.random() < 0.15:
        options["refit"] = draw.choice(
            ["False", "lambda r: len(r['params']) // 2", "lambda r: int(np.argmin(r['mean_test_score']))"]
        )
    if draw.random() < 0.2:
        options["return_train_score"] = "True"
    if draw.random() < 0.25:
        options["error_score"] = draw.choice(["0.0", "-1.5", "'raise'", "np.nan"])
    grids = _grids(draw, made)
    lines = list(found.lines)
    if "monitor" in made.text:
        lines.append("monitor = ScoringMonitor(scoring='accuracy')")
    if search == "RandomizedSearchCV":
        options.update(n_iter=str(draw.choice([2, 4, 8])), random_state=str(draw.randrange(50)))
        spread = {"C": "stats.loguniform(1e-3, 1e2)", "alpha": "stats.loguniform(1e-4, 10)",
            "n_neighbors": "stats.randint(1, 12)",
                  "n_estimators": "stats.randint(1, 9)", "gamma": "stats.loguniform(1e-3, 1)"}  # fmt: skip
        grids = tuple(
            {
                key: (spread[key.split("__")[-1]],) if key.split("__")[-1] in spread and draw.random() < 0.3 else each
                for key, each in grid.items()
            }
            for grid in grids
        )
    elif search.startswith("Halving"):
        options.update(random_state=str(draw.randrange(50)), factor=draw.choice(["2", "3"]))
        if draw.random() < 0.3:
            options["min_resources"] = draw.choice(["10", "'smallest'", "15"])
        sizes = [key for grid in grids for key in grid if key.endswith(("n_estimators", "max_iter"))]
        if sizes and draw.random() < 0.5:
            options.update(resource=repr(sizes[0]), max_resources="12", min_resources="2")
            grids = tuple({key: each for key, each in grid.items() if key != sizes[0]} for grid in grids)
        if draw.random() < 0.2:
            options["aggressive_elimination"] = "True"
        if search == "HalvingRandomSearchCV":
            options["n_candidates"] = draw.choice(["4", "8"])
    ours: dict[str, str] = {}
    if draw.random() < 0.12:
        ours["share"] = "False"
    for part in (made.text, *options.values()):
        ast.parse(part)
    return Case(seed, tuple(lines), made.text, grids, search, options, ours, _given(draw, made, cv or ""))
