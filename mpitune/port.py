"""The port: what a door may ask of the engine while its study runs, and what the engine tells it.

    door -> engine    searches           trials, in rounds of batches or in windows, see `mpitune.trial`
                      scheduling         what the trials and their workers need: `Scheduling`
                      news_for_workers   what all workers shall know before the next trials
    engine -> door    examine            an answer, before it counts: it may end the study
                      on_message         what an objective sends with its answer
                      on_results         results, as soon as they are kept; it says when it has enough
                      searches           the results that each one waits for
                      matching           which results of earlier studies count

A door is a search, a study of Optuna, a search of scikit-learn or the calls of joblib: each is an `Experiment`, which
is a `Port`. All of this but `searches` has a default. It runs on rank 0, and none of it depends on the layout.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mpitune.trial import Batch, Evaluation, Gang, Outcome, Parameter, Result, Trial, exact

if TYPE_CHECKING:  # which workers, who import this module, do not need
    from mpitune.earlier.studies import Earlier
    from mpitune.experiment import Data
    from mpitune.figures.panels import Section
    from mpitune.storage.history import History

COST_UNCERTAINTY = 3.0  # costs of the published grid were up to 4 times off; see benchmarks/results/svm_division.md


class WantsCores(Exception):
    """Raised by `Experiment.check` of GPUs: why, for the user, the study has the CPU's cores in their place."""


class Port:
    """What the engine asks of a door, and tells it, while a study runs."""

    def news_for_workers(self) -> Sequence[bytes]:
        """What all workers shall know before the batches that are given next.

        Each worker's objective gets it all in this order, by its method `on_news`; one that begins later gets what came
        before.
        """
        return ()

    def examine(self, trial: Trial, evaluation: Evaluation, kept: Evaluation | None) -> Result | None:
        """Look at an answer as it arrives. Raise UsageError if it must end the study.

        Such an answer is not kept, so the same command evaluates the trial again.

        Args:
            trial: the trial that was evaluated.
            evaluation: the answer of the objective, which may be a failure.
            kept: an earlier evaluation of this study that did not fail; None if there is none.

        Returns:
            What is kept in the place of the answer; None for itself.
        """
        return None

    def on_message(self, content: bytes) -> None:
        """Take what came with an answer, see `Evaluation.messages`, once that counts."""

    def on_results(self, results: Iterable[Result]) -> str:
        """Take results that the study has from now on, each once; also those of earlier runs and of other jobs.

        Called again and again, perhaps with none.

        Returns:
            By what the study ends now, such as "its time"; "" while it goes on. Nothing more is begun then; what runs
            may end.
        """
        return ""

    def matching(self, earlier: Sequence[Earlier]) -> Matching:
        """Which results of earlier studies count here, the oldest study first. Called on rank 0, before `searches`.

        Raises UsageError where none of the newest one could: it is called before that one is set aside, too.
        """
        return Matching()


@dataclass(frozen=True)
class Scheduling:
    """What the trials of an experiment need, and their workers; the defaults suit trials that need one slot each.

    None of it changes results. Its functions must not import heavy libraries.

    Attributes:
        n_trials: the number of trials of the study, for people; None if it cannot be known.
        cost: the expected time of a trial, in any unit. Costly batches are handed out first.
        gang: the slots that a trial needs at the same time; None for one slot. A batch needs those of its first trial.
            The trial's worker sees all devices that the trial has on the worker's node. If the trial has several nodes,
            `mpitune.devices.choose.hosts_here` names them.
        split_batch: the smallest parts of a batch, in its order. Slots that would be idle get some of them. Each part
            is evaluated by itself, so each computes what the batch shares. Results must not depend on the division.
        shared_cost: of a batch, which `split_batch` can divide, and the largest number of CPU workers of a node of this
            job: the cost of the work that its trials share, in the unit of `cost`. Each part
            of a divided batch does this work again. If the cost is 0, a batch is divided as soon as there are two
            slots, otherwise as late as possible. The default is the cost of the costliest trial.
        cost_uncertainty: by which factor costs may be wrong, compared with each other. A larger one divides batches
            earlier.
        preload: names of modules that workers need. Each rank has a server that imports them once and forks the
            workers, in milliseconds. Their import must not use a GPU. Where it starts a thread, workers are spawned, as
            without it.
        prints_plainly: whether what trials print is printed as it is, without the trial's key.

    Example:
        >>> deep_ones_first = Scheduling(n_trials=50, cost=lambda trial: trial.params["depth"])
    """

    n_trials: int | None = None
    cost: Callable[[Trial], float] = lambda trial: 1.0
    gang: Callable[[Trial], Gang | None] = lambda trial: None
    split_batch: Callable[[Batch], Sequence[Batch]] = lambda batch: [batch]
    shared_cost: Callable[[Batch, int], float] | None = None
    cost_uncertainty: float = COST_UNCERTAINTY
    preload: Sequence[str] = ()
    prints_plainly: bool = False

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
        sections: of the journal and the data: sections for this kind of study, see `mpitune.figures.panels`. Called at
            the end of a study, and by `python -m mpitune report` at any time, without data.
            Results may be missing then.
        files: what `Experiment.report` writes in the results folder: no study begins where a user has such a file. None
            if that is not known: where `report` is not the default one, a study then needs an empty folder to begin.
        folds: what is kept of the cross-validation whose folds trials are, with each start: see `FoldsNote`.
        counts: of the journal: the keys of the trials that count, None for all.
        best: of the journal: the parameters of the best, where the experiment takes a certain one of equal ones.
    """

    goal: str = ""
    no_parameters: tuple[str, ...] = ()
    sections: Callable[[History, Data | None], Sequence[Section]] = lambda history, data: ()
    files: tuple[str, ...] | None = None
    folds: Mapping[str, Any] = field(default_factory=dict)
    counts: Callable[[History], Container[str] | None] = lambda history: None
    best: Callable[[History], Mapping[str, Parameter] | None] = lambda history: None


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
        return [(trial.key if self._by_key else "", exact(trial.params), trial.segment)]

    def taken(self, outcome: Outcome, earlier: Earlier, key: str) -> Result:
        """A trial of this study gets the result that the trial `key` has in an earlier one. Returns what is kept."""
        return outcome.result
