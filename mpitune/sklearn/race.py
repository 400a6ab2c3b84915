"""The race of a search's candidates over the folds: what it wants next depends on nothing but the scores known.

So the table of a raced search is the same in this process, on workers and ranks, in any order of ends, after a kill and
with jobs that join. Candidates that share their last fit leave together, as one more of a fit costs nothing; those of a
grid that is solved as one never leave. A round lets slots wait for its last fit: where few fits are left for a slot,
all of them begin, and what the race did not want is left out of the table.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mpitune.errors import UsageError
from mpitune.figures.panels import Lines, Section, Table
from mpitune.optimize.strategies.racing import Race
from mpitune.sklearn.answers import Answer, decoded
from mpitune.sklearn.task import Task
from mpitune.sklearn.where import Where
from mpitune.trial import Result

FITS_PER_SLOT = 12  # from which on rounds are as quick as all fits at once, see benchmarks/results/race.md
MOST_ROWS = 500  # of a report's table
ONE_SCORE = "race needs one score to compare candidates by: give refit= the name of one"


def check(search: Any) -> None:
    """Raise UsageError for a search whose candidates cannot be raced."""
    if hasattr(search, "aggressive_elimination"):
        raise UsageError("race is for searches in one round: this one halves its candidates")
    if callable(search.refit):
        raise UsageError("race finds the best mean score: a callable refit chooses otherwise, so it needs all folds")
    if isinstance(search.scoring, list | tuple | set | dict) and not isinstance(search.refit, str):
        raise UsageError(ONE_SCORE)


class FoldRace:
    """The race of the tasks of a search."""

    def __init__(self, search: Any, where: Where) -> None:
        self._tasks = {(task.candidate, task.split): task for task in where.tasks}
        self._by_key = {task.key: task for task in where.tasks}
        self._n_splits = 1 + max(task.split for task in where.tasks)
        repeats = getattr(search.cv, "n_repeats", 1)
        self._repeats = repeats if self._n_splits % repeats == 0 else 1
        self._confidence, self._metric, self._together = search.race, search.refit, where.last_fits
        self._losses: dict[str, float | None] = {}
        self._seconds: dict[int, float] = {}  # that a fit of a candidate took
        self._few = 0

    def start(self, n_slots: int) -> None:
        """Be told how many fits there can be at a time."""
        self._few = FITS_PER_SLOT * n_slots

    def add(self, task: Task, what: Mapping[str, Any]) -> None:
        """A task is done, with scikit-learn's answer."""
        self._losses[task.key] = self._loss(what["test_scores"])

    def hear(self, results: Iterable[Result]) -> None:
        for result in results:
            task = self._by_key[result.key]
            scores = task.kwargs["error_score"] if result.failed else decoded(result)["test_scores"]
            self._losses[result.key] = None if scores == "raise" else self._loss(scores)
            self._seconds[task.candidate] = result.seconds

    def seconds(self, keys: Iterable[str]) -> float:
        """Of the longest fit of these candidates, as far as known."""
        return max(self._seconds.get(self._by_key[key].candidate, 0.0) for key in keys)

    def _loss(self, scores: Any) -> float | None:
        if isinstance(scores, Mapping):
            if not isinstance(self._metric, str):
                raise UsageError(ONE_SCORE)
            scores = scores[self._metric]
        return None if math.isnan(scores) else -float(scores)

    def wanted(self) -> list[Task]:
        """The tasks to do next; none at the end."""
        asked, kept = self._asked()
        unknown = {place: task for place, task in self._tasks.items() if task.key not in self._losses}
        if wanted := [task for place, task in unknown.items() if place in asked]:
            left = [task for (candidate, _), task in unknown.items() if candidate in kept]
            return left if len(left) < self._few or len(set(self._together.values())) == 1 else wanted
        return []

    def rounds(self, ends: Callable[[], bool]) -> Iterator[list[Task]]:
        """The tasks to do next, until it ends."""
        while wanted := self.wanted():
            yield wanted
            if ends():
                return

    def _asked(self) -> tuple[set[tuple[int, int]], set[int]]:
        """(candidate, split) of all that the race has asked for so far, by the scores known, and who is in it."""
        numbers = sorted(self._together)
        race = Race(
            numbers, self._n_splits, confidence=self._confidence, repeats=self._repeats, doubling=True,
            together=self._together,
        )  # fmt: skip
        asked = {place for place in self._tasks if self._together[place[0]] is None}
        while pairs := race.next_folds():
            asked.update(pairs)
            if any(self._tasks[pair].key not in self._losses for pair in pairs):
                return asked, race.kept()
            for candidate, split in pairs:
                race.tell(candidate, self._losses[self._tasks[candidate, split].key])
        if not race.kept():  # all have failed: scikit-learn says so, of all
            return set(self._tasks), set(numbers)
        return asked, race.kept()

    def sections(self) -> list[Section]:
        """For a report: how many candidates had how many folds, and who left when."""
        asked, kept = self._asked()
        numbers = Counter(candidate for candidate, _ in asked)
        folds = list(range(1, self._n_splits + 1))
        evaluated = [sum(n >= fold for n in numbers.values()) for fold in folds]
        about = "A race leaves candidates that would hardly win. Its table has their scores of the folds until then."
        curve = Lines(
            "Candidates in the race", about, "folds", "candidates", {"candidates": (folds, evaluated)}, steps=True
        )
        left = sorted((n, candidate) for candidate, n in numbers.items() if candidate not in kept)
        rows = [[n, str(self._tasks[candidate, 0].parameters)] for n, candidate in left[:MOST_ROWS]]
        table = Table("Who left when", f"{len(left):,} of {len(numbers):,} candidates", ["folds", "candidate"], rows)
        return [Section("Race", [curve, table])]

    def counted(self, answers: Mapping[str, Answer]) -> tuple[dict[str, Answer], str]:
        """The answers that the race wanted, and a line that says how many fits it did not want."""
        asked, _ = self._asked()
        kept = {self._tasks[place].key: answers[self._tasks[place].key] for place in asked}
        said = f"race: {len(self._tasks) - len(asked):,} of {len(self._tasks):,} fits spared"
        if made := len(answers) - len(kept):
            said += f", but {made:,} of these were made, as slots would have waited"
        return kept, (
            f"{said}; the winner of all folds is kept with probability {self._confidence:g} over the order of the folds"
        )
