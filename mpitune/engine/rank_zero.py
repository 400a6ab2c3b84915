"""Rank 0's part of a study once the journal and the slots stand: run it to its end, and say what came of it."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from mpitune.earlier.studies import KnownBefore, code_note
from mpitune.engine.agent import Agent
from mpitune.engine.coordinator import Coordinator
from mpitune.engine.inline_agent import InlineAgent
from mpitune.engine.joined import GONE_AFTER, JoinedStudy
from mpitune.engine.loop import loop
from mpitune.engine.preflight import Node
from mpitune.engine.progress import Progress, StatusFile
from mpitune.engine.slots import Resources, slots_of
from mpitune.engine.study import Study
from mpitune.errors import Exit, duration, how_to_go_on, is_kept
from mpitune.experiment import Data, Experiment
from mpitune.options import RunOptions
from mpitune.port import Scheduling
from mpitune.ranks.launch import end_of_job
from mpitune.ranks.transport import Transport
from mpitune.storage.history import History, counted, read_study
from mpitune.storage.journal import Journal, written_into
from mpitune.storage.provenance import versions
from mpitune.storage.table import kind_of, last_line
from mpitune.track.tracker import Tracker, close
from mpitune.trial import Outcome, Result, failure_of, failures

log = logging.getLogger(__name__)

Finish = Callable[[Path, History, Experiment, Data], None]  # what the caller makes of a study that is done


@dataclass(frozen=True)
class Ended:
    """How a study ended."""

    status: Exit
    outcomes: Sequence[Outcome] = ()  # on rank 0, of all known trials in the order asked
    cause: str = ""  # why it could not go on
    stopped_by: int | None = None  # signal


@dataclass(frozen=True)
class RankPart:
    """What one rank has of the study `name` from its start on. `started` is by the monotonic clock."""

    experiment: Experiment
    name: str
    options: RunOptions
    transport: Transport
    started: float

    @cached_property
    def scheduling(self) -> Scheduling:
        return self.experiment.scheduling()

    @property
    def folder(self) -> Path:
        """Of the study; that of the journal lies in it where jobs join."""
        assert self.options.results is not None
        return self.options.results


@dataclass(frozen=True)
class RankZero:
    """A study as rank 0 leads it."""

    part: RankPart
    journal: Journal
    data: Data
    nodes: Sequence[Node]
    trackers: list[Tracker] = field(default_factory=list)  # once the study runs

    def run(self, agent: Agent | InlineAgent, finish: Finish | None) -> Ended:
        """Run the study, with the agent of this rank; without `finish` it makes no tables, figures and page."""
        status, study = StatusFile(self.journal.folder), self._study()
        try:
            return self._run(study, agent, status, finish)
        finally:
            status.remove()
            close(self.trackers)
            if isinstance(study, JoinedStudy):
                study.close()

    def _run(self, study: Study, agent: Agent | InlineAgent, status: StatusFile, finish: Finish | None) -> Ended:
        journal, folder = self.journal, self.part.folder
        coordinator = self._coordinator(study)
        progress = Progress(self.part.options.quiet, status)
        self.trackers.extend(Tracker(track, folder) for track in self.part.options.track)
        loop(self.part.transport, agent, coordinator, progress)
        is_cut = coordinator.ended_by and any(conclusion is False for conclusion in study.conclusions())
        complete = study.finished and not is_cut
        if not complete and not (coordinator.ended_by and coordinator.stopped_by is None):
            return self._unfinished(study, coordinator)
        outcomes = study.outcomes()
        journal.verify()
        if complete and (beside := len(journal.history.results) - study.n_done) > 0:  # of fewer trials, for instance
            log.warning("%d more results are known, of trials that are not asked for now: they are left out", beside)
        failed = failures(outcomes)
        ending = self._all_of(study, outcomes) if complete else {"complete": False, "stopped": coordinator.ended_by}
        if finish:
            status.write("tables and figures are made", coordinator.overview())
            with written_into(folder):
                self.part.experiment.report(outcomes, study.conclusions(), self.data, folder)
        seconds = self._note_end(**ending, failed=len(failed))
        if finish:
            stream = sys.stderr if self.part.scheduling.prints_plainly else sys.stdout  # which is the trials' own
            print(f"time taken: {duration(seconds)}", file=stream)
            finish(folder, read_study(folder), self.part.experiment, self.data)
            if is_kept():
                print(f"results: {folder}", file=stream)
        kinds: dict[str, list[Result]] = {}
        for trial, result in (outcome for outcome in failed if outcome.result.failed):  # the door has said the others
            kinds.setdefault(kind_of(trial.params, result.error), []).append(result)
        for first, *others in kinds.values():
            more = f" and {len(others)} more" if others else ""
            log.error("failed: trial %s at %s%s: %s", first.key, first.place, more, last_line(first.error))
        return Ended(Exit.FAILED_TRIALS if failed and complete else Exit.DONE, outcomes)

    def _all_of(self, study: Study, outcomes: Sequence[Outcome]) -> dict[str, object]:
        """What makes a study complete, for readers of all journals: the results there, of trials asked for or not."""
        history = self.journal.history
        keys = {*study.results, *history.trials}
        n_alone = history.n_alone + (not self.part.options.join)
        last = {"last": max(trial.segment.number or 0 for trial, _ in outcomes)} if outcomes else {}
        left = history.results.keys() - study.asked if self.part.experiment.kind == "experiment" else ()
        beside = {"beside": sorted(left)} if left else {}
        return {"complete": True, **last, **beside, **counted(n_alone, keys - (history.lost - study.results.keys()))}

    def _note_end(self, **facts: object) -> float:
        """Note in the journal how this run ends. Returns the seconds it took."""
        seconds = time.monotonic() - self.part.started
        self.journal.note(end={**facts, "seconds": round(seconds, 3)})
        return seconds

    @cached_property
    def _before(self) -> KnownBefore | None:
        """Results of earlier studies, where the journal's header names any."""
        there = self.journal.history.header.get("before")
        return KnownBefore(self.journal, self.part.folder, self.part.experiment) if there else None

    def _study(self) -> Study:
        history, retry, before = self.journal.history, self.part.options.retry_failed, self._before
        if self.part.options.join:
            return JoinedStudy(
                self.part.experiment.searches(), history, folder=self.part.folder, job=self.journal.folder.name,
                timeout=GONE_AFTER * self.part.options.heartbeat_timeout,
                n_slots=sum(len(node.places) for node in self.nodes),
                cost=self.part.scheduling.cost, before=before, port=self.part.experiment,
            )  # fmt: skip
        known = history.results
        if known and all(result.failed for result in known.values()):  # nothing has worked, so no trial is to blame
            retry = True
        for key in [key for key, result in known.items() if failure_of(result) is not None] if retry else ():
            del known[key]
        searches = self.part.experiment.searches()
        return Study(searches, history.trials, known, renew=retry, before=before, port=self.part.experiment)

    def _coordinator(self, study: Study) -> Coordinator:
        """Make the coordinator of all slots, and say in the journal and the log that a run begins."""
        scheduling, options, end = self.part.scheduling, self.part.options, end_of_job()
        resources = Resources(
            slots_of([node.places for node in self.nodes]), self.part.transport.send, grace=options.grace,
            end=None if end is None else end - options.walltime_margin, started=self.part.started,
        )  # fmt: skip
        coordinator, slots = Coordinator(study, self.journal, scheduling, resources), resources.slots
        reporting, history = self.part.experiment.reporting(), self.journal.history
        code = code_note(self.part.experiment, options, history, self._before.runs if self._before else [])
        self.journal.note(run={
            "command": sys.argv, "versions": versions(), "time": time.strftime("%FT%T%z"),
            "began": round(time.time() - (time.monotonic() - self.part.started), 3),
            "threads": options.threads, "slots": [str(place) for place in slots.values()],
            "n_trials": scheduling.n_trials, **code,
            **({"folds": folds} if (folds := dict(reporting.folds)) else {}),
            **({"goal": reporting.goal} if reporting.goal != (history.header.get("goal") or "") else {}),
        })  # fmt: skip
        size, seen = self.part.transport.size, coordinator.overview()
        log.info(
            "%d slot%s on %d node%s; %d of %d trials known", len(slots), "s" * (len(slots) != 1), size,
            "s" * (size != 1), seen.done, seen.total,
        )  # fmt: skip
        return coordinator

    def _unfinished(self, study: Study, coordinator: Coordinator) -> Ended:
        """Say why trials are open, and how to go on."""
        outcomes = study.outcomes()
        self._note_end(complete=False)
        if left_open := coordinator.dispatch.left_open:
            key, reason = next(iter(left_open.items()))
            log.error("%d trials were not run, such as %s: %s", len(left_open), key, reason)
        if coordinator.dispatch.n_too_long:
            log.warning("%d batches were not begun, as the job's time limit is near", coordinator.dispatch.n_too_long)
        elif coordinator.stopped_by is None and not left_open:
            return Ended(Exit.ERROR, outcomes, coordinator.why_over())
        seen = coordinator.overview()
        more_room = left_open and coordinator.stopped_by is None
        how = "the same command goes on where there is more room" if more_room else how_to_go_on()
        log.warning("stopped with %d of %d trials done: %s", seen.done, seen.total, how)
        return Ended(Exit.STOPPED, outcomes, "the job's time limit is near", coordinator.stopped_by)
