"""When a study is done whose jobs use the holes of a queue, and when by one large job: `python -m benchmarks.queue`.

A cluster of 128 nodes is simulated. Other users' jobs come by a Poisson process. A job takes 1, 2, 4, ... or 64 nodes,
small sizes more often, for log-normal hours (median 1, sigma 1.2, 24 at most), and asks for one to three times as long.
They come so often that they keep the stated share of all nodes busy. The queue is first come, first served with
backfilling: a later job may begin if, by what jobs have asked for, the first one waits no longer for it (EASY; D.
Lifka, "The ANL/IBM SP scheduling system", 1995).

On the sixth day a study of 1,200 trials comes, one at a time on a node, log-normal minutes (median 10, sigma 0.5):

    one job    of 20 nodes for 16 hours; what is left then is put into the queue again
    jobs       that join: 20 or 60 of one node for 4 hours each; one that ends is put into the queue again

No trial begins in the last half hour of a job, three times the median of a trial. Node hours are those of the study's
jobs.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.machine import circumstances, publish, table

NODES = 128
SIZES = (1, 2, 4, 8, 16, 32, 64)
WEIGHTS = (8, 6, 5, 4, 3, 2, 1)
STUDY_AT = 5 * 24.0  # hours
N_TRIALS, MEDIAN, SIGMA = 1200, 10 / 60, 0.5
START = 2 / 60  # hours until the first trial of a job begins


@dataclass
class Job:
    """n: nodes. hours: that it takes, asked: at most. ended: called at its end with its beginning and end."""

    n: int
    hours: float
    asked: float
    begun: Callable[[float], float] | None = None  # says how long it takes
    ended: Callable[[float, float], None] | None = None


@dataclass
class Queue:
    """The nodes, what runs on them and what waits."""

    free: int = NODES
    now: float = 0.0
    waiting: list[Job] = field(default_factory=list)
    running: list[tuple[float, int, float, Job]] = field(default_factory=list)  # end, number, latest end, job
    count: int = 0

    def submit(self, job: Job) -> None:
        self.waiting.append(job)

    def schedule(self) -> None:
        """Begin what may begin now."""
        while self.waiting and self.waiting[0].n <= self.free:
            self._begin(self.waiting.pop(0))
        if not self.waiting:
            return
        first, free = self.waiting[0], self.free
        reserved, spare = self.now, 0
        for latest, n in sorted((latest, job.n) for _, _, latest, job in self.running):
            free += n
            if free >= first.n:
                reserved, spare = latest, free - first.n
                break
        for job in list(self.waiting[1:]):
            ends_before = self.now + job.asked <= reserved
            if job.n <= self.free and (ends_before or job.n <= spare):
                spare -= 0 if ends_before else job.n
                self.waiting.remove(job)
                self._begin(job)

    def until(self, time: float) -> None:
        """Let all happen that ends before that time."""
        while self.running and self.running[0][0] <= time:
            self.now, _, _, job = heapq.heappop(self.running)
            self.free += job.n
            if job.ended:
                job.ended(self.now - job.hours, self.now)
            self.schedule()
        self.now = time

    def _begin(self, job: Job) -> None:
        if job.begun:
            job.hours = job.begun(self.now)
        self.free -= job.n
        self.count += 1
        heapq.heappush(self.running, (self.now + job.hours, self.count, self.now + job.asked, job))


class Study:
    """Trials, of which each job takes as many as it can; a trial takes the same time wherever it runs."""

    def __init__(self, queue: Queue, rng: random.Random, n_nodes: int, asked: float):
        self.trials = [MEDIAN * rng.lognormvariate(0.0, SIGMA) for _ in range(N_TRIALS)]
        self.queue, self.n_nodes, self.asked = queue, n_nodes, asked
        self.first = self.last = 0.0
        self.node_hours = 0.0
        self.done: list[float] = []

    def submit(self) -> None:
        self.queue.submit(Job(self.n_nodes, 0.0, self.asked, self._begun, self._ended))

    def _begun(self, now: float) -> float:
        """A job plans at its beginning: other jobs of the study that begin later find less."""
        ends = [now + START] * self.n_nodes
        while self.trials and min(ends) + 3 * MEDIAN <= now + self.asked:
            end = heapq.heappop(ends) + self.trials.pop()
            heapq.heappush(ends, end)
            self.done.append(end)
        hours = min(max(ends) - now, self.asked)
        self.node_hours += self.n_nodes * hours
        return hours

    def _ended(self, begin: float, end: float) -> None:
        if self.trials:
            self.submit()


def simulated(load: float, n_jobs: int, seed: int) -> tuple[float, float, float]:
    """Hours until the first result and until the last, and node hours."""
    rng, queue = random.Random(seed), Queue()
    sample = random.Random(0)
    mean_hours = statistics.fmean(min(24.0, sample.lognormvariate(0.0, 1.2)) for _ in range(20_000))
    mean_nodes = sum(n * w for n, w in zip(SIZES, WEIGHTS, strict=True)) / sum(WEIGHTS)
    rate = load * NODES / (mean_hours * mean_nodes)
    study: Study | None = None
    time = 0.0
    while study is None or study.trials or time < max(study.done):
        time += rng.expovariate(rate)
        if study is None and time >= STUDY_AT:
            queue.until(STUDY_AT)
            study = Study(queue, random.Random(seed), *((20, 16.0) if n_jobs == 1 else (1, 4.0)))
            for _ in range(n_jobs):
                study.submit()
            queue.schedule()
        queue.until(time)
        hours = min(24.0, rng.lognormvariate(0.0, 1.2))
        queue.submit(Job(rng.choices(SIZES, WEIGHTS)[0], hours, min(48.0, hours * rng.uniform(1.0, 3.0))))
        queue.schedule()
    return min(study.done) - STUDY_AT, max(study.done) - STUDY_AT, study.node_hours


def spread(values: list[float]) -> str:
    """The median of sorted values, with those at one tenth from either end."""
    tenth = len(values) // 10
    return f"{statistics.median(values):.1f} ({values[tenth]:.1f} to {values[-1 - tenth]:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description="A study in a queue, by one job and by jobs that join.")
    parser.add_argument("--seeds", type=int, default=25, help="simulations of each row (default %(default)s)")
    parser.add_argument("--results", type=Path, help="file to write the table to")
    options = parser.parse_args()
    rows = []
    for load in (0.7, 0.85, 0.95):
        for n_jobs in (1, 20, 60):
            found = [simulated(load, n_jobs, seed) for seed in range(options.seeds)]
            first, last, hours = (sorted(values) for values in zip(*found, strict=True))
            rows.append(
                {
                    "load of others": f"{load:.0%}",
                    "study": "1 job of 20 nodes" if n_jobs == 1 else f"{n_jobs} jobs of 1 node that join",
                    "hours to the first result": spread(first),
                    "until done": spread(last),
                    "node hours": spread(hours),
                }
            )
    text = f"{circumstances()}; {options.seeds} simulations a row, medians (first to last tenth)\n\n{table(rows)}"
    publish(text, options.results)


if __name__ == "__main__":
    main()
