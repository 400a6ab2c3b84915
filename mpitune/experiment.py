"""The class that a user writes: an Experiment. Everything else in this package serves it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mpitune.memory.shared_arrays import NOTHING, SharedArrays, Spec
from mpitune.storage.provenance import digest
from mpitune.storage.table import write_trials
from mpitune.trial import Batch, Evaluation, Gang, NoRoom, Outcome, Parameter, Result, Rounds, Trial, exact

if TYPE_CHECKING:  # which workers, who import this module, do not need
    from mpitune.figures.panels import Section
    from mpitune.storage.earlier import Earlier
    from mpitune.storage.history import History

Data = Mapping[str, np.ndarray]
COST_UNCERTAINTY = 3.0  # costs of the published grid were up to 4 times off; see benchmarks/results/svm_division.md
Objective = Callable[[Batch], Iterator[Evaluation | NoRoom]]


class StepReport(Protocol):
    """See `WorkerContext.report_step`."""

    def __call__(self, done: float, total: float = 0.0, unit: str = "step", trials: int = 1) -> None: ...


def _unheard(done: float, total: float = 0.0, unit: str = "step", trials: int = 1) -> None:
    pass


@dataclass(frozen=True)
class WorkerContext:
    """The worker that an objective is built in.

    Attributes:
        device: "cpu", or "cuda" for the one GPU that this process can see.
        data: read-only views of the arrays that `Experiment.data` returned.
        buffers: arrays of `Scheduling.shared_buffers`, as many as the node had room for, writeable. Workers must
            synchronise access themselves (record locks on `buffers.descriptor(name)`). Another worker may be killed at
            any moment.
        n_workers: number of workers of this node, which share the buffers.
        report_step: shows people how far the running trial is: `report_step(7, 20, "epoch")`. It changes nothing else,
            and at most one call a second is sent. `trials=5` says that the steps are those of five trials of the batch
            together. `report_step(0, unit="compiling")` names work that has no steps.
        send: sends something to `Experiment.on_message` at once, also of a trial that fails later.
        memory: a CPU worker's part of the node's memory, in bytes, 0 if unknown. It does not depend on what other
            workers are at.
    """

    device: str = "cpu"
    data: Data = field(default_factory=dict)
    buffers: SharedArrays = NOTHING
    n_workers: int = 1
    report_step: StepReport = _unheard
    send: Callable[[bytes], None] = lambda content: None
    memory: int = 0


@dataclass(frozen=True)
class Scheduling:
    """What helps to place the trials of an experiment; the defaults suit trials that need one slot each.

    None of it changes results. Its functions must not import heavy libraries.

    Attributes:
        n_trials: the number of trials of the study, for the progress bar; None if it cannot be known.
        counted: where people count otherwise than the engine, as a search whose trials have stages: how many trials are
            done, or None for each of the engine's, and how many there will be at most, or None for those asked.
        cost: the expected time of a trial, in any unit. Costly batches are handed out first.
        cost_uncertainty: by which factor costs may be wrong, compared with each other. A larger one divides batches
            earlier.
        split_batch: the smallest parts of a batch, in its order. Slots that would be idle get some of them. Each part
            is evaluated by itself, so each computes what the batch shares. Results must not depend on the division.
        shared_cost: of a batch, which `split_batch` can divide, and the largest number of CPU workers of a node of this
            job, which share its buffers: the cost of the work that its trials share, in the unit of `cost`. Each part
            of a divided batch does this work again. If the cost is 0, a batch is divided as soon as there are two
            slots, otherwise as late as possible. The default is the cost of the costliest trial.
        gang: the slots that a trial needs at the same time; None for one slot. A batch needs those of its first trial.
            The trial's worker sees all devices that the trial has on the worker's node. If the trial has several nodes,
            `mpitune.devices.choose.hosts_here` names them.
        together: whether the objective evaluates the trials of a batch as one, which share its time
            evenly. If it raises or its worker dies, no trial is to blame: each half of the batch becomes a batch.
        memory_bytes: about how much memory a CPU worker needs for a trial, in bytes; 0 if that is not known. A start
            says by it how many workers fit.
        shared_buffers: of "cpu" or "cuda", the data, and the number of workers of this node: arrays that these workers
            share and fill themselves, the most important first. The node allocates as many of them as it has room for,
            all zero, as `WorkerContext.buffers`. Called on every rank.
        preload: names of modules that workers need. Each rank has a server that imports them once and forks the
            workers, in milliseconds. Their import must not use a GPU. Where it starts a thread, workers are spawned, as
            without it.
        prints_plainly: whether what trials print is printed as it is, without the trial's key.
        environ: variables of the workers, which count more than the number of threads.
        on_results: gets on rank 0 each result that the study has, of earlier runs and other jobs too; then `is_enough`
            is asked.
        is_enough: asked on rank 0 while the study runs. When it is True, nothing more is begun; what runs may end.
        on_start: told on rank 0 how many slots this job has, before the searches begin.
        news_for_workers: asked on rank 0 before batches are given: what all workers shall know before these batches.
            Each worker's objective gets it all in this order, by its method `on_news`; one that begins later gets what
            came before.
        why_cores: why these settings use the CPU's cores where there are GPUs, a line for the user; "" if they use
            GPUs.

    Example:
        >>> deep_ones_first = Scheduling(n_trials=50, cost=lambda trial: trial.params["depth"])
    """

    n_trials: int | None = None
    counted: Callable[[], tuple[int | None, int | None]] | None = None
    cost: Callable[[Trial], float] = lambda trial: 1.0
    cost_uncertainty: float = COST_UNCERTAINTY
    split_batch: Callable[[Batch], Sequence[Batch]] = lambda batch: [batch]
    shared_cost: Callable[[Batch, int], float] | None = None
    gang: Callable[[Trial], Gang | None] = lambda trial: None
    together: bool = False
    memory_bytes: Callable[[Trial, Data], int] = lambda trial, data: 0
    shared_buffers: Callable[[str, Data, int], Mapping[str, Spec]] = lambda device, data, n_workers: {}
    preload: Sequence[str] = ()
    prints_plainly: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)
    on_results: Callable[[Iterable[Result]], None] = lambda results: None
    is_enough: Callable[[], bool] = lambda: False
    on_start: Callable[[int], None] = lambda n_slots: None
    news_for_workers: Callable[[], Sequence[bytes]] = lambda: ()
    why_cores: str = ""

    def shared_cost_of(self, batch: Batch, workers: int) -> float:
        """What `shared_cost` says, or the default."""
        return max(map(self.cost, batch)) if self.shared_cost is None else self.shared_cost(batch, workers)


@dataclass(frozen=True)
class Reporting:
    """What report.html says of an experiment beside what any study says; all of it is optional.

    Its functions must not import heavy libraries.

    Attributes:
        goal: such as "minimize loss", by which the best trial is chosen.
        no_parameters: names of trials' parameters that are not searched.
        modules: what `Experiment.report` imports: rank 0 does so while the first trials run.
        sections: of the journal and the data: sections for this kind of study, see `mpitune.figures.panels`. Called at
            the end of a study, and by `python -m mpitune report` at any time, when results may be missing. The data are
            None where they are not at hand.
        data_here: the arrays of `Experiment.data` for an older study; None if they would have to be downloaded.
        stopped: asked at the end: by what the study was stopped before all was done, such as "its time"; "" by nothing.
        files: what `Experiment.report` writes in the results folder: no study begins where a user has such a file. None
            if that is not known: where `report` is not the default one, a study then needs an empty folder to begin.
        folds: what is kept of the cross-validation whose folds trials are, with each start: see `FoldsNote`.
        counts: of the journal: the keys of the trials that count, None for all.
        best: of the journal: the parameters of the best, where the experiment takes a certain one of equal ones.
        spent: asked at the end of a run with -v: parts of the seconds of "trials" and of "start and idle", as far as
            they are known, summed over workers, by any names, see `mpitune.report.timeline.breakdown`.
    """

    goal: str = ""
    no_parameters: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    sections: Callable[[History, Data | None], Sequence[Section]] = lambda history, data: ()
    data_here: Callable[[], Data | None] = lambda: None
    stopped: Callable[[], str] = lambda: ""
    files: tuple[str, ...] | None = None
    folds: Mapping[str, Any] = field(default_factory=dict)
    counts: Callable[[History], Container[str] | None] = lambda history: None
    best: Callable[[History], Mapping[str, Parameter] | None] = lambda history: None
    spent: Callable[[], Mapping[str, Mapping[str, float]]] = dict


class Matching:
    """Decides which results of an earlier study can be used for trials of this one.

    This one suits most experiments: seeds come from a trial's key, so a result counts for the same key and parameters.
    With `by_key` False a result depends on the parameters alone, and counts for each trial that has them.
    """

    def __init__(self, by_key: bool = True) -> None:
        self._by_key = by_key

    def answered(self, outcome: Outcome, earlier: Earlier) -> Hashable:
        """The question that a result of an earlier study answers; None for none of this study."""
        return self.questions(outcome.trial)[0]

    def questions(self, trial: Trial) -> Sequence[Hashable]:
        """What a trial of this study asks: a result that answers one of these is its result."""
        return [(trial.key if self._by_key else "", exact(trial.params))]

    def taken(self, outcome: Outcome, earlier: Earlier, key: str) -> None:
        """A trial of this study gets the result that the trial `key` has in an earlier one."""


class Experiment(ABC):
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

    def check(self, device: str, visible: str) -> Callable[[], None] | None:
        """Raise UsageError if these settings cannot work here. Called on every rank.

        A check that takes long may begin here, and return what waits for its end and raises: called before anything is
        written, once the server is at work that imports what workers need.

        Args:
            device: "cpu" or "cuda".
            visible: the first worker's CUDA_VISIBLE_DEVICES; "" on CPUs.
        """
        return None

    def data(self) -> Data:
        """Arrays that every worker needs. Called on rank 0 only; each node keeps one shared copy."""
        return {}

    def scheduling(self) -> Scheduling:
        """What helps to place the trials. Called once on every rank; the trials are asked about on rank 0 only."""
        return Scheduling()

    def reporting(self) -> Reporting:
        """What report.html says of it."""
        return Reporting()

    def digest(self, data: Data) -> str:
        """A digest of the data. A study continues only with data of the same digest."""
        return digest(data)

    def adapted(self, theirs: Mapping[str, Any]) -> Mapping[str, Parameter | None]:
        """Look whether results of a study whose selecting settings are `theirs` can count; what `Earlier` has of it.

        Raises UsageError where none could. Called on rank 0, before anything is written.
        """
        return {}

    def matching(self, earlier: Sequence[Earlier]) -> Matching:
        """Which results of earlier studies count here. Called on rank 0, before `searches`."""
        return Matching()

    def called(self) -> Mapping[str, Any]:
        """What evaluates trials, by name. A study that continues says which functions of it have changed."""
        functions = {name: value for name, value in vars(self).items() if callable(value)}
        return {"objective": type(self).objective, **functions}

    @abstractmethod
    def searches(self) -> Iterable[Rounds]:
        """The searches of the study. They advance independently of each other, on rank 0."""

    @abstractmethod
    def objective(self, worker: WorkerContext) -> Objective:
        """The function that evaluates batches. Called once in each worker; heavy imports belong here.

        Args:
            worker: its device, the data, and buffers shared with other workers.

        Returns:
            A function of a batch that yields an `Evaluation` of each trial. If it has an `error`, the trial is tried
            once more, on another node or slot if there is one, and then recorded as failed. An exception has the same
            effect for the first trial of the batch without an evaluation, and the function is called again for those
            after it. On a GPU, and if it is a `MemoryError`, it also ends the worker; the function's attribute
            `keeps_worker`, True or False, says otherwise. If this slot has no room for a trial, the function yields a
            `NoRoom`. Other slots then try the trial; if it fits none, it is left open.
        """

    def examine(self, trial: Trial, evaluation: Evaluation, kept: Evaluation | None) -> None:  # noqa: B027
        """Look at an answer as it arrives, on rank 0. Raise UsageError if it must end the study.

        Such an answer is not kept, so the same command evaluates the trial again.

        Args:
            trial: the trial that was evaluated.
            evaluation: the answer of the objective, which may be a failure.
            kept: an earlier evaluation of this study that did not fail; None if there is none.
        """

    def on_message(self, content: bytes) -> None:  # noqa: B027
        """Take what `WorkerContext.send` has sent, or what came with an answer, on rank 0, in the order sent."""

    def report(self, outcomes: Sequence[Outcome], conclusions: Sequence[Any], data: Data, folder: Path) -> None:
        """Write tables and figures of a finished study, and print a summary. Called on rank 0.

        Args:
            outcomes: every trial, search by search in the order asked; failed ones too.
            conclusions: what each search returned, in their order.
            data: what `data()` returned.
            folder: the results folder.
        """
        write_trials(folder / "trials.csv", outcomes)


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
