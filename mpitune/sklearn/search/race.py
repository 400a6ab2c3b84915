"""The race of a search's candidates over the folds: what it wants next depends on nothing but the scores known.

So the table of a raced search is the same in this process, on workers and ranks, in any order of ends, and after a
kill. Candidates that share their last fit leave together, as one more of a fit costs nothing; those of a grid that is
solved as one never leave. What a race did not want, as a search without one may have made it, is left out of the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mpitune.errors import UsageError
from mpitune.sklearn.fits.answers import Answer, decoded
from mpitune.sklearn.fits.grouping import Grouping
from mpitune.sklearn.fits.task import Task
from mpitune.sklearn.search.racing import Race
from mpitune.storage.history import History
from mpitune.trial import Result

ONE_SCORE = "race needs one score to compare candidates by: give refit= the name of one"

Place = tuple[int, int]  # candidate and split


def check(search: Any) -> None:
    """Raise UsageError for a search whose candidates cannot be raced."""
    if hasattr(search, "aggressive_elimination"):
        raise UsageError("race is for searches in one round: this one halves its candidates")
    if callable(search.refit):
        raise UsageError("race finds the best mean score, and a callable refit needs all folds: give one of them")
    if isinstance(search.scoring, list | tuple | set | dict) and not isinstance(search.refit, str):
        raise UsageError(ONE_SCORE)


def fits_of(
    together: Mapping[int, int | None], folds: Mapping[str, Any], losses: Mapping[Place, float | None]
) -> set[Place]:
    """(candidate, split) of all that a race has asked for so far, by the losses known.

    Args:
        together: of all candidates, see `Race`.
        folds: `splits`, `repeats`, and the confidence as `race`.
        losses: None of a fit that failed.
    """
    numbers, splits = sorted(together), folds["splits"]
    repeats, confidence = folds["repeats"], folds["race"]
    race = Race(numbers, splits, confidence=confidence, repeats=repeats, together=together)
    fits = {(number, split) for number in numbers if together[number] is None for split in range(splits)}
    while pairs := race.next_folds():
        fits.update(pairs)
        if any(pair not in losses for pair in pairs):
            return fits
        for pair in pairs:
            race.tell(pair[0], losses[pair])
    if not race.kept():  # all have failed: scikit-learn says so, of all
        return {(number, split) for number in numbers for split in range(splits)}
    return fits


def counts(history: History) -> set[str] | None:
    """Keys of the fits that the race of a journal's last run wanted; None without a race."""
    folds = {"repeats": 1, "splits": 1, "together": {}, **(history.runs[-1].get("folds", {}) if history.runs else {})}
    goal = history.goal.partition(" ")[2]
    if folds.get("race") is None or not goal:
        return None
    segments = ((key, trial.segment) for key, trial in history.trials.items())
    places = {key: (of.number, of.fold) for key, of in segments if of.number is not None and of.fold is not None}
    failed = str(history.header["settings"].get("error_score"))
    losses: dict[Place, float | None] = {}
    for key, place in places.items():
        result = history.results[key]
        value = float(failed) if result.failed and failed != "raise" else result.values.get(goal, math.nan)
        losses[place] = None if math.isnan(value) else -value
    together = {number: folds["together"].get(str(number), number) for number, _ in places.values()}
    fits = fits_of(together, folds, losses)
    return {key for key, place in places.items() if place in fits}


class FoldRace:
    """The race of the tasks of a search."""

    def __init__(self, search: Any, grouping: Grouping) -> None:
        self._tasks = {(task.candidate, task.split): task for task in grouping.tasks}
        self._by_key = {task.key: task for task in grouping.tasks}
        splits, repeats = 1 + max(task.split for task in grouping.tasks), search._splits.get("repeats", 1)
        self._folds = {"splits": splits, "repeats": repeats, "race": float(search.race)}
        self._metric, self._together = search.refit, {**grouping.last_fits, **({0: None} if search.default else {})}
        self._losses: dict[Place, float | None] = {}

    def add(self, task: Task, scores: Any) -> None:
        """A task is done, with these scores."""
        if isinstance(scores, Mapping):
            if not isinstance(self._metric, str):
                raise UsageError(ONE_SCORE)
            scores = scores[self._metric]
        self._losses[task.candidate, task.split] = None if scores == "raise" or math.isnan(scores) else -float(scores)

    def hear(self, results: Iterable[Result]) -> None:
        for result in results:
            task = self._by_key[result.key]
            self.add(task, task.kwargs["error_score"] if result.failed else decoded(result)["test_scores"])

    def wanted(self) -> list[Task]:
        """The tasks to do next, none at the end."""
        wanted = fits_of(self._together, self._folds, self._losses)
        return [task for place, task in self._tasks.items() if place not in self._losses and place in wanted]

    def rounds(self, ends: Callable[[], bool]) -> Iterator[list[Task]]:
        """The tasks to do next, until it ends."""
        while wanted := self.wanted():
            yield wanted
            if ends():
                return

    @property
    def note(self) -> dict[str, Any]:
        """What a journal keeps of it."""
        return self._folds | {"together": {str(n): name for n, name in self._together.items() if name != n}}

    def counted(self, answers: Mapping[str, Answer]) -> tuple[dict[str, Answer], str]:
        """The answers that the race wanted, and a line that says how many fits it did not want."""
        wanted = fits_of(self._together, self._folds, self._losses)
        kept = {self._tasks[place].key: answers[self._tasks[place].key] for place in wanted}
        note = f"race: {len(self._tasks) - len(wanted):,} of {len(self._tasks):,} fits spared"
        sure = f"the winner of all folds is kept in {100 * self._folds['race']:g} % of searches and orders of folds"
        return kept, f"{note}; {sure}"
