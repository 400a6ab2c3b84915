"""What rank 0 does with a call of `Study.optimize`: it tells the user's study, in the order of numbers."""

from __future__ import annotations

import copy
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from optuna.storages import InMemoryStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from mpitune.errors import UsageError, named
from mpitune.optimize.window import Proposed
from mpitune.optuna.asking import Asking, log
from mpitune.optuna.records import read_kept
from mpitune.processes.process import unpacked_error
from mpitune.trial import Result

Callback = Callable[[Study, FrozenTrial], None]


@dataclass
class Leader:
    """What rank 0 has: the user's study, and what ends the call."""

    study: Study
    asking: Asking
    functions: Mapping[str, Callable[[Any], Any]]
    arrays: dict[str, np.ndarray]  # large ones that the function holds
    n_trials: int | None
    timeout: float | None  # seconds since `began`, after which no trial begins
    catch: tuple[type[BaseException], ...]
    callbacks: Sequence[Callback]
    # By number: what an objective has raised, packed, its trial and attributes of the study: a journal cannot hold all.
    extras: dict[int, tuple[bytes, FrozenTrial, dict[str, Any]]] = field(default_factory=dict)
    keeps: bool = False  # whether a journal is kept
    raised: BaseException | None = None
    stopped: bool = False  # by an objective
    is_cut: bool = False  # by its time, before all trials were asked for
    bar: Any = None  # Optuna's
    began: float = field(default_factory=time.monotonic)
    n_asked: int = 0
    told: bool = False  # of a trial
    told_texts: bool = False  # whether a line has said that attributes are texts

    least = 1  # see `Source`

    @property
    def ended(self) -> bool:
        """Whether the study ends, as if no later trial had run."""
        return self.raised is not None or self.stopped or self.asking.stopped or self.study._stop_flag

    @property
    def is_late(self) -> bool:
        """Whether its time is over. As in Optuna a first trial runs, however long the workers take, if there is any."""
        if self.timeout is None or not (self.told or self.timeout <= 0):
            return False
        return time.monotonic() - self.began >= self.timeout

    def ask(self, most: int) -> list[Proposed] | None:
        """The next trial, if one may begin; None where none that is open counts any more."""
        if self.ended:
            return None
        self.is_cut = self.n_asked != self.n_trials and self.is_late
        if self.n_asked == self.n_trials or self.is_cut:
            return []
        self.n_asked += 1
        proposed = [Proposed((self.asking.ask(),))]
        return None if self.ended else proposed

    def tell(self, proposed: Proposed, results: Sequence[Result]) -> bool:
        """Take in the next result in the order of numbers; returns whether none that is open counts any more."""
        (result,) = results
        number, self.told = self.asking.open[0], True
        raised, unsent, attrs = self.extras.pop(number, (b"", None, None))
        if result.ending.for_door is None:  # its worker has died, each time
            cause = result.error
            told = self.asking.tell(None, None, TrialState.FAIL)
        else:
            ended, values, of_study, kept = read_kept(result.ending.for_door, number, len(self.study.directions))
            cause = kept.cause
            self.stopped |= kept.stopped
            if unsent is not None:
                in_memory = isinstance(self.study._storage, InMemoryStorage)
                if self.keeps or not in_memory:
                    _require_plain(unsent)
                if in_memory:
                    ended, of_study = unsent, attrs
            elif kept.texts and not self.told_texts:
                self.told_texts = True
                print(
                    f"trials of an earlier process have texts for objects in their attribute {named(kept.texts)}: "
                    "fit the best again (study.best_params), or save each model to a file in the objective",
                    file=sys.stderr,
                )
            for name, value in of_study.items():  # also where the sampler's `after_trial` raises
                self.study.set_user_attr(name, value)
            told = self.asking.tell(ended, values, TrialState[kept.state])
        self.bar.update(time.monotonic() - self.began, self.study)
        _say(self.study, told, cause)
        error = self.asking.raised.pop(number, None) or (unpacked_error(raised) if raised else None)
        if error is not None and not isinstance(error, self.catch):
            self.raised = error
            return True
        for callback in self.callbacks:
            callback(self.study, copy.deepcopy(self.study.get_trials(deepcopy=False)[number]))
        return self.ended


def _require_plain(trial: FrozenTrial) -> None:
    """Raise UsageError for choices that a journal or a database cannot hold."""
    for name, drawn_from in trial.distributions.items():
        if not all(isinstance(choice, str | float | int | None) for choice in getattr(drawn_from, "choices", ())):
            raise UsageError(
                f"the choices of {name} cannot be kept in a file ({drawn_from}): give texts or numbers, and look up "
                "in the objective what they stand for"
            )


def _say(study: Study, trial: FrozenTrial, cause: str | None) -> None:
    """Log the end of a trial as Optuna does."""
    if trial.state == TrialState.FAIL:
        log.warning("Trial %d failed with parameters: %s because of: %s", trial.number, trial.params, cause)
    elif trial.state == TrialState.PRUNED:
        log.info("Trial %d pruned.", trial.number)
    elif log.isEnabledFor(logging.INFO):
        one = len(study.directions) == 1
        best = ""
        with suppress(ValueError):  # no trial yet that keeps its constraints
            best = f" Best is trial {study.best_trial.number} with value: {study.best_value}." if one else ""
        values = f"value: {trial.value}" if one else f"values: {trial.values}"
        log.info("Trial %d finished with %s and parameters: %s.%s", trial.number, values, trial.params, best)
