"""Which tasks of a search are evaluated together, and how: each with the reason."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

from mpitune import svm
from mpitune.sklearn.fits.answers import standard
from mpitune.sklearn.fits.fit_graph import Plan, StepFit, digest, graph
from mpitune.sklearn.fits.grids import SVC, WHOLE_GRID, family_of_grid, last_step, parted, why_no_grid
from mpitune.sklearn.fits.task import Task
from mpitune.sklearn.sharing import family_of
from mpitune.sklearn.sharing.family import Family

log = logging.getLogger(__name__)

Way = Literal["grid", "shared", "alone"]


class Method(NamedTuple):
    """How the tasks of a candidate are evaluated, see `Grouping`."""

    way: Way
    key: Any  # equal for candidates that are done so together
    unshared: str | None  # why it can have no fit in common with another candidate of its split; None where it may
    in_grid: bool = False  # whether the solver of a whole grid does it, alone or at the end of a Pipeline


class Group(NamedTuple):
    """Tasks, by key, that one worker does together, in the way of `Grouping`."""

    keys: tuple[str, ...]
    way: Way


@dataclass(frozen=True)
class Grouping:
    """The tasks of a search, and in which way each is evaluated.

    The way of a candidate: as a "grid", on all splits (`grids`); "shared", on one split along a graph
    of fits (`fit_graph`); or "alone". `method` has the reasons.
    """

    tasks: Sequence[Task] = ()
    share: bool = True
    _methods: dict[int, Method] = field(default_factory=dict, compare=False, repr=False)
    _graphs: dict[tuple[int, ...], tuple[StepFit, ...]] = field(default_factory=dict, compare=False, repr=False)

    def only(self, tasks: Sequence[Task]) -> Grouping:
        """The same for some of the tasks."""
        return replace(self, tasks=tasks)

    def __getstate__(self) -> dict[str, Any]:
        return {"tasks": self.tasks, "share": self.share, "_methods": {}, "_graphs": {}}

    @cached_property
    def first(self) -> dict[int, Task]:
        """A task of each candidate, by its number."""
        first: dict[int, Task] = {}
        for task in self.tasks:
            first.setdefault(task.candidate, task)
        return first

    @cached_property
    def sharers(self) -> dict[int, Task]:
        """A task of each candidate that may share fits with others of its split."""
        return {number: task for number, task in self.first.items() if self.method(task).unshared is None}

    @cached_property
    def groups(self) -> list[Group]:
        """All tasks in groups."""
        return self.groups_of(self.tasks)

    def groups_of(self, tasks: Sequence[Task]) -> list[Group]:
        """Some of the tasks in groups."""
        groups: dict[tuple[Any, ...], list[str]] = {}
        shared: dict[int, dict[int, Task]] = {}
        for task in tasks:
            way, key, *_ = self.method(task)
            if way == "shared":
                shared.setdefault(task.split, {})[task.candidate] = task
            else:  # all folds of a grid have the samples in common
                groups.setdefault((way, key if way == "grid" else task.key), []).append(task.key)
        made = [Group(tuple(keys), way) for (way, _), keys in groups.items()]
        for members in shared.values():
            fits = self.graph_of(members)
            if not fits:
                made += [Group((task.key,), "alone") for task in members.values()]
            for fit in fits:
                ordered = tuple(members[number].key for number in fit.candidates)
                made.append(Group(ordered, "alone" if fit.is_single else "shared"))
        return made

    def graph_of(self, members: Mapping[int, Task]) -> tuple[StepFit, ...]:
        """The graph of fits of tasks of one split, by candidate; most splits have the same.

        It is empty where parameters cannot be set: scikit-learn says so when it fits the candidates one by one.
        """
        key = tuple(members)
        if key not in self._graphs:
            candidates = {number: task.parameters for number, task in members.items()}
            try:
                self._graphs[key] = graph(members[key[0]].estimator, candidates, self.family) if key else ()
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                log.info("no plan: %s: %s", type(error).__name__, error)
                self._graphs[key] = ()
        return self._graphs[key]

    @cached_property
    def plan(self) -> Plan:
        """What the candidates share, as it is known before the work."""
        whys = {number: self.method(task).unshared for number, task in self.first.items()}
        alone = {number: why for number, why in whys.items() if why is not None}
        fits = self.graph_of(self.sharers)
        if not fits:
            alone.update(dict.fromkeys(self.sharers, "its parameters cannot be set"))
        for fit in fits:
            if fit.is_single:
                alone[fit.candidates[0]] = "no other candidate has a fit in common with it"
        kept = tuple(fit for fit in fits if fit.candidates[0] not in alone)
        return Plan(kept, alone, len({task.split for task in self.tasks}))

    @property
    def last_fits(self) -> dict[int, int | None]:
        """Of each candidate the first one with which it has its last fit in common; None for one of a whole grid."""
        last = {number: None if self.method(task).in_grid else number for number, task in self.first.items()}
        for fit in self.graph_of(self.sharers):
            for end in fit.ends:
                last.update({n: end.candidates[0] for n in end.candidates if last[n] is not None})
        return last

    def family(self, estimator: Any) -> Family | None:
        """The family of an estimator in a Pipeline, or alone on one split."""
        return (family_of_grid(estimator) or family_of(type(estimator))) if self.share else None

    def is_early(self, task: Task) -> bool:
        """Whether a task of a grid is done before the solver is compiled: by a single fit of LIBSVM."""
        return self.solves(task) and not svm.is_ready()

    def solves(self, task: Task) -> bool:
        """Whether the solver of grids has to do with it, also at the end of a Pipeline."""
        return self.method(task).in_grid and type(last_step(task.estimator)) is SVC

    def method(self, task: Task) -> Method:
        """How the candidate of a task is evaluated."""
        if task.candidate not in self._methods:
            self._methods[task.candidate] = self._method(task)
        return self._methods[task.candidate]

    def _method(self, task: Task) -> Method:
        steps, last = parted(task)
        no_grid = why_no_grid(task) if self.share else "share is False"
        unshared = self._why_unshared(task, no_grid)
        if no_grid is None and steps is None and last is not None:
            # Candidates of one gamma share a kernel.
            key = digest({name: value for name, value in last.items() if name != "C"})
            return Method("grid", key, unshared, in_grid=True)
        if unshared is not None:
            return Method("alone", None, unshared)
        return Method("shared", None, None, in_grid=no_grid is None)

    def _why_unshared(self, task: Task, no_grid: str | None) -> str | None:
        estimator, parameters = task.estimator, task.parameters
        pipeline = type(estimator) is Pipeline and estimator.memory is None
        if not self.share:
            return "share is False"
        if isinstance(estimator, Pipeline) and not pipeline:
            return "the Pipeline has a memory of its own, or is of another class"
        if not pipeline and (family := self.family(estimator)) is None:
            return f"{type(estimator).__name__} shares no fit"
        if not pipeline and family is WHOLE_GRID and no_grid is not None:
            return no_grid
        if pipeline and {"steps", "memory", "transform_input", "verbose"} & set(parameters):
            return "the Pipeline itself is searched"
        if task.given_to_fit:
            return f"fit is given {', '.join(task.given_to_fit)}"
        if pipeline and task.kwargs["score_params"]:
            return "the Pipeline itself hands on what scorers are given"
        if not standard(task.kwargs["scorer"]):
            return "the scorer is a function of its own, which may look into the estimator"
        computed = any(isinstance(value, str) and value == "precomputed" for value in parameters.values())
        if computed or self._pairwise:
            return "its samples are distances or kernels"
        return None

    @cached_property
    def _pairwise(self) -> bool:
        return bool(get_tags(self.tasks[0].estimator).input_tags.pairwise)
