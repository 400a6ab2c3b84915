"""A journal as a report sees it: candidates, the best of them, the cost, the failures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mpitune.statistics import cross_validated
from mpitune.storage.history import History
from mpitune.storage.table import last_line
from mpitune.trial import Parameter, Result, Trial

FOLDS = ("fold", "split", "@fold")  # parameters that say which part of the data a trial is validated on
NESTED = "outer"  # parameter of trials of a search within an outer fold, which are no candidates of the study's own


@dataclass(frozen=True)
class Goal:
    """The goal of a search."""

    name: str
    maximize: bool

    @classmethod
    def of(cls, words: str) -> Goal:
        """The goal written as "minimize loss". Raises ValueError."""
        verb, _, name = words.partition(" ")
        if verb not in ("minimize", "maximize") or not name:
            raise ValueError(f"{words!r} is not a goal: write it as 'minimize loss' or 'maximize accuracy'")
        return cls(name, verb == "maximize")

    @property
    def percent(self) -> bool:
        """Whether its values are shown in per cent: errors and accuracies are fractions."""
        return self.name.endswith(("error", "accuracy"))

    def better(self, one: float, other: float) -> bool:
        return one > other if self.maximize else one < other


@dataclass
class Candidate:
    """Trials of equal parameters but the fold, or the stages of one trial of `search()`.

    Attributes:
        params: without the fold.
        label: what tells candidates apart, but is not searched.
        parts: (trial, result) of each, in the journal's order.
        folds: the goal's value on each, or of the last stage.
        value: their mean; None where one has failed or there is none.
    """

    params: dict[str, Parameter]
    label: dict[str, Parameter] = field(default_factory=dict)
    parts: list[tuple[Trial, Result]] = field(default_factory=list)
    folds: list[float] = field(default_factory=list)
    value: float | None = None

    @property
    def failed(self) -> bool:
        return any(result.failed for _, result in self.parts)

    @property
    def ended(self) -> float:
        """Unix time at which its last part was done; 0 where that is not known."""
        return max(result.ended for _, result in self.parts)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of 95 %, where it has the values of at least two folds."""
        if len(self.folds) < 2 or not all(map(math.isfinite, self.folds)):
            return None
        return cross_validated(np.array(self.folds))


@dataclass(frozen=True)
class StudyRead:
    """What a journal says.

    Attributes:
        name: of the experiment.
        goal: None where the journal has none.
        candidates: in the journal's order.
        others: trials that are no candidates, such as refits, by key.
        running: whether a job holds the folder.
    """

    folder: Path
    name: str
    history: History
    goal: Goal | None
    candidates: Sequence[Candidate]
    others: Mapping[str, tuple[Trial, Result]]
    running: bool = False

    @cached_property
    def best(self) -> Candidate | None:
        """The candidate of the best value among those that have as many folds as any; the first of equal ones."""
        valued = [one for one in self.candidates if one.value is not None and not math.isnan(one.value)]
        if self.goal is None or not valued:
            return None
        most = max(len(one.folds) for one in valued)
        sign = -1.0 if self.goal.maximize else 1.0
        return min((one for one in valued if len(one.folds) == most), key=lambda one: sign * one.value)  # type: ignore[operator]

    @cached_property
    def parameters(self) -> list[str]:
        """Names of the parameters that the candidates have, in the order first seen."""
        return list(dict.fromkeys(name for one in self.candidates for name in one.params))

    @cached_property
    def failures(self) -> list[tuple[Trial, Result]]:
        """Failed trials, in the journal's order."""
        return [(self.history.trials[key], result) for key, result in self.history.results.items() if result.failed]

    @property
    def state(self) -> str:
        """One word or two."""
        return "complete" if self.history.complete else "running" if self.running else "unfinished"

    @cached_property
    def timed(self) -> bool:
        """Whether the journal says when each candidate with a value was done."""
        return all(one.ended for one in self.candidates if one.value is not None)

    def best_so_far(self) -> list[tuple[float, float]]:
        """(Unix time, value) of each candidate that was better than all that ended before it.

        Where times are not known, the number of the candidate stands for them.
        """
        if self.goal is None:
            return []
        most = max((len(one.folds) for one in self.candidates), default=0)
        found: list[tuple[float, float]] = []
        places = [(one.ended if self.timed else float(n), one) for n, one in enumerate(self.candidates, 1)]
        for at, one in sorted(places, key=lambda pair: pair[0]):
            value = one.value
            if value is None or not math.isfinite(value) or len(one.folds) < most:
                continue
            if not found or self.goal.better(value, found[-1][1]):
                found.append((at, value))
        return found


def read_candidates(
    history: History, goal: Goal | None, besides: Iterable[str] = ()
) -> tuple[list[Candidate], dict[str, tuple[Trial, Result]]]:
    """The candidates of a journal, and the trials that belong to none.

    Args:
        history: of the journal.
        goal: whose value they have.
        besides: names of parameters that tell candidates apart, but are not searched.

    Returns:
        (candidates, other trials by key). A trial is no candidate where others have a fold and it has none, or where
        it has values but not the goal's.
    """
    pairs = [(trial, history.results[key]) for key, trial in history.trials.items()]
    staged = "objectives" in history.header["settings"]  # a study of `search()`: its keys are NUMBER or NUMBER/STAGE
    folded = any(_fold(trial) is not None for trial, _ in pairs)
    candidates: dict[Any, Candidate] = {}
    others = {}
    for trial, result in pairs:
        lacks = goal is not None and not result.failed and goal.name not in result.values
        if (folded and not staged and _fold(trial) is None) or lacks or NESTED in trial.params:
            others[trial.key] = (trial, result)
            continue
        params = {name: value for name, value in trial.params.items() if name not in FOLDS and name[:1] != "@"}
        name = trial.key.partition("/")[0] if staged else tuple(params.items())
        if (found := candidates.get(name)) is None:
            label = {name: params.pop(name) for name in besides if name in params}
            found = candidates[name] = Candidate(params, label)
        found.parts.append((trial, result))
    for one in candidates.values():
        _value(one, goal)
    return list(candidates.values()), others


def _value(one: Candidate, goal: Goal | None) -> None:
    """Fill in the values of a candidate's folds and their mean."""
    if goal is None:
        return
    good = [(trial, result.values[goal.name]) for trial, result in one.parts if not result.failed]
    by_fold = [value for trial, value in good if _fold(trial) is not None]
    one.folds = by_fold or [value for _, value in good[-1:]]
    if one.folds and not one.failed:
        one.value = sum(one.folds) / len(one.folds)


def _fold(trial: Trial) -> Parameter | None:
    return next((trial.params[name] for name in FOLDS if trial.params.get(name, -1) != -1), None)


def cost_of(history: History) -> dict[str, float]:
    """What a study took: `wall`, of its runs, as far as known; `busy`, seconds of work over all slots."""
    return {
        "wall": math.fsum(run.get("seconds", 0.0) for run in history.runs),
        "busy": math.fsum(result.seconds for result in history.results.values()),
    }


def why(result: Result) -> str:
    """The last line of a failure."""
    return last_line(result.error)
