"""Which tasks of a search one worker does together, how they may be divided, and what they cost beside each other.

Tasks are solved as one grid (`grids`), or share fits along a graph (`fit_graph`), or share the transformers of a
Pipeline, or are done alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

from mpitune import svm
from mpitune.sklearn.answers import standard
from mpitune.sklearn.fit_graph import Plan, StepFit, digest, graph
from mpitune.sklearn.grids import HEARD, SVC, WHOLE_GRID, family_of_grid, last_step, parted, why_no_grid
from mpitune.sklearn.sharing import family_of
from mpitune.sklearn.sharing.family import Family
from mpitune.sklearn.task import Task

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_PARTS = 32  # of a batch; a part can be divided in its turn
SETTING = 0.01  # cost of a setting, beside that of the fit of a step which serves it


@dataclass(frozen=True)
class Group:
    """Tasks, by key, that one worker does together.

    They are a "grid", on all splits by the protocol; "shared", on one split along a plan; "steps", where equal
    transformers of a Pipeline are fitted once; or "alone".
    """

    keys: tuple[str, ...]
    how: str


@dataclass(frozen=True)
class Sharing:
    """What the candidates of a study may share, by the arguments of the search, and what was found out about them."""

    accelerate: bool
    share: str | bool
    memo: dict[tuple[Any, ...], Any] = field(default_factory=dict, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "memo": {}}

    def once(self, find: Callable[..., T], key: Any, *arguments: Any) -> T:
        """What `find` returns for these arguments; it is asked once for each key."""
        if (find, key) not in self.memo:
            self.memo[find, key] = find(*arguments)
        known: T = self.memo[find, key]
        return known

    def family(self, estimator: Any) -> Family | None:
        """The family of an estimator in a Pipeline, or alone on one split."""
        grid = family_of_grid(estimator) if self.accelerate else None
        return grid or family_of(type(estimator), self.share)


def groups_of(tasks: Sequence[Task], sharing: Sharing) -> list[Group]:
    """The tasks in groups."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    shared: dict[int, dict[int, Task]] = {}
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
            made.append(Group(ordered, "alone" if fit.is_single else "shared"))
    return made


def parts_of(tasks: Mapping[int, Task], how: str, sharing: Sharing, *, within: bool) -> list[tuple[str, ...]]:
    """The keys of the tasks of one split in parts, each of which a worker can do without the others.

    Of "steps" each candidate is a part; of "shared" those that share the fit of the last step. `within`: whether such a
    fit is divided too, into the parts of its family.
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


def graph_of(tasks: Mapping[int, Task], sharing: Sharing) -> tuple[StepFit, ...]:
    """The graph of fits of the tasks of one split, by candidate; most splits have the same.

    It is empty where parameters cannot be set: scikit-learn says so when it fits the candidates one by one.
    """
    return sharing.once(_graph, tuple(tasks), tasks, sharing) if tasks else ()


def _graph(tasks: Mapping[int, Task], sharing: Sharing) -> tuple[StepFit, ...]:
    estimator = next(iter(tasks.values())).estimator
    try:
        return graph(estimator, {number: task.parameters for number, task in tasks.items()}, sharing.family)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        log.info("no plan: %s: %s", type(error).__name__, error)
        return ()


def plan_of(tasks: Sequence[Task], sharing: Sharing) -> Plan:
    """What the candidates share, as it is known before the work."""
    first, together = _first(tasks), _together(tasks, sharing)
    alone = {number: str(why_alone(task, sharing)) for number, task in first.items() if number not in together}
    fits = graph_of(together, sharing)
    if not fits:
        alone.update(dict.fromkeys(together, "its parameters cannot be set"))
    for fit in fits:
        if fit.is_single:
            alone[fit.candidates[0]] = "no other candidate has a fit in common with it"
    kept = tuple(fit for fit in fits if fit.candidates[0] not in alone)
    return Plan(kept, alone, len({task.split for task in tasks}))


def costs_of(tasks: Sequence[Task], sharing: Sharing) -> tuple[dict[int, float], frozenset[int]]:
    """The cost of each candidate on a split, in fits of a step, and whose fit of the last step may be divided.

    A fit counts in equal parts with the candidates that it serves, and not at all if it serves all of a batch: see
    `shared_cost_of`. Which fits take longer is not known before; but an ensemble's cost grows with its members. A fit
    of the last step may be divided if it is the only one below a first fit.
    """
    costs: dict[int, float] = {}
    single: list[int] = []
    for fit in graph_of(_together(tasks, sharing), sharing):
        if len(fit.candidates) > 1:
            costs.update(dict.fromkeys(fit.candidates, 0.0))
            _add_costs([fit], costs, of_all=True)
            single += fit.candidates if len(list(fit.ends)) == 1 else ()
    for number, task in _first(tasks).items():
        if number not in costs:
            members = [v for name, v in task.parameters.items() if name.endswith("n_estimators") and type(v) is int]
            costs[number] = float(max([1, *members]))
    return costs, frozenset(single)


def _add_costs(fits: Sequence[StepFit], costs: dict[int, float], of_all: bool) -> None:
    """of_all: whether the fit before these serves all candidates of the batch."""
    of_all = of_all and len(fits) == 1
    for fit in fits:
        own = 0.0 if of_all or fit.model is None else 1.0 / len(fit.candidates)
        for number in fit.candidates:
            costs[number] += SETTING + own
        _add_costs(fit.below, costs, of_all)


def shared_cost_of(tasks: Mapping[int, Task], how: str, sharing: Sharing) -> float:
    """The cost of what the parts of these tasks have in common, see `parts_of`."""
    if how == "steps":
        return len(next(iter(tasks.values())).estimator.steps) - 1.0
    fits, cost = graph_of(tasks, sharing), 0.0
    while len(fits) == 1:
        cost += fits[0].model is not None
        fits = fits[0].below
    return cost


def _first(tasks: Sequence[Task]) -> dict[int, Task]:
    """A task of each candidate, by its number."""
    first: dict[int, Task] = {}
    for task in tasks:
        first.setdefault(task.candidate, task)
    return first


def _together(tasks: Sequence[Task], sharing: Sharing) -> dict[int, Task]:
    """A task of each candidate that may share fits with others of its split."""
    return {number: task for number, task in _first(tasks).items() if why_alone(task, sharing) is None}


def _how(task: Task, sharing: Sharing) -> tuple[Any, ...]:
    """How the candidate of a task is done, see `Group`, and what it has in common with others that are done so."""
    return sharing.once(_find_how, task.candidate, task, sharing)


def _find_how(task: Task, sharing: Sharing) -> tuple[Any, ...]:
    if task.heard:
        return ("alone",)
    steps, last = parted(task)
    if steps is None and last is not None and sharing.accelerate and why_no_grid(task) is None:
        # Candidates of one gamma share a kernel.
        return "grid", digest({name: value for name, value in last.items() if name != "C"})
    if why_alone(task, sharing) is None:
        return ("shared",)
    return ("alone",) if steps is None else ("steps", digest(steps))


def in_grid(task: Task, sharing: Sharing) -> bool:
    """Whether a candidate is solved by an estimator that fits a whole grid, alone or at the end of a Pipeline."""
    how = _how(task, sharing)[0]
    return how == "grid" or (how == "shared" and sharing.accelerate and why_no_grid(task) is None)


def is_early(task: Task, sharing: Sharing) -> bool:
    """Whether a task of a grid is done before the solver is compiled: by a single fit of LIBSVM, which needs none."""
    return in_grid(task, sharing) and type(last_step(task.estimator)) is SVC and not svm.is_ready()


def why_alone(task: Task, sharing: Sharing) -> str | None:
    """Why a task can have no fit in common with another candidate of its split; None where it may."""
    return sharing.once(_find_why_alone, task.candidate, task, sharing)


def _find_why_alone(task: Task, sharing: Sharing) -> str | None:
    if task.heard:
        return HEARD
    estimator, parameters = task.estimator, task.parameters
    pipeline = type(estimator) is Pipeline and estimator.memory is None
    if not sharing.share and not (pipeline and sharing.accelerate and why_no_grid(task) is None):
        return "share is False"
    if isinstance(estimator, Pipeline) and not pipeline:
        return "the Pipeline has a memory of its own, or is of another class"
    if not pipeline and (family := sharing.family(estimator)) is None:
        return f"{type(estimator).__name__} shares no fit"
    if not pipeline and family is WHOLE_GRID and (reason := why_no_grid(task)) is not None:
        return reason
    if pipeline and {"steps", "memory", "transform_input", "verbose"} & set(parameters):
        return "the Pipeline itself is searched"
    if task.given_to_fit:
        return f"fit is given {', '.join(task.given_to_fit)}"
    if pipeline and task.kwargs["score_params"]:
        return "the Pipeline itself hands on what scorers are given"
    if not standard(task.kwargs["scorer"]):
        return "the scorer is a function of its own, which may look into the estimator"
    computed = any(isinstance(value, str) and value == "precomputed" for value in parameters.values())
    if computed or sharing.once(_is_pairwise, id(estimator), estimator):
        return "its samples are distances or kernels"
    return None


def _is_pairwise(estimator: Any) -> bool:
    return bool(get_tags(estimator).input_tags.pairwise)
