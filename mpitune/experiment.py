"""The class that a user writes: an Experiment. `mpitune.port` has what few of them need."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from mpitune.memory.shared_arrays import MemoryFile
from mpitune.port import Port, Reporting, Scheduling
from mpitune.storage.table import write_trials
from mpitune.trial import Batch, Evaluation, NoRoom, Outcome, Rounds, Trial

Data = Mapping[str, np.ndarray]
Objective = Callable[[Batch], Iterator[Evaluation | NoRoom]]


@dataclass(frozen=True)
class WorkerContext:
    """The worker that an objective is built in.

    Attributes:
        device: "cpu", or "cuda" for the one GPU that this process can see.
        data: read-only views of the arrays that `Experiment.data` returned.
        node_memory: a file in memory, empty at first, that all workers of this node have open. They agree on its
            content themselves, with record locks, as another worker may be killed at any moment. None without workers.
        n_workers: number of workers of this node.
        report_step: shows people how far the running trial is: `report_step(7, 20, "epoch")`. It changes nothing else,
            and at most one call a second is sent. `trials=5` says that the steps are those of five trials of the batch
            together. `report_step(0, unit="compiling")` names work that has no steps.
        memory: a CPU worker's part of the node's memory, in bytes, 0 if unknown. It does not depend on what other
            workers are at.
    """

    device: str = "cpu"
    data: Data = field(default_factory=dict)
    node_memory: MemoryFile | None = None
    n_workers: int = 1
    report_step: Callable[..., None] = lambda done, total=0.0, unit="step", trials=1: None
    memory: int = 0


class Experiment(Port, ABC):
    """Settings, searches, objective and report of one kind of study.

    Subclasses are frozen dataclasses; fields made by `setting` become the command line. An instance
    is pickled to every worker, so its module must not import GPU libraries: `objective` does that. Two methods must be
    written, `searches` and `objective`; most experiments also have `data`, `check` and `report`.
    `mpitune.run` gives an experiment a command line, `mpitune.run_study` runs it on all devices.

    Example:
        >>> from dataclasses import dataclass
        >>> from mpitune import Experiment, RunOptions, Trial, one_round, per_trial, run_study, setting
        >>> @dataclass(frozen=True)
        ... class Quadratic(Experiment):
        ...     n: int = setting(help="points to try", low=1)
        ...
        ...     def searches(self):
        ...         yield one_round(Trial(f"x{i}", {"x": i}) for i in range(self.n))
        ...
        ...     def objective(self, worker):
        ...         return per_trial(lambda trial: {"loss": (trial.params["x"] - 3) ** 2})
        >>> outcomes = run_study(Quadratic(5), RunOptions(workers=0, quiet=True))
        >>> [outcome.result.values["loss"] for outcome in outcomes]
        [9.0, 4.0, 1.0, 0.0, 1.0]
    """

    # How readers of the journal take its trials.
    kind: ClassVar[Literal["experiment", "search", "folds"]] = "experiment"

    @abstractmethod
    def searches(self) -> Iterable[Rounds]:
        """The searches of the study. They advance independently of each other, on rank 0."""

    @abstractmethod
    def objective(self, worker: WorkerContext) -> Objective:
        """The function that evaluates batches. Called once in each worker; heavy imports belong here.

        Args:
            worker: its device, the data, and memory shared with other workers.

        Returns:
            A function of a batch that yields an `Evaluation` of each trial. If it has an `error`, the trial is tried
            once more, on another node or slot if there is one, and then recorded as failed. An exception has the same
            effect for the first trial of the batch without an evaluation, and the function is called again for those
            after it. On a GPU, and if it is a `MemoryError`, it also ends the worker; the function's attribute
            `keeps_worker`, True or False, says otherwise. If this slot has no room for a trial, the function yields a
            `NoRoom`. Other slots then try the trial; if it fits none, it is left open.
        """

    def data(self) -> Data:
        """Arrays that every worker needs. Called on rank 0 only; each node keeps one shared copy."""
        return {}

    def check(self, device: str, visible: str) -> Callable[[], None] | None:
        """Raise UsageError if these settings cannot work here. Called on every rank, before anything is written.

        A check that takes long may begin here, and return what waits for its end and raises. For "cuda" it may raise
        `mpitune.port.WantsCores`.

        Args:
            device: "cpu" or "cuda".
            visible: the first worker's CUDA_VISIBLE_DEVICES; "" on CPUs.
        """
        return None

    def report(self, outcomes: Sequence[Outcome], conclusions: Sequence[Any], data: Data, folder: Path) -> None:
        """Write tables and figures of a finished study, and print a summary. Called on rank 0.

        Args:
            outcomes: every trial, search by search in the order asked; failed ones too.
            conclusions: what each search returned, in their order.
            data: what `data()` returned.
            folder: the results folder.
        """
        write_trials(folder / "trials.csv", outcomes)

    def scheduling(self) -> Scheduling:
        """What the trials need. Called once on every rank; the trials are asked about on rank 0 only."""
        return Scheduling()

    def reporting(self) -> Reporting:
        """What report.html says of it."""
        return Reporting()

    def called(self) -> Mapping[str, Any]:
        """What evaluates trials, by name. A study that continues says which functions of it have changed."""
        functions = {name: value for name, value in vars(self).items() if callable(value)}
        return {"objective": type(self).objective, **functions}


def per_trial(function: Callable[[Trial], Mapping[str, float] | Evaluation | NoRoom]) -> Objective:
    """An objective from a function of one trial, which returns its values, or a whole Evaluation, or NoRoom."""

    def objective(batch: Batch) -> Iterator[Evaluation | NoRoom]:
        for trial in batch:
            returned = function(trial)
            yield returned if isinstance(returned, Evaluation | NoRoom) else Evaluation(trial.key, dict(returned))

    return objective


def one_round(trials: Iterable[Trial]) -> Rounds:
    """A search of one round in which every trial is a batch of its own."""
    yield [(trial,) for trial in trials]
