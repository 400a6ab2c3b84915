"""The class that a user writes: an Experiment. Everything else in this package serves it.

@dataclass(frozen=True)
class Quadratic(Experiment):
    n: int = setting(help="points to try", low=1)

    def searches(self):
        yield one_round([Trial(f"x{i}", {"x": i}) for i in range(self.n)])

    def objective(self, worker):
        return per_trial(lambda trial: {"loss": (trial.params["x"] - 3) ** 2})

if __name__ == "__main__":
    run(Quadratic)                      # from common.cli
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from common.cluster.shared_arrays import NOTHING, SharedArrays, Spec
from common.report.content import Section
from common.storage.history import History
from common.storage.provenance import digest
from common.storage.table import write_trials
from common.trial import Batch, Evaluation, Gang, NoRoom, Outcome, Search, Trial

Data = Mapping[str, np.ndarray]
SURPRISE = 3.0  # costs of the published grid were up to 4 times off; see benchmarks/results/svm_division.md
BEGINNINGS = "beginnings"  # name of the array, JSON as uint8, with what `Experiment.beginnings` said at the first start
Objective = Callable[[Batch], Iterator[Evaluation | NoRoom]]


@dataclass(frozen=True)
class DoctorChecks:
    """Checks of `python -m common.doctor` for an experiment.

    Attributes:
        settings: a dataclass of options that it takes too, whose instances have `examined()`: a line that says what is
            there, the bytes of memory that each rank needs for it, and each problem as (text, fatal).
        libraries: what its workers import on "cpu" and on "cuda"; it cannot run where one is broken.
        optional: what they use where it works.
        self_checks: "module:function" of functions that return a `common.selfcheck.Verdict` of the one GPU that their
            process can see; with the argument "anew" not one that is kept.
        benchmarks: "module:function" of functions that measure the device that their process sees. Arguments: "cpu" or
            "cuda", and the seconds after which nothing more is begun. They return a dictionary: `rows` of what was
            measured, the result and what is assumed; and `rates`, which `common.rates` keeps.
    """

    settings: type | None = None
    libraries: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    optional: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    self_checks: tuple[str, ...] = ()
    benchmarks: tuple[str, ...] = ()


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
        buffers: arrays of `Experiment.shared_buffers`, as many as the node had room for, writeable. Workers must
            synchronise access themselves (record locks on `buffers.descriptor(name)`) and tolerate another worker
            being killed at any moment.
        n_workers: workers of this node, which share the buffers.
        report_step: tells people how far the running trial is: `report_step(7, 20, "epoch")`. At most one call a second
            is sent; it has no influence on anything else. With `trials=5` these steps are those of five trials of the
            batch together. Without steps, `report_step(0, unit="compiling")` says what is done meanwhile; said by
            `Experiment.objective` it is a reason of its own in the report's timeline.
    """

    device: str = "cpu"
    data: Data = field(default_factory=dict)
    buffers: SharedArrays = NOTHING
    n_workers: int = 1
    report_step: StepReport = _unheard


class Experiment(ABC):
    """Settings, searches, objective and report of one kind of study.

    Subclasses are frozen dataclasses; fields made by `setting` become the command line. An instance
    is pickled to every worker, so its module must not import GPU libraries: `objective` does that.
    """

    doctor_checks: ClassVar[DoctorChecks] = DoctorChecks()
    goal: ClassVar[str] = ""  # of its trials, such as "minimize loss": what report.html calls the best
    no_parameters: ClassVar[tuple[str, ...]] = ()  # of trials: names that tell candidates apart, but are not searched

    def check(self, device: str) -> None:  # noqa: B027 - most have nothing to check
        """Raise UsageError where these settings cannot work on "cpu" or "cuda" here. Called on every rank."""

    def data(self) -> Data:
        """Arrays that every worker needs. Called on rank 0 only; each node keeps one shared copy."""
        return {}

    def self_checks(self) -> Sequence[Sequence[str]]:
        """Checks that each worker on a GPU asks for before it computes there: "module:function" and its arguments.

        Processes that call them are started on each GPU before the data are loaded, so that verdicts are kept when
        workers ask. Called on every rank; must not import heavy libraries.
        """
        return ()

    def beginnings(self) -> Mapping[str, Any]:
        """Facts of the machine on which a study begins that it keeps, as JSON, since its workers choose by them.

        Called on rank 0 only, at each start; the first answer of a study is kept in its journal, and workers find it as
        `data[BEGINNINGS]` at all starts. So what is measured between two starts changes nothing in a study.
        """
        return {}

    def digest(self, data: Data) -> str:
        """A digest of the data: a study is continued only with the same."""
        return digest(data)

    @abstractmethod
    def searches(self) -> Iterable[Search]:
        """The searches of the study. They advance independently of each other, on rank 0."""

    @abstractmethod
    def objective(self, worker: WorkerContext) -> Objective:
        """The function that evaluates batches. Called once in each worker; heavy imports belong here.

        Args:
            worker: its device, the data, and buffers shared with other workers.

        Returns:
            A function of a batch that yields an `Evaluation` of each trial. One with an `error` is tried once more,
            elsewhere if there is another slot, then recorded as failed. An exception does the same, at the price of
            the worker. A trial that this slot has no room for is a `NoRoom`: where it fits no other slot either, it is
            left open.
        """

    def shared_buffers(self, device: str, data: Data, n_workers: int) -> Mapping[str, Spec]:
        """Arrays that the workers of one node share and fill themselves, the most important first.

        As many of them as the node has room for are allocated, all zero; `WorkerContext.buffers` has them. Called on
        every rank; must not import heavy libraries.

        Args:
            device: "cpu" or "cuda".
            data: the arrays that `data()` returned.
            n_workers: workers of this node.
        """
        return {}

    def examine(self, trial: Trial, evaluation: Evaluation, kept: Evaluation | None) -> None:  # noqa: B027
        """Raise UsageError for an answer of the objective with which the study must end. Called on rank 0.

        Nothing of that answer is kept, so the same command evaluates the trial again.

        Args:
            trial: that was evaluated.
            evaluation: what the objective said, also a failure.
            kept: an evaluation of this study that did not fail; None where there is none yet.
        """

    def cost(self, trial: Trial) -> float:
        """How long this trial may take compared with others: costly batches are handed out first."""
        return 1.0

    def gang(self, trial: Trial) -> Gang | None:
        """The slots that a trial needs at a time; None for one. A batch needs those of its first trial.

        Its worker sees the devices that it has on its own node, and `common.cluster.devices.hosts_here` names its nodes
        where it has several.
        """
        return None

    def split_batch(self, batch: Batch) -> Sequence[Batch]:
        """The smallest parts of a batch, in its order, for when a slot would be idle otherwise.

        Parts are evaluated apart, so what the batch shares (`shared_cost`) is computed once for each. Its results must
        not depend on that.
        """
        return [batch]

    def shared_cost(self, batch: Batch, workers: int) -> float:
        """Cost that the trials of a batch share, in the unit of `cost`; asked where `split_batch` divides it.

        It is computed again for each part. Where it is 0 a batch is divided as soon as there are two slots; where it
        is not, as late as possible. The default is the cost of the costliest trial.

        Args:
            batch: trials that are evaluated together.
            workers: the most on CPUs that a node of this job has: those that share its buffers.
        """
        return max(map(self.cost, batch))

    def surprise(self) -> float:
        """How many times its cost a batch may take, beside the others: the more, the earlier it is divided."""
        return SURPRISE

    def memory_bytes(self, trial: Trial, data: Data) -> int:
        """About how much memory a CPU worker needs for this trial, in bytes; 0 where that is not known.

        So that a start can say how many workers fit. Called on rank 0; must not import heavy libraries.
        """
        return 0

    def n_trials(self) -> int | None:
        """How many trials the study will have, for the progress bar; None when it cannot be known."""
        return None

    def report(self, outcomes: Sequence[Outcome], conclusions: Sequence[Any], data: Data, folder: Path) -> None:
        """Tables, figures and printed summary, on rank 0, of a finished study.

        Args:
            outcomes: every trial, search by search in the order asked; failed ones too.
            conclusions: what each search returned, in their order.
            data: what `data()` returned.
            folder: results folder.
        """
        write_trials(folder / "trials.csv", outcomes)

    def report_sections(self, history: History, data: Data | None) -> Sequence[Section]:
        """Sections of report.html for this kind of study, added to those of any study: see `common.report.content`.

        Called at the end of a study, and by `python -m common.report` at any time, so that results may be missing.
        Must not import heavy libraries.

        Args:
            history: the journal.
            data: what `data()` returned; None where the images or samples are not at hand.
        """
        return ()

    def data_here(self) -> Data | None:
        """As `data`, but only if that needs no download: for the report of an older study; None where it does."""
        return None


def per_trial(function: Callable[[Trial], Mapping[str, float] | Evaluation | NoRoom]) -> Objective:
    """An objective from a function of one trial, which returns its values, or a whole Evaluation, or NoRoom."""

    def objective(batch: Batch) -> Iterator[Evaluation | NoRoom]:
        for trial in batch:
            returned = function(trial)
            yield returned if isinstance(returned, Evaluation | NoRoom) else Evaluation(trial.key, dict(returned))

    return objective


def one_round(trials: Iterable[Trial]) -> Search:
    """A search of one round in which every trial is a batch of its own."""
    yield [(trial,) for trial in trials]
