"""The study of a search: a trial is one candidate on one fold."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from joblib.parallel import get_active_backend
from sklearn.metrics._scorer import _MultimetricScorer

from mpitune.errors import UsageError
from mpitune.experiment import Data, Experiment, Objective, WorkerContext
from mpitune.identity import header_text, identity, require_identity
from mpitune.limit import SearchLimit
from mpitune.port import COST_UNCERTAINTY, Reporting, Scheduling
from mpitune.processes.process import in_child, packed
from mpitune.sklearn.fits.answers import Raised, cv_line, decoded, exception_of
from mpitune.sklearn.fits.costs import costs_of, parts_of, shared_cost_of
from mpitune.sklearn.fits.evaluator import Config, Evaluator
from mpitune.sklearn.fits.grouping import Grouping, Way
from mpitune.sklearn.fits.task import Task
from mpitune.sklearn.search.place import modules_of
from mpitune.sklearn.search.race import FoldRace, counts
from mpitune.sklearn.search.winner import Careful, score_name
from mpitune.storage.lines import read_header
from mpitune.trial import Batch, Evaluation, Parameter, Result, Rounds, Trial


@dataclass(frozen=True)
class Folds(Experiment):
    """Candidates on folds. Only rank 0 has `search` and `grouping`; workers unpickle the tasks from the shared data."""

    kind = "folds"

    search: Any = field(default=None, metadata={"changes_results": False})
    grouping: Grouping = field(default=Grouping(), metadata={"changes_results": False})
    limit: SearchLimit = field(default_factory=SearchLimit, metadata={"changes_results": False})
    race: FoldRace | None = field(default=None, metadata={"changes_results": False})
    estimator: str = ""
    scoring: str = ""
    cv: str = ""
    fit_params: str = ""
    error_score: str = ""
    return_train_score: bool = False
    data_sha256: str = ""  # of samples and labels: pickles of equal things may differ

    @classmethod
    def of(cls, search: Any, grouping: Grouping, limit: SearchLimit, race: FoldRace | None = None) -> Folds:
        """The study of the tasks of a search."""
        first = grouping.tasks[0].kwargs
        splits = [(task.kwargs["train"], task.kwargs["test"]) for task in grouping.tasks if not task.candidate]
        fit_params = {name: value for name, value in sorted(first["fit_params"].items()) if value is not None}
        return cls(
            search,
            grouping,
            limit,
            race,
            estimator=header_text(grouping.tasks[0].estimator, code=False),
            scoring=header_text(search.scoring, code=False),
            cv=f"{len(splits)} splits ({_digest(splits)})",
            fit_params=f"{', '.join(fit_params) or 'none'} ({_digest((fit_params, first['score_params']))})",
            error_score=str(first["error_score"]),
            return_train_score=first["return_train_score"],
            data_sha256=_digest(grouping.tasks[0].args),
        )

    @property
    def tasks(self) -> Sequence[Task]:
        return self.grouping.tasks

    def __reduce__(self) -> tuple[Any, ...]:
        return Folds, ()

    def data(self) -> Data:
        """The tasks, pickled; the arrays in them apart, so that workers see those of X and y without a copy."""
        buffers: list[pickle.PickleBuffer] = []
        content = packed((self.grouping, _config()), buffers.append)
        arrays = {"tasks": np.frombuffer(content, np.uint8)}
        for number, buffer in enumerate(buffers):
            arrays[f"buffer{number:06}"] = np.asarray(buffer.raw(), np.uint8)
        return arrays

    def folder_in(self, results: Path) -> Path:
        """That folder, or one of its own in it where it holds a study of other data, as of another outer fold.

        Outer folds that run at a time each have one of their own, so that none waits for another.
        """
        own = results / f"data-{self.data_sha256[:12]}"
        if (header := read_header(results)) is None:
            at_a_time = in_child() or get_active_backend()[0].nesting_level
            return own if at_a_time or read_header(own) is not None else results
        settings = header["settings"]
        return own if "cv" in settings and settings.get("data_sha256") != self.data_sha256 else results

    def called(self) -> Mapping[str, Any]:
        values = {id(it): it for task in self.tasks if not task.split for it in task.parameters.values()}.values()
        parameters = [it for it in values if hasattr(it, "__dict__") or isinstance(it, list | tuple | dict)]
        things = [task.estimator for task in self.tasks[:1]], self.search.scoring
        lambdas = {} if (digest := _digest(things)) == _digest(things, code=False) else {"lambdas": digest}  # by place
        return {"estimator": self.search.estimator, "scoring": self.search.scoring, "parameters": parameters, **lambdas}

    def searches(self) -> Iterator[Rounds]:
        trials = {task.key: task.trial(*self._labels[task.candidate]) for task in self.tasks}
        yield self._rounds(trials)

    @cached_property
    def _labels(self) -> dict[int, tuple[dict[str, Parameter], dict[str, str] | None]]:
        return {number: task.labels() for number, task in self.grouping.first.items()}

    def require_identity(self) -> None:
        """Raise UsageError for a thing whose results could not be kept."""
        labels = (label for of, _ in self._labels.values() for label in of.values())
        texts = self.estimator, self.scoring, self.fit_params, self.data_sha256, *map(str, labels)
        if any(text.endswith(("?", "?)")) for text in texts):
            first, kwargs = self.tasks[0], self.tasks[0].kwargs
            arguments = *kwargs["fit_params"].values(), *kwargs["score_params"].values(), *first.args
            parameters = (value for task in self.grouping.first.values() for value in task.parameters.values())
            require_identity(first.estimator, self.search.scoring, *arguments, *parameters)

    def _rounds(self, trials: Mapping[str, Trial]) -> Rounds:
        """One round, or those that a race wants."""
        if (race := self.race) is None:
            yield [tuple(trials[key] for key in group.keys) for group in self.grouping.groups]
            return
        while wanted := race.wanted():
            race.hear((yield [tuple(trials[key] for key in group.keys) for group in self.grouping.groups_of(wanted)]))

    def scheduling(self) -> Scheduling:
        # A batch of shared fits that is divided too early computes its dearest fit again.
        shares = any(group.way == "shared" for group in self.grouping.groups)
        return Scheduling(
            n_trials=None if self.race else len(self.tasks) or None,
            cost=self.cost,
            cost_uncertainty=1.0 if shares else COST_UNCERTAINTY,
            split_batch=self.split_batch,
            shared_cost=self.shared_cost,
            preload=modules_of(self.tasks),
        )

    def on_results(self, results: Iterable[Result]) -> str:
        for result in results:
            self._by_key[result.key].tell_callbacks()
        return self.limit.ended_by()

    def reporting(self) -> Reporting:
        """Its goal is the score that the search refits for. There may be none: of several scores, or for a function."""
        goal, refit = "", getattr(self.search, "refit", None)
        refit = getattr(refit, "metric", refit)  # of `careful`
        if self.tasks and not callable(refit):
            several = isinstance(self.tasks[0].kwargs["scorer"], _MultimetricScorer)
            name = "test_scores" if not several else f"test_scores:{refit}"
            goal = f"maximize {name}" if not several or isinstance(refit, str) else ""
        folds = dict(getattr(self.search, "_splits", {}))
        folds |= {"name": score_name(self.search, refit if isinstance(refit, str) else None)} if goal else {}
        if hasattr(self.search, "aggressive_elimination"):  # which takes the best whatever `refit` is
            folds["halving"] = True
        elif isinstance(careful := getattr(self.search, "refit", None), Careful):
            folds["careful"] = list(careful.order)
        folds |= {} if self.race is None else self.race.note
        return Reporting(goal, folds=folds, counts=counts)

    def examine(self, trial: Trial, evaluation: Evaluation, kept: Evaluation | None) -> None:
        """Print what scikit-learn prints of a fit. Raises `Raised` for an exception that ends the search."""
        if (error := exception_of(evaluation)) is not None:
            raise Raised(error)
        if self.search.verbose > 1 and evaluation.error is None:
            print(cv_line(self._by_key[trial.key], decoded(evaluation)))

    def split_batch(self, batch: Batch) -> Sequence[Batch]:
        """A fold's candidates apart from another's, since the folds of a batch share samples only.

        On one fold, those that share the fit of the last step stay together. Where there is no other such fit, they are
        divided as far as their results do not depend on it.
        """
        splits = dict.fromkeys(trial.segment.fold for trial in batch)
        if len(splits) > 1:
            return [tuple(trial for trial in batch if trial.segment.fold == split) for split in splits]
        way, members = self._together(batch)
        if way != "shared":
            return [batch]
        trials = {trial.key: trial for trial in batch}
        parts = parts_of(members, self.grouping, within=self._costs[1].issuperset(members))
        return [tuple(trials[key] for key in part) for part in parts]

    def _together(self, batch: Batch) -> tuple[Way, dict[int, Task]]:
        """In which way the tasks of a batch are done together, "alone" where that differs; and these by candidate."""
        members = [self._by_key[trial.key] for trial in batch]
        (group, *others) = self.grouping.groups_of(members)
        return "alone" if others else group.way, {task.candidate: task for task in members}

    @cached_property
    def _by_key(self) -> dict[str, Task]:
        return {task.key: task for task in self.tasks}

    @cached_property
    def _costs(self) -> tuple[dict[int, float], frozenset[int]]:
        return costs_of(self.grouping)

    def cost(self, trial: Trial) -> float:
        """In fits of a step."""
        return self._costs[0][self._by_key[trial.key].candidate]

    def shared_cost(self, batch: Batch, workers: int) -> float:
        way, members = self._together(batch)
        if way != "shared":
            return max(map(self.cost, batch))
        return shared_cost_of(members, self.grouping)

    def objective(self, worker: WorkerContext) -> Objective:
        data = worker.data
        buffers = [data[name] for name in sorted(data) if name.startswith("buffer")]
        return Evaluator(*pickle.loads(data["tasks"].data, buffers=buffers))


def _digest(things: Any, code: bool = True) -> str:
    """The identity of things; "?" of those that have none, which `require_identity` refuses."""
    with suppress(UsageError):
        return identity(things, code)
    return "?"


def _config() -> Config:
    """scikit-learn's configuration of now. A library that has put functions in place of scikit-learn's has its own."""
    return partial(sklearn.config_context, **sklearn.get_config())
