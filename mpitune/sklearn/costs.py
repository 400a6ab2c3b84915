"""What the fits of a search are expected to take: before the work, and without measuring.

The seconds of a step are those of `formulas`. They decide in which order batches are handed out, and where one is
divided so that no slot is idle. A plan says what it saves by them. No result depends on them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline

from mpitune.sklearn.fit_graph import StepFit
from mpitune.sklearn.formulas import Shape, after, cost_of
from mpitune.sklearn.task import Task


@dataclass
class Expected:
    """Seconds that a graph of fits takes on one split.

    Attributes:
        shared: in all, as planned.
        alone: if each candidate were fitted by itself.
        above: of the fits before the last step that all candidates hang below.
        once: what the candidates of a fit of the last step have in common, by its first candidate.
        of: for each candidate what comes on top; what only some have in common counts with the first of them, and so
            does `once`, unless there is one fit of the last step only.
    """

    shared: float = 0.0
    alone: float = 0.0
    above: float = 0.0
    once: dict[int, float] = field(default_factory=dict)
    of: dict[int, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, seconds: float, numbers: Sequence[int], all_of_them: bool) -> None:
        """Seconds of a fit before the last step, and the candidates below it."""
        self.shared += seconds
        if all_of_them:
            self.above += seconds
        else:
            self.of[numbers[0]] += seconds


def expected(fits: tuple[StepFit, ...], shape: Shape) -> Expected:
    """What these fits, and all that hangs below, are expected to take."""
    found = Expected()
    for fit in fits:
        _add(fit, shape, found, len(fits) == 1)
    if len(found.once) > 1:
        for first, seconds in found.once.items():
            found.of[first] += seconds
    return found


def _add(fit: StepFit, shape: Shape, found: Expected, all_of_them: bool) -> None:
    """all_of_them: whether all candidates hang below this fit."""
    values = [setting.values for setting in fit.settings]
    costs = [cost_of(fit.model, one, shape) for one in values]
    if fit.family is None:  # it has one setting
        once, own = costs[0].alone, [0.0]
    else:
        once, own = max(cost.once for cost in costs), [cost.own for cost in costs]
        for places in fit.family.parts(fit.model, values):
            own[places[0]] += max(costs[place].part for place in places)
    found.alone += sum(cost.alone * len(s.candidates) for cost, s in zip(costs, fit.settings, strict=True))
    if not any(setting.fits for setting in fit.settings):
        found.shared += once + sum(own)
        found.once[fit.candidates[0]] = once
        for seconds, setting in zip(own, fit.settings, strict=True):
            for number in setting.candidates:
                found.of[number] += seconds / len(setting.candidates)
        return
    found.add(once, fit.candidates, all_of_them)
    all_below = all_of_them and len(fit.settings) == 1
    for seconds, setting in zip(own, fit.settings, strict=True):
        found.add(seconds, setting.candidates, all_below)
        for below in setting.fits:
            _add(below, after(fit.model, setting.values, shape), found, all_below and len(setting.fits) == 1)


def expected_alone(estimator: Any, parameters: Mapping[str, Any], shape: Shape) -> list[float]:
    """Seconds of each step of a candidate that is fitted by itself on one split."""
    seconds = []
    for name, step in estimator.steps if isinstance(estimator, Pipeline) else [("", estimator)]:
        prefix = f"{name}__" if name else ""
        own = {key[len(prefix) :]: value for key, value in parameters.items() if key.startswith(prefix)}
        whole = parameters.get(name, step) if name else step
        model = None if whole in (None, "passthrough") else whole
        seconds.append(cost_of(model, own, shape).alone)
        shape = after(model, own, shape)
    return seconds


def shape_of(task: Task) -> Shape:
    """The size of a task."""
    X, y = task.args[:2]
    size, labels = getattr(X, "shape", (1, 1)), np.asarray(y)
    classes = len(np.unique(labels)) if labels.ndim == 1 and labels.dtype.kind in "biuUS" else 1
    n_train, n_test = (int(np.size(task.kwargs[name])) for name in ("train", "test"))
    n_asked = n_test + n_train * bool(task.kwargs["return_train_score"])
    n_features = size[1] if len(size) > 1 else 1
    return Shape(n_train, n_asked, n_features, classes if classes <= 100 else 1, *_values_of(X))


def _values_of(X: Any) -> tuple[float, bool]:
    """About how many different values a feature has, at most 256, and whether they are whole; from some of them."""
    if type(X) is not np.ndarray or X.ndim != 2 or X.dtype.kind not in "biuf" or not X.size:
        return 256, False
    some = X[:: -(-len(X) // 500), :: -(-X.shape[1] // 16)]
    different = 1 + np.count_nonzero(np.diff(np.sort(some, axis=0), axis=0), axis=0)
    # Where a part of the samples has few values, all have few.
    values = float(np.mean(np.where(different > len(some) / 4, 256, np.minimum(different, 256))))
    return values, bool((np.rint(some) == some).all())
