"""A study that several jobs work on at the same time, as one of them sees it.

    folder of the study --others' results, claims--> study --claimed batches--> coordinator
    coordinator --results--> own journal, which the others read

Each job asks the same searches and tells them the same results, so all know the same open batches. A job claims some,
evaluates them, and hears from the others' journals what became of the rest. Batches of a job that has ended or gives no
sign of life are claimed again. What two jobs have evaluated does no harm: equal trials have equal results.
"""

from __future__ import annotations

import heapq
import logging
import math
import time
from collections.abc import Callable, Iterable, Set
from itertools import count
from pathlib import Path

from mpitune.earlier.studies import KnownBefore
from mpitune.engine.lives import Lives
from mpitune.engine.study import Study
from mpitune.errors import StudyError
from mpitune.port import Port
from mpitune.storage.files import JOBS, new_jobs
from mpitune.storage.history import History
from mpitune.storage.jobs import Claims, Follower
from mpitune.storage.journal import written_into
from mpitune.trial import Batch, Result, Rounds, Trial, asked_of, same_trial

log = logging.getLogger(__name__)

FOLDER_LOOK_S = 0.25  # seconds between two looks at the folder of the study, with few jobs
SHORT_BATCH_S = 2.0  # batches that take less are claimed before a slot is free
CLAIM_TRIES = 8  # to claim, one right after the other, while others claim too
GONE_AFTER = 3  # times as long as for a silent node, until a job counts as gone
MOST_OPEN = 200  # folders of other jobs that are kept open


class JoinedStudy(Study):
    """The study, of which this job runs what it has claimed.

    Args:
        searches, history: see `Study`; the history is that of all jobs.
        folder: of the study.
        job: the name of this one.
        timeout: seconds without a sign of life after which another job counts as gone; 0 for never.
        n_slots: of this job.
        cost: of a trial, see `Scheduling`.
        before, port: see `Study`.
    """

    def __init__(
        self,
        searches: Iterable[Rounds],
        history: History,
        *,
        folder: Path,
        job: str,
        timeout: float,
        n_slots: int,
        cost: Callable[[Trial], float],
        before: KnownBefore | None = None,
        port: Port | None = None,
    ):
        self._heard = dict(history.trials)
        super().__init__(searches, self._heard, dict(history.results), before=before, port=port)
        self._folder, self._job, self._n_slots = folder, job, n_slots
        self._settings = history.header["settings"]
        with written_into(folder):
            self._lives = Lives(folder, job, timeout)
            self._claims = Claims(folder, job)
        self._cost = cost
        self._others: dict[str, Follower] = {}
        self._open: dict[str, dict[str, Trial]] = {}  # open trials by key, of each open batch by the batch's name
        self._batch_of: dict[str, str] = {}  # the name of the batch of an open trial
        self._free: set[str] = set()  # names of open batches that nobody has claimed
        self._order: list[tuple[float, int, str]] = []  # a heap: the costliest batch first
        self._numbers = count()
        self._handed: set[str] = set()  # names of open batches that the coordinator has
        self._n_held = 0  # of them, with nothing but failures that it keeps back
        self._able: set[str] = set()  # jobs in which a trial has succeeded
        self._n_done_here, self._seconds = 0, 0.0  # batches, and what their trials took
        self._next_look = self._next_claim = 0.0

    def close(self) -> None:
        """This job gives no sign of life any more."""
        self._lives.close()
        self._claims.close()
        for other in self._others.values():
            other.close()

    # -- as the coordinator sees it

    @property
    def others_work(self) -> bool:
        """Whether failures are still kept back: a batch is free, or with a job that is to tell its own first."""
        owner = self._claims.owner
        return any(name in self._free or owner[name] < self._job for name in self._open if name not in self._handed)

    @property
    def others_succeed(self) -> bool:
        """Whether a trial has succeeded in another job, which still lives."""
        able = {name for name in self._able if not self._others[name].ended}
        return bool(able - self._lives.gone(able))

    @property
    def has_more(self) -> bool:
        """Whether there is more to run than it has given."""
        return bool(self._free)

    @property
    def waits(self) -> bool:
        """Whether it waits for trials or results of others."""
        return len(self._open) > len(self._handed)

    def start(self) -> list[Batch]:
        super().start()
        with written_into(self._folder):
            self._look()
        return []

    def arrived(self, held: Set[str] = frozenset()) -> list[Batch]:
        now = time.monotonic()
        self._n_held = sum(self._open[name].keys() <= held for name in self._handed) if held else 0
        with written_into(self._folder):
            if now >= self._next_look:
                self._look()
            return self._claim(now) if now >= self._next_claim else []

    def record(self, result: Result) -> list[Batch]:
        self._seconds += result.seconds
        if result.key in self._batch_of:  # else another job has been faster
            self._take_in(result)
        return []

    def catch_up(self) -> list[Batch]:
        super().catch_up()
        return []

    def _to_run(self, batch: Batch, left: list[Trial]) -> Batch:
        name = batch[0].key
        self._open[name] = {trial.key: trial for trial in left}
        self._batch_of.update((trial.key, name) for trial in left)
        if name not in self._claims.owner:
            self._put_up(name)
        return tuple(left)

    # -- what others do

    @property
    def _pause(self) -> float:
        """Seconds between two looks, and two claims, so that calls grow as the root of the number of jobs."""
        return FOLDER_LOOK_S * math.sqrt(self._n_live)

    def _look(self) -> None:
        """Take in what others have found out since the last time."""
        new = new_jobs(self._folder, {self._job, *self._others})
        self._others.update((folder.name, Follower(folder, self._settings)) for folder in new)
        for other in [other for other in self._others.values() if not other.ended]:
            for line in other.read():
                trial, result = line.trial, line.result(self._folder / JOBS / other.name)
                if not result.failed:
                    self._able.add(other.name)
                if result.key in self._batch_of:
                    self._require_same(trial, self._open[self._batch_of[result.key]][result.key], other.name)
                    self.port.examine(trial, result, None)
                    self._take_in(result)
                elif result.key not in self.results:  # of a batch that this job will only ask for
                    self._heard[trial.key], self.results[trial.key] = trial, result
            if other.ended or len(self._others) > MOST_OPEN:
                other.close()
        self._lives.gone({folder.name for folder in new} - self._ended)  # from now on their silence counts
        self._next_look = time.monotonic() + self._pause

    def _take_in(self, result: Result) -> None:
        name = self._batch_of.pop(result.key)
        del self._open[name][result.key]
        if not self._open[name]:
            del self._open[name]
            self._free.discard(name)
            if name in self._handed:
                self._handed.remove(name)
                self._n_done_here += 1
        super().record(result)

    def _require_same(self, there: Trial, here: Trial, job: str) -> None:
        if not same_trial(there, here):
            raise StudyError(
                f"job {job} has evaluated trial {there.key} with {asked_of(there)}, this job asks for "
                f"{asked_of(here)}: jobs that join must have the same results; run the same command again"
            )

    # -- what this job takes

    def _put_up(self, name: str) -> None:
        """This batch may be claimed."""
        self._free.add(name)
        cost = sum(map(self._cost, self._open[name].values()))
        heapq.heappush(self._order, (-cost, next(self._numbers), name))

    @property
    def _ahead(self) -> int:
        """How many short batches the slots evaluate between two claims."""
        mean = self._seconds / self._n_done_here if self._n_done_here else math.inf
        return math.ceil(self._n_slots * self._pause / max(mean, 1e-3)) if mean < SHORT_BATCH_S else 0

    @property
    def _n_at_work(self) -> int:
        return len(self._handed) - self._n_held

    @property
    def _ended(self) -> set[str]:
        """The other jobs that have said that they end."""
        return {name for name, other in self._others.items() if other.ended}

    @property
    def _n_live(self) -> int:
        return 1 + sum(not other.ended for other in self._others.values())

    def _claim(self, now: float) -> list[Batch]:
        """Claim what this job's slots need: a batch for each slot, and more where they are short."""
        if self.finished or not self._open or (wanted := self._n_slots + self._ahead - self._n_at_work) <= 0:
            return []
        self._next_claim = now + self._pause
        if not self._free and self._n_at_work < self._n_slots:
            self._claims_of_the_gone()
        for _ in range(CLAIM_TRIES):
            # Towards the end only a share of what is left, so that all jobs end at about the same time. A share that
            # takes less than half of the time to the next claim would leave slots idle again and again.
            share = max(len(self._free) // (2 * self._n_live), self._ahead // 2, 1)
            fair = max(min(wanted, self._n_slots - self._n_at_work), share)
            names = self._first(min(wanted, fair))
            if not names:
                return []
            if self._claims.take(names):
                self._handed.update(names)
                return [tuple(self._open[name].values()) for name in names]
            for name in names:
                self._put_up(name)
            self._free.difference_update(self._claims.read())
        return []

    def _first(self, most: int) -> list[str]:
        """Take the first free batches out."""
        names: list[str] = []
        while self._order and len(names) < most:
            _, _, name = heapq.heappop(self._order)
            if name in self._free:
                self._free.remove(name)
                names.append(name)
        return names

    def _claims_of_the_gone(self) -> None:
        """Free the batches of jobs that have ended, or have given no sign for too long, and those this never took."""
        self._free.difference_update(self._claims.read())
        held: dict[str, list[str]] = {}
        for name in self._open:
            if name not in self._handed and name not in self._free:
                held.setdefault(self._claims.owner[name], []).append(name)
        ended = held.keys() & {self._job, *self._ended}
        gone = self._lives.gone(held.keys() - ended)
        for job in sorted(gone):
            log.warning("job %s has given no sign of life: its work goes to the others", job)
        for job in ended | gone:
            for name in held[job]:
                self._put_up(name)
