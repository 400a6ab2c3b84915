"""A journal as a report sees it: candidates, the best of them, the failures, what it took."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from mpitune.figures.panels import Section
from mpitune.figures.winner import Winner, best_of, front_of, mean_of, winner_among
from mpitune.identity import texts_of
from mpitune.storage.history import History
from mpitune.trial import COMPLETE, FAILED, INFEASIBLE, PRUNED, Outcome, Parameter, failures, state_of


@dataclass(frozen=True)
class Goal:
    """The goal of a search."""

    name: str
    maximize: bool
    fraction: bool = True  # its values are from 0 to 1

    @property
    def percent(self) -> bool:
        """Whether its values are shown in per cent: errors and accuracies that are fractions."""
        return self.fraction and self.name.endswith(("error", "accuracy"))


@dataclass
class Candidate:
    """Trials of equal parameters but the fold, or the stages of one trial of `search()`.

    Attributes:
        params: without the fold.
        label: what tells candidates apart, but is not searched.
        parts: (trial, result) of each, in the journal's order.
        folds: the goal's value on each, or of the last stage.
        value: their mean; None where one has failed or there is none, or the trial of `search()` was pruned.
        number: in the order of their keys.
        state: complete, infeasible, failed, pruned, or incomplete where it lacks folds.
    """

    params: dict[str, Parameter]
    label: dict[str, Parameter] = field(default_factory=dict)
    parts: list[Outcome] = field(default_factory=list)
    folds: list[float] = field(default_factory=list)
    value: float | None = None
    number: int = 0
    state: str = ""

    @property
    def values(self) -> Mapping[str, float]:
        """All values of a trial of a search, of its last stage."""
        return max(self.parts, key=lambda part: part.trial.segment.stage or 0).result.values

    @property
    def failed(self) -> bool:
        return any(result.error is not None for _, result in self.parts)

    def rank_by(self, goal: Goal | None) -> float:
        """By which candidates are sorted, the best first; those that cannot be it are the last."""
        if self.value is None or self.state == INFEASIBLE or math.isnan(self.value):
            return math.inf
        return -self.value if goal and goal.maximize else self.value


@dataclass(frozen=True)
class ReportedStudy:
    """What a journal says.

    Attributes:
        goal: None where the journal has none.
        candidates: in the journal's order.
        running: whether a job holds the folder.
        how: of the cross-validation and its score, see `Winner`.
        chosen: parameters of the best, where the experiment says which it took of equal ones.
        sections: what its experiment says of it.
    """

    folder: Path
    history: History
    goal: Goal | None
    candidates: Sequence[Candidate]
    running: bool = False
    how: Mapping[str, Any] = field(default_factory=dict)
    chosen: Mapping[str, Parameter] | None = None
    sections: Sequence[Section] = ()

    @cached_property
    def best(self) -> Candidate | None:
        """The best of those that are complete; None where there is none, no goal, or more than one."""
        if self.goal is None or len(self.history.goals) > 1:
            return None
        equal = [one for one in self.valued if self.chosen is None or one.params == self.chosen]
        return best_of(equal, lambda candidate: candidate.rank_by(self.goal))

    @cached_property
    def front(self) -> list[Candidate]:
        """Of several goals the Pareto front, the best for the first goal first; empty of one goal."""
        goals = self.history.goals
        return front_of(self.candidates, goals) if len(goals) > 1 else []

    @cached_property
    def winner(self) -> Winner | None:
        """What the best is worth, by its folds; None before the end, of one candidate or one fold.

        Candidates with labels have no folds in common.
        """
        if self.goal is None or self.best is None or self.best.label or not self.history.complete:
            return None
        numbered = self._numbered
        may_win = COMPLETE, PRUNED, "incomplete"  # but for what a race has left
        folds = [candidate.folds if candidate.state in may_win else [] for candidate in numbered]
        params, taken = [candidate.params for candidate in numbered], numbered.index(self.best)
        return winner_among(folds, params, self.goal.maximize, taken=taken, **self.how)

    @cached_property
    def refitted(self) -> Candidate | None:
        """Whose parameters are taken: the best, but for what `careful` took; None where that is not known yet."""
        if self.winner is None:
            return self.best if self.how.get("careful") is None or self.history.complete else None
        return self._numbered[self.winner.refitted]

    @cached_property
    def _numbered(self) -> list[Candidate]:
        return sorted(self.candidates, key=lambda candidate: candidate.number)

    @cached_property
    def valued(self) -> list[Candidate]:
        """Candidates with a value, which may be infinite."""
        return [one for one in self.candidates if one.value is not None and not math.isnan(one.value)]

    @cached_property
    def parameters(self) -> list[str]:
        """Names of the parameters that the candidates have, in the order first seen."""
        return list(dict.fromkeys(name for candidate in self.candidates for name in candidate.params))

    @cached_property
    def texts(self) -> dict[Any, Any]:
        """What stands for the texts among the parameters' values."""
        return texts_of(value for candidate in self.candidates for value in candidate.params.values())

    @cached_property
    def failures(self) -> list[Outcome]:
        """Failed trials, in the journal's order."""
        return failures(self.history.outcomes)

    @property
    def state(self) -> str:
        """One word or two."""
        if self.history.stopped:
            return f"stopped by {self.history.stopped}"
        return "complete" if self.history.complete else "running" if self.running else "unfinished"

    @property
    def wall_seconds(self) -> float:
        """Of all runs, as far as known: one that was killed has no end."""
        return math.fsum(run.get("seconds", 0.0) for run in self.history.runs)

    @property
    def utilisation(self) -> float | None:
        """The share of the time of all slots in which trials ran; None where it is not known."""
        runs = self.history.runs
        if self.history.header.get("before") or not all("seconds" in run for run in runs):
            return None
        of_slots = math.fsum(run["seconds"] * len(run.get("slots", ())) for run in runs)
        return self.busy_seconds / of_slots if of_slots else None

    @cached_property
    def busy_seconds(self) -> float:
        """Of work, over all slots."""
        return math.fsum(result.seconds for result in self.history.results.values())

    def best_so_far(self) -> list[tuple[int, float]]:
        """The number, in the order in which they ended, and the value of each that was better than all before it."""
        best: list[tuple[int, float]] = []
        least = math.inf
        for n, candidate in enumerate(self.in_time, 1):
            if candidate.state == COMPLETE and -math.inf < (rank := candidate.rank_by(self.goal)) < least:
                best.append((n, candidate.value or 0.0))
                least = rank
        return best

    @property
    def in_time(self) -> list[Candidate]:
        """Those with a value, in the order in which they ended."""
        return sorted(self.valued, key=lambda candidate: max(result.ended for _, result in candidate.parts))


def read_candidates(
    history: History, goal: Goal | None, besides: Iterable[str] = (), counts: Container[str] | None = None
) -> list[Candidate]:
    """The candidates of a journal.

    A trial is no candidate where others have a fold and it has none, as a refit, or where it has values but not the
    goal's. `besides` are names of parameters that tell candidates apart, but are not searched. Of `counts`, the keys
    of trials, others are left out.
    """
    wanted = history.trials if counts is None else counts
    pairs = [(trial, history.results[key]) for key, trial in history.trials.items() if key in wanted]
    folded = any(trial.segment.fold is not None for trial, _ in pairs)
    candidates: dict[Any, Candidate] = {}
    for trial, result in pairs:
        outcome, number, fold = Outcome(trial, result), trial.segment.number, trial.segment.fold
        lacks = goal is not None and result.error is None and goal.name not in result.values
        if (folded and fold is None) or (lacks and result.ending.chosen is None and (number is None or fold is None)):
            continue
        params = dict(outcome.params)
        name = tuple(params.items()) if number is None else number
        if (candidate := candidates.get(name)) is None:
            label = {name: params.pop(name) for name in besides if name in params}
            candidate = candidates[name] = Candidate(params, label)
        candidate.parts.append(outcome)
    for candidate in candidates.values():
        if goal is None:
            break
        values = ((trial.segment.fold, result.values) for trial, result in candidate.parts)
        good = [(fold, named[goal.name]) for fold, named in values if goal.name in named]
        by_fold = [value for _, value in sorted((fold, value) for fold, value in good if fold is not None)]
        candidate.folds = by_fold or [value for _, value in good[-1:]]
        candidate.value = mean_of(candidate.folds) if candidate.folds and not candidate.failed else None
    most = max((len(candidate.folds) for candidate in candidates.values() if candidate.value is not None), default=0)
    for number, candidate in enumerate(sorted(candidates.values(), key=_order)):
        whole = candidate.value is not None and len(candidate.folds) == most
        candidate.number = number
        lacks = goal is not None and len(candidate.folds) < len(candidate.parts)
        candidate.state = COMPLETE if whole else FAILED if candidate.failed or lacks else "incomplete"
        segment = candidate.parts[0].trial.segment
        if segment.number is not None and segment.fold is None:  # of a search: the parts are stages
            candidate.state = state_of(sorted(candidate.parts, key=lambda part: part.trial.segment.stage or 0))
            candidate.value = candidate.value if candidate.state in (COMPLETE, INFEASIBLE) else None
    return list(candidates.values())


def _order(candidate: Candidate) -> tuple[int, str]:
    """By numbers, or the first of their keys."""
    number = candidate.parts[0].trial.segment.number
    return (-1, min(trial.key for trial, _ in candidate.parts)) if number is None else (number, "")
