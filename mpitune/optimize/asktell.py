"""`ask` and `tell`, for loops of your own: an instrument, a person, a scheduler that starts trials elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from mpitune.errors import Caller, UsageError, called_from
from mpitune.optimize.search_study import SearchStudy, records
from mpitune.optimize.spaces import Space
from mpitune.optimize.strategies import strategy_of
from mpitune.optimize.strategies.base import Feedback, TrialSegment
from mpitune.optimize.strategies.from_optuna import note_constraints
from mpitune.optimize.strategies.plain import Points, Sampling
from mpitune.optimize.tuning import Tuning, described, problem_of
from mpitune.optimize.values import InvalidReturnValue, as_json, require_same_names, values_of
from mpitune.storage.journal import Journal
from mpitune.trial import Outcome, Result


class AskTell:
    """A search whose trials are evaluated by its user.

        with AskTell({"x": Float(-1, 1)}, strategy="tpe", n_trials=30, minimize="loss", results="folder") as loop:
            while (trial := loop.ask()) is not None:
                loop.tell(trial, {"loss": measure(trial.params["x"])})
            print(loop.study.best)

    Several trials may be asked before they are told, in any order. The arguments are those of `mpitune.search`; with
    the same results folder it goes on, and `mpitune.search(..., adapt=True)` uses what it knows. It knows no other
    processes: under mpirun one rank uses it.

    Raises:
        UsageError: As `mpitune.search`, and where the strategy does not evaluate whole trials.
    """

    def __init__(
        self,
        space: Space | Mapping[str, Any] | Iterable[tuple[str, Any]],
        *,
        strategy: Any = "random",
        n_trials: int | None = None,
        minimize: str | Sequence[str] = (),
        maximize: str | Sequence[str] = (),
        seed: int = 0,
        results: str | Path | None = None,
        enqueue: Iterable[Mapping[str, Any]] = (),
    ):
        self._problem = problem_of(
            space, n_trials=n_trials, minimize=minimize, maximize=maximize, seed=seed, enqueue=enqueue
        )
        chosen = self._strategy = strategy_of(strategy)
        if not isinstance(chosen, Sampling):
            raise UsageError(f"{type(chosen).__name__} does not evaluate whole trials: give a strategy such as 'tpe'")
        self._points = Points(chosen.draws(self._problem), self._problem)
        self._open: dict[int, TrialSegment] = {}
        self._outcomes: list[Outcome] = []
        self._journal: Journal | None = None
        self._folder = None if results is None else Path(results)
        if self._folder is not None:
            settings = {
                "experiment": Tuning.__name__, "space": list(self._problem.space.described()),
                "strategy": chosen.describe(self._problem), "objectives": list(described(self._problem.objectives)),
                "seed": self._problem.seed,
            }  # fmt: skip
            header: dict[str, Any] = {"settings": settings, "versions": {}, "commit": None, "command": []}
            with called_from(Caller.ARGUMENTS):
                self._journal = Journal(self._folder, header)
            history = self._journal.history
            for key, trial in history.trials.items():
                segment = TrialSegment.of(trial)
                self._points.known(segment.number)
                self._tell(segment, Outcome(trial, history.results[key]))

    def ask(self) -> Asked | None:
        """The next trial; None where there is no more."""
        taken = self._points.take(1)
        if not taken:
            return None
        segment = TrialSegment(*taken[0])
        self._open[segment.number] = segment
        return Asked(segment.number, self._problem.space.given(segment.point))

    def tell(self, trial: Asked | int, values: Any = None, *, error: str | None = None, user_attrs: Any = None) -> None:
        """Tell the result of a trial: its values and user attributes by name, or why it failed. Then it is on disk.

        Raises:
            UsageError: the trial is not open, or the values are none.
        """
        number = trial if isinstance(trial, int) else trial.number
        if number not in self._open:
            raise UsageError(f"trial {number} is not open: ask for it first, and tell it once")
        segment = self._open[number]
        if error is None:
            try:
                said = {name: as_json(name, value) for name, value in (user_attrs or {}).items()}
                result = Result(
                    segment.key, values_of(values, list(self._problem.objectives)), read=(), user_attrs=said
                )
                before = next((outcome.result for outcome in self._outcomes if not outcome.result.failed), result)
                require_same_names(result.values, before.values)
                note_constraints(self._strategy, self._problem, segment.trial(), result)
            except InvalidReturnValue as invalid:
                raise UsageError(f"trial {number}: {invalid}".replace("it returned", "the values are")) from None
        else:
            result = Result(segment.key, error=error)
        if self._journal is not None:
            self._journal.append([(segment.trial(), result)])
        del self._open[number]
        self._tell(segment, Outcome(segment.trial(), result))

    @property
    def study(self) -> SearchStudy:
        """The study so far."""
        return SearchStudy(records(self._outcomes, self._problem.space.given), self._problem.objectives, self._folder)

    def close(self) -> None:
        """Release the results folder."""
        if self._journal is not None:
            self._journal.close()

    def __enter__(self) -> AskTell:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _tell(self, segment: TrialSegment, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        self._points.tell(segment, Feedback.of(outcome.result, self._problem))


@dataclass(frozen=True, eq=False)  # each is equal to itself alone, so it may be the key of a dict
class Asked:
    """A trial to evaluate: its number and its parameters by name."""

    number: int
    params: Mapping[str, Any]
