"""Estimators that fit a whole grid at once, and which tasks are done together.

The protocol is one method of an estimator:

    fit_grid(candidates, X, y, splits, sample_weight=None, parts=None)

It yields, in any order, one object for each candidate (parameters as for `set_params`) and split (indices of training
and validation samples), with the attributes

    candidate, split    their numbers
    model               a fitted estimator, or None
    error               None, or the exception that `fit` would have raised
    seconds             the candidate's part of the time taken

`parts` has, for each split, its training and validation samples, as the objects that the scorers will pass to the
model. For these very objects a model may answer from what the grid has computed. For `sklearn.svm.SVC` and
`kernel_svm.SVC`, alone or as the last step of a Pipeline, `kernel_svm.fit_grid` does it for any kernel that has a name.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.svm import SVC  # now, as `common.accelerate` gives the name another meaning
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import _safe_split

import kernel_svm
from common.cluster.devices import free_memory, workers_here
from common.sklearn.costs import Shape, expected, expected_alone
from common.sklearn.plan import Plan, StepFit, cloned, digest, graph
from common.sklearn.scores import FittedModel, answer, standard, weight_name
from common.sklearn.sharing import family_of
from common.sklearn.sharing.family import Family, Settings, SplitPart

log = logging.getLogger(__name__)

MOST_PARTS = 32  # of a batch; a part can be divided in its turn
SHARED = "it shares fits with other candidates"  # why a task is no part of a grid


@dataclass(frozen=True)
class Group:
    """Tasks, by key, that one worker does together.

    Attributes:
        how: "grid", on all splits by the protocol; "shared", on one split along a plan; "steps", where equal
            transformers of a Pipeline are fitted once; "alone".
    """

    keys: tuple[str, ...]
    how: str


@dataclass(frozen=True)
class Sharing:
    """What a search shares.

    Attributes:
        accelerate: grids by the protocol.
        share: "exact", "tolerance" or False, as the search has it.
        graphs: those of one study, by candidates.
        hows: how each of its candidates is done.
        reasons: why each of its candidates is done alone.
        pairwise: whether the samples of an estimator are distances or kernels, by its identity.
    """

    accelerate: bool
    share: str | bool
    graphs: dict[tuple[int, ...], tuple[StepFit, ...]] = field(default_factory=dict, compare=False, repr=False)
    hows: dict[int, tuple[Any, ...]] = field(default_factory=dict, compare=False, repr=False)
    reasons: dict[int, str | None] = field(default_factory=dict, compare=False, repr=False)
    pairwise: dict[int, bool] = field(default_factory=dict, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "graphs": {}, "hows": {}, "reasons": {}, "pairwise": {}}

    def family(self, estimator: Any) -> Family | None:
        """The family of an estimator in a Pipeline, or alone on one split."""
        if self.accelerate and _method(estimator) is not None:
            kernel = getattr(estimator, "kernel", None) if isinstance(estimator, SVC) else None
            return None if callable(kernel) or kernel == "precomputed" else _WHOLE
        return family_of(type(estimator), self.share)


def groups_of(tasks: Sequence[Any], sharing: Sharing) -> list[Group]:
    """The tasks (see `Task`) in groups."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    shared: dict[int, dict[int, Any]] = {}
    for task in tasks:
        how = _how(task, sharing)
        if how[0] == "shared":
            shared.setdefault(task.split, {})[task.candidate] = task
            continue
        # All folds of a grid have the samples in common.
        key = how if how[0] == "grid" else (*how, task.key if how[0] == "alone" else task.split)
        groups.setdefault(key, []).append(task.key)
    made = [Group(tuple(keys), how) for (how, *_), keys in groups.items()]
    for members in shared.values():
        fits = graph_of(members, sharing)
        if not fits:
            made += [Group((task.key,), "alone") for task in members.values()]
        for fit in fits:
            ordered = tuple(members[number].key for number in fit.candidates)
            together = len(ordered) > 1 or fit.family is not None
            made.append(Group(ordered, "shared" if together else "alone"))
    return made


def _how(task: Any, sharing: Sharing) -> tuple[Any, ...]:
    """How the candidate of a task is done, see `Group`, and what it has in common with others that are done so."""
    if task.candidate not in sharing.hows:
        sharing.hows[task.candidate] = _found_how(task, sharing)
    return sharing.hows[task.candidate]


def _found_how(task: Any, sharing: Sharing) -> tuple[Any, ...]:
    steps, last = _parted(task)
    if steps is None and sharing.accelerate and why_not(task) is None:  # candidates of one gamma share a kernel
        return "grid", digest({name: value for name, value in last.items() if name != "C"})
    if why_alone(task, sharing) is None:
        return ("shared",)
    return ("alone",) if steps is None else ("steps", digest(steps))


def parts_of(tasks: Mapping[int, Any], how: str, sharing: Sharing, within: bool) -> list[tuple[str, ...]]:
    """The keys of the tasks of one split in parts, each of which a worker can do without the others.

    Args:
        tasks: by candidate.
        how: "steps", where each candidate is a part, or "shared", where those are that share the fit of the last step.
        sharing: what the search shares.
        within: whether a fit of the last step is divided too, into the parts of its family.
    """
    if how == "steps":
        return [tuple(tasks[number].key for number in numbers) for numbers in _few([[number] for number in tasks])]
    ends = [end for fit in graph_of(tasks, sharing) for end in fit.ends]
    groups = [end.candidates for end in ends]
    if within and len(ends) == 1 and (family := ends[0].family) is not None:
        settings = ends[0].settings
        parts = family.parts(ends[0].model, [setting.values for setting in settings])
        groups = [tuple(number for place in places for number in settings[place].candidates) for places in parts]
    return [tuple(tasks[number].key for number in numbers) for numbers in _few(groups)]


def _few(groups: Sequence[Sequence[int]]) -> list[list[int]]:
    """The groups, neighbouring ones joined, so that there are `MOST_PARTS` at most."""
    n = min(len(groups), MOST_PARTS)
    bounds = [len(groups) * i // n for i in range(n + 1)]
    return [[number for group in groups[a:b] for number in group] for a, b in pairwise(bounds)]


def shape_of(task: Any) -> Shape:
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


def costs_of(tasks: Sequence[Any], sharing: Sharing) -> tuple[dict[int, float], frozenset[int]]:
    """Seconds that each candidate is expected to take on a split, see `Expected.of`.

    Those that have only transformers in common cost what the last step does. And the candidates below a first fit with
    one fit of the last step: that may be divided itself.
    """
    first, together = _first(tasks), _together(tasks, sharing)
    shape = shape_of(tasks[0])
    costs: dict[int, float] = {}
    single: list[int] = []
    for fit in graph_of(together, sharing) if together else ():
        found = expected((fit,), shape)
        costs.update(found.of)
        single += fit.candidates if len(found.once) == 1 else ()
    alike = Counter(_how(task, sharing) for task in first.values())
    for number, task in first.items():
        if number not in costs:
            steps = expected_alone(task.estimator, task.kwargs["parameters"] or {}, shape)
            how = _how(task, sharing)
            costs[number] = steps[-1] if how[0] == "steps" and alike[how] > 1 else sum(steps)
    return costs, frozenset(single)


def shared_cost_of(tasks: Mapping[int, Any], how: str, sharing: Sharing, within: bool) -> float:
    """Seconds of what the parts of these tasks have in common; the arguments are those of `parts_of`."""
    if how == "steps":
        first = next(iter(tasks.values()))
        return sum(expected_alone(first.estimator, first.kwargs["parameters"] or {}, shape_of(first))[:-1])
    found = expected(graph_of(tasks, sharing), shape_of(next(iter(tasks.values()))))
    return found.above + (sum(found.once.values()) if within else 0.0)


def _first(tasks: Sequence[Any]) -> dict[int, Any]:
    """A task of each candidate, by its number."""
    first: dict[int, Any] = {}
    for task in tasks:
        first.setdefault(task.candidate, task)
    return first


def _together(tasks: Sequence[Any], sharing: Sharing) -> dict[int, Any]:
    """A task of each candidate that may share fits with others of its split."""
    return {number: task for number, task in _first(tasks).items() if why_alone(task, sharing) is None}


def graph_of(tasks: Mapping[int, Any], sharing: Sharing) -> tuple[StepFit, ...]:
    """The graph of fits of the tasks of one split, by candidate; most splits have the same.

    It is empty where parameters cannot be set: scikit-learn says so when it fits the candidates one by one.
    """
    numbers = tuple(tasks)
    if numbers not in sharing.graphs:
        parameters = {number: task.kwargs["parameters"] or {} for number, task in tasks.items()}
        try:
            sharing.graphs[numbers] = graph(tasks[numbers[0]].estimator, parameters, sharing.family)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            log.info("no plan: %s: %s", type(error).__name__, error)
            sharing.graphs[numbers] = ()
    return sharing.graphs[numbers]


def plan_of(tasks: Sequence[Any], sharing: Sharing) -> Plan:
    """What the candidates share, as it is known before the work."""
    first, together = _first(tasks), _together(tasks, sharing)
    alone = {number: str(why_alone(task, sharing)) for number, task in first.items() if number not in together}
    fits = graph_of(together, sharing) if together else ()
    if not fits:
        alone.update(dict.fromkeys(together, "its parameters cannot be set"))
    for fit in fits:
        if len(fit.candidates) == 1 and fit.family is None:
            alone[fit.candidates[0]] = "no other candidate has a fit in common with it"
    kept = tuple(fit for fit in fits if fit.candidates[0] not in alone)
    shape, n_splits = shape_of(tasks[0]), len({task.split for task in tasks})
    found = expected(kept, shape)
    singles = sum(
        sum(expected_alone(first[number].estimator, first[number].kwargs["parameters"] or {}, shape))
        for number in alone
    )
    return Plan(kept, alone, n_splits, n_splits * (found.shared + singles), n_splits * (found.alone + singles))


def why_alone(task: Any, sharing: Sharing) -> str | None:
    """Why a task can have no fit in common with another candidate of its split; None where it may."""
    if task.candidate not in sharing.reasons:
        sharing.reasons[task.candidate] = _why_alone(task, sharing)
    return sharing.reasons[task.candidate]


def _why_alone(task: Any, sharing: Sharing) -> str | None:
    estimator, parameters = task.estimator, task.kwargs["parameters"] or {}
    pipeline = type(estimator) is Pipeline and estimator.memory is None
    if not sharing.share and not (pipeline and sharing.accelerate and why_not(task) is None):
        return "share is False"
    if isinstance(estimator, Pipeline) and not pipeline:
        return "the Pipeline has a memory of its own, or is of another class"
    if not pipeline and (family := sharing.family(estimator)) is None:
        return f"{type(estimator).__name__} shares no fit"
    if not pipeline and family is _WHOLE and (reason := why_not(task)) is not None:
        return reason
    if pipeline and {"steps", "memory", "transform_input", "verbose"} & set(parameters):
        return "the Pipeline itself is searched"
    given = [name for name, value in task.kwargs["fit_params"].items() if value is not None]
    if set(given) - {weight_name(estimator)}:
        return f"fit is given {', '.join(given)}"
    if not standard(task.kwargs["scorer"]):
        return "the scorer is a function of its own, which may look into the estimator"
    if "precomputed" in [value for value in parameters.values() if isinstance(value, str)]:
        return "its samples are distances or kernels"
    if id(estimator) not in sharing.pairwise:  # one for all tasks, as a rule
        sharing.pairwise[id(estimator)] = bool(get_tags(estimator).input_tags.pairwise)
    return "its samples are distances or kernels" if sharing.pairwise[id(estimator)] else None


class WholeGrid(Family):
    """An estimator with the protocol, at the end of a Pipeline: it takes whatever candidates differ in."""

    shared = frozenset()
    single = True

    def shares(self, name: str) -> bool:
        return True

    def fit(self, model: Any, settings: Settings, part: SplitPart) -> list[Any]:
        method = _method(model)
        assert method is not None
        X, y, weight, splits = _joined(part)
        found: list[Any] = [None] * len(settings)
        asked = [(part.X if part.X_train is None else part.X_train, part.X_test)]
        for fitted in method(
            [cloned(setting) for setting in settings], X, y, splits, sample_weight=weight, parts=asked
        ):
            found[fitted.candidate] = fitted.model if fitted.error is None else None
        return found


_WHOLE = WholeGrid()


def why_not(task: Any) -> str | None:
    """Why a task is not done as part of a grid; None where it is."""
    steps, last = _parted(task)
    estimator = task.estimator if steps is None else task.estimator.steps[-1][1]
    if _method(estimator) is None:
        return f"{type(estimator).__name__} has no fit_grid"
    if last is _REPLACED:
        return "a step of the Pipeline is itself searched"
    if isinstance(estimator, SVC):
        kernel = last.get("kernel", estimator.kernel)
        if callable(kernel):
            return "the kernel is a Python function"
        if kernel == "precomputed" and steps is not None:
            return "a precomputed kernel comes out of a Pipeline"
    given = [name for name, value in task.kwargs["fit_params"].items() if value is not None]
    if set(given) - {weight_name(task.estimator)}:
        return f"fit is given {', '.join(given)}"
    if steps is not None and not standard(task.kwargs["scorer"]):
        return "the scorer is a function of its own, which may look into the Pipeline"
    return None


_REPLACED: dict[str, Any] = {}


def _parted(task: Any) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """(parameters of the transformers, None without transformers; parameters of the last step), of a candidate."""
    parameters = task.kwargs["parameters"] or {}
    if not isinstance(task.estimator, Pipeline):
        return None, parameters
    prefix = task.estimator.steps[-1][0] + "__"
    whole = {name for name, _ in task.estimator.steps} | {"steps"}
    if whole & set(parameters):
        return {name: value for name, value in parameters.items() if not name.startswith(prefix)}, _REPLACED
    last = {name.removeprefix(prefix): value for name, value in parameters.items() if name.startswith(prefix)}
    return {name: value for name, value in parameters.items() if not name.startswith(prefix)}, last


def _method(estimator: Any) -> Callable[..., Iterator[Any]] | None:
    if hasattr(estimator, "fit_grid"):
        method: Callable[..., Iterator[Any]] = estimator.fit_grid
        return method
    if type(estimator) in (SVC, kernel_svm.SVC):
        return partial(_fit_grid_here, estimator)
    return None


def _fit_grid_here(estimator: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    """`kernel_svm.fit_grid` with this worker's part of the memory that is free now."""
    options["memory"] = free_memory() // 2 // workers_here()
    return kernel_svm.fit_grid(estimator, *arguments, **options)


def solved(tasks: Sequence[Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """(task, scikit-learn's answer) of the tasks of one "grid"; what could not be solved is left out."""
    first = tasks[0]
    X, y = first.args[:2]
    splits = {task.split: (task.kwargs["train"], task.kwargs["test"]) for task in tasks}
    candidates = {task.candidate: task.kwargs["parameters"] or {} for task in tasks}
    wanted = {(task.candidate, task.split): task for task in tasks}
    estimator, begin = clone(first.estimator), time.perf_counter()
    parts, labels = [], []
    example = clone(estimator).set_params(**cloned(first.kwargs["parameters"] or {}))
    for train, test in splits.values():
        X_train, y_train = _safe_split(example, X, y, train)
        X_test, y_test = _safe_split(example, X, y, test, train)
        parts.append((X_train, X_test))
        labels.append((y_train, y_test))
    weight = first.kwargs["fit_params"].get("sample_weight")
    shared_seconds = (time.perf_counter() - begin) / len(tasks)
    method, numbers = _method(estimator), list(candidates)
    assert method is not None
    names = list(splits)
    for fitted in method(list(candidates.values()), X, y, list(splits.values()), sample_weight=weight, parts=parts):
        task = wanted.get((numbers[fitted.candidate], names[fitted.split]))
        if task is not None:
            found = FittedModel(fitted.model, fitted.error, fitted.seconds + shared_seconds)
            yield task, answer(task, found, parts[fitted.split], labels[fitted.split])


def _joined(part: SplitPart) -> tuple[Any, Any, Any, list[tuple[np.ndarray, np.ndarray]]]:
    """Training and validation samples below each other, their labels and weights, and the split."""
    n_train, n_test = part.X.shape[0], part.X_test.shape[0]
    if scipy.sparse.issparse(part.X):
        X = scipy.sparse.vstack((part.X, part.X_test), format="csr")
    else:
        X = np.concatenate([np.asarray(part.X), np.asarray(part.X_test)])
    y = np.concatenate([np.asarray(part.y), np.asarray(part.y_test)])
    weight = None if part.weight is None else np.concatenate([np.asarray(part.weight), np.ones(n_test)])
    return X, y, weight, [(np.arange(n_train), np.arange(n_train, n_train + n_test))]
