"""The bookkeeping of one study: the trials that its searches asked for, known and open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence, Set
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from mpitune.earlier.studies import KnownBefore
from mpitune.errors import UsageError, or_typed
from mpitune.port import Port
from mpitune.storage.history import no_collection
from mpitune.trial import Batch, Outcome, Result, Rounds, Trial, Window, asked_of, exact, same_trial


@dataclass(eq=False)
class _Course:
    """One search on its way: all it has asked so far, what it waits for, and how much of that is open."""

    number: int
    search: Rounds
    trials: list[Trial] = field(default_factory=list)
    awaited: list[Trial] = field(default_factory=list)  # a round, or some of a window
    open: int = 0
    told: list[Trial] = field(default_factory=list)
    conclusion: Any = None


class Study:
    """Advances searches, each independent of the others, as their rounds become complete.

    Args:
        searches: as of an experiment.
        trials, results: what a journal knows already, by key. Results may have been deleted, and none added. They are
            copied, and only looked at when a search needs them.
        renew: whether a known trial runs again if its parameters differ from the stored ones (--retry-failed forgets
            results that they came from). Otherwise that is an error.
        before: where trials without results may have one from earlier studies.
        port: of the experiment.
    """

    n_done = 0
    n_open = 0

    def __init__(
        self,
        searches: Iterable[Rounds],
        trials: Mapping[str, Trial],
        results: MutableMapping[str, Result],
        *,
        renew: bool = False,
        before: KnownBefore | None = None,
        port: Port | None = None,
    ):
        self.results: MutableMapping[str, Result] = copy(results)
        self.sound = next((result for result in results.values() if not result.failed), None)  # one that has succeeded
        self.port = port or Port()
        self._known = trials
        self._lost = set() if len(results) == len(trials) else set(trials).difference(results)  # known without results
        self._renew, self._before = renew, before
        self._courses = [_Course(number, search) for number, search in enumerate(searches)]
        self.asked: set[str] = set()
        self._waits_for: dict[str, _Course] = {}  # the course that waits for the trial of this key
        self._behind: list[_Course] = []  # those that know what they wait for, but new work was to begin first
        self._news: list[str] = []  # keys of results, see `news`
        self.n_open_searches = len(self._courses)

    @property
    def n_asked(self) -> int:
        """Trials that its searches have asked for; of them `n_done` have results, `n_open` have none."""
        return len(self.asked)

    # What comes from elsewhere: nothing where one job works on the study, by itself. Else see `JoinedStudy`.

    waits = has_more = others_work = others_succeed = property(lambda self: False)

    def arrived(self, held: Set[str] = frozenset()) -> list[Batch]:
        """Batches that have come from outside; `held` are trials whose failures are kept back."""
        return []

    @property
    def finished(self) -> bool:
        return self.n_open_searches == 0

    def start(self) -> list[Batch]:
        """The batches to run first; none where its searches end with what is known."""
        with no_collection():
            batches = [batch for course in self._courses for batch in self._advance(course)]
            while self._behind:
                batches += self.catch_up()
        self._write_found()
        return [] if self.finished else batches

    def record(self, result: Result) -> list[Batch]:
        """Take in one result; returns the batches that can be run because of it."""
        self.results[result.key] = result
        self._news.append(result.key)
        self.n_done += 1
        self.n_open -= 1
        course = self._waits_for.pop(result.key, None)
        if course is None:
            return []
        course.open -= 1
        batches = self._advance(course) if course.open == 0 else []
        self._write_found()
        return batches

    @property
    def is_behind(self) -> bool:
        """Whether `catch_up` has something to do."""
        return bool(self._behind)

    def catch_up(self) -> list[Batch]:
        """Let one search hear of results that are known; returns the batches that can be run because of them."""
        batches = self._advance(self._behind.pop())
        self._write_found()
        return batches

    def news(self) -> Iterator[Result]:
        """The results of trials asked for that have come since this was last called, each once."""
        keys, self._news = self._news, []
        return (self.results[key] for key in keys)

    def outcomes(self) -> list[Outcome]:
        """Every known trial with its result, in the order asked; those that a search was told of, once it has ended."""
        return [
            Outcome(trial, self.results[trial.key])
            for course in self._courses
            for trial in course.trials
            if trial.key in self.results
        ]

    def conclusions(self) -> list[Any]:
        """The return value of each search, in their order; None for one that has not ended."""
        return [course.conclusion for course in self._courses]

    def _advance(self, course: _Course) -> list[Batch]:
        """Send the results that the search waits for and take what it asks next, until there is something to run."""
        while True:
            try:
                if course.trials:
                    course.told += course.awaited
                    yielded = course.search.send([self.results[trial.key] for trial in course.awaited])
                else:
                    yielded = next(course.search)
            except StopIteration as end:
                course.conclusion = end.value
                if len(course.told) < len(course.trials):
                    told = {trial.key for trial in course.told}
                    course.trials = [trial for trial in course.trials if trial.key in told]
                self.n_open_searches -= 1
                return []
            batches = yielded.new if isinstance(yielded, Window) else yielded
            course.awaited = list(
                yielded.awaited if isinstance(yielded, Window) else (t for batch in batches for t in batch)
            )
            if not course.awaited:
                raise ValueError("a search yielded a round without trials")
            to_run = self._ask(course, batches)
            waiting = [trial.key for trial in course.awaited if trial.key not in self.results]
            course.open = len(waiting)
            self._waits_for.update(dict.fromkeys(waiting, course))
            if to_run and not waiting:
                self._behind.append(course)
            if to_run or waiting:
                return to_run

    def _ask(self, course: _Course, batches: Sequence[Batch]) -> list[Batch]:
        """Take in new batches of a search; returns what is to be run of them."""
        new = [trial for batch in batches for trial in batch]
        course.trials += new
        unknown = self._not_found(self._unknown(new), new)
        self.n_done += len(new) - len(unknown)
        self._news += [trial.key for trial in new if trial.key not in unknown]
        left: dict[int, list[Trial]] = {}
        for n, batch in enumerate(batches if unknown else ()):
            for trial in batch:
                if trial.key in unknown:
                    left.setdefault(n, []).append(trial)
        to_run = [self._to_run(batches[n], some) for n, some in left.items()]
        self.n_open += sum(map(len, to_run))
        return to_run

    def _not_found(self, unknown: set[str], trials: list[Trial]) -> set[str]:
        """The keys of trials that have no result in earlier studies either; the others get theirs."""
        if self._before is None or not unknown:
            return unknown
        for key, result in ((trial.key, self._before.find(trial)) for trial in trials if trial.key in unknown):
            if result is not None:
                self.results[key] = result
                self.sound = self.sound or (None if result.failed else result)
        return {key for key in unknown if key not in self.results}

    def _write_found(self) -> None:
        if self._before is not None:
            self._before.write()

    def _to_run(self, batch: Batch, left: list[Trial]) -> Batch:
        """What is to be run of a batch, of which these trials are not known."""
        return tuple(left)

    def _unknown(self, trials: list[Trial]) -> set[str]:
        """The keys of new trials without results. Known trials of these keys are checked to be the same.

        A round may have a million known trials, so all are looked up together.
        """
        keys = [trial.key for trial in trials]
        n_before = len(self.asked)
        self.asked.update(keys)
        if len(self.asked) < n_before + len(keys):
            numbers = Counter(trial.key for course in self._courses for trial in course.trials)
            raise ValueError(f"two trials have the key {next(key for key in keys if numbers[key] > 1)}")
        new = set()
        for trial in trials:
            other = self._known.get(trial.key)
            if other is not None and not same_trial(other, trial):
                self._changed(trial, other)
            if trial.key not in self.results:
                new.add(trial.key)
        return new | self._lost.intersection(keys) if self._lost else new

    def _changed(self, trial: Trial, known: Trial) -> None:
        """Forget a known trial that is asked for as another, or refuse it."""
        if not self._renew:
            there, here = asked_of(known), asked_of(trial)
            others = {name for name, *_ in exact(known.params) ^ exact(trial.params)}
            name = next(name for name in {**there, **here} if name in others or there.get(name) != here.get(name))
            raise UsageError(
                f"the journal has trial {trial.key} with {name} = {there.get(name)!r}, this program asks for "
                f"{here.get(name)!r}: give the same parameters and seeds "
                f"(random_state= of what is drawn) and use the version that wrote it, "
                f"or give another results folder{or_typed('restart')}"
            )
        self.results.pop(trial.key, None)
