"""The coordinator, on rank 0: one queue of batches, pulled by the slots of all ranks.

    study --batches--> [ costliest first ] --Run--> slots
    slots --Returned--> journal (fsync) --results--> study --> more batches
    slots --Died-->     the running trial once more by itself, the rest back into the queue; of trials that were
                        evaluated together each half

A failure is the slot's only if the trial succeeds on another one. Until that is known it is pending.

`dispatch.py` decides which slot gets which batch. The cost of a message is that of a heap operation, however many slots
there are.
"""

from __future__ import annotations

import logging
import math
import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from mpitune.engine.dispatch import Dispatch
from mpitune.engine.messages import Died, Drain, Drained, Interrupted, Returned, Stepped, ToCoordinator
from mpitune.engine.progress import Overview, overview
from mpitune.engine.queue import SlotId
from mpitune.engine.slots import IN_A_ROW, Assigned, Resources, SlotState
from mpitune.engine.study import Study
from mpitune.errors import UsageError, how_to_go_on, own_lines
from mpitune.port import Scheduling
from mpitune.storage.journal import Journal
from mpitune.storage.table import kind_of, last_line
from mpitune.trial import Batch, NoRoom, Outcome, Result, Trial, failure_of, halves, is_group

log = logging.getLogger(__name__)

ATTEMPTS = 2
IN_VAIN = 16  # deaths of all slots after which nothing works, if no trial has succeeded: eight trials, each tried twice


class Coordinator:
    """Runs one study to its end."""

    def __init__(self, study: Study, journal: Journal, scheduling: Scheduling, resources: Resources):
        self._study, self._journal, self._scheduling, self._resources = study, journal, scheduling, resources
        self._tell, self._clock = resources.tell, resources.clock
        self.dispatch = Dispatch(scheduling, resources)
        self._fresh: list[tuple[Trial, Result]] = []
        self._durable: deque[Result] = deque()  # those in the journal that the study has not heard of
        # Failures before the first success wait here. If nothing works (a missing library, a broken driver), they are
        # not recorded, and the journal blames no trial.
        self._held: list[tuple[Trial, Result]] = []
        self._succeeded = False
        n_slots = max(1, len(resources.slots))
        self._patience = max(IN_A_ROW, math.ceil(IN_VAIN / n_slots))  # deaths of a slot, while nothing does
        self._kinds_shown: set[str] = set()  # why trials have failed, each of which is said once
        self._refused: UsageError | None = None  # why the study must end
        self.ended_by = ""  # what the experiment has said
        self._stop_at: float | None = None
        self.stopped_by: int | None = None  # signal
        self.first_cause, self._first_raised = "", False  # of the first death, for when no slot is left
        self._raised: Outcome | None = None  # the first where the objective raised, before any trial has succeeded
        self._moved = True  # whether the searches have since workers were told
        for batch in study.start():
            self.dispatch.add(batch)
        self.n_failed = sum(failure_of(result) is not None for result in study.results.values())

    @property
    def finished(self) -> bool:
        """Whether there is nothing more to wait for: all that is to be run here is done, or no slot can go on."""
        no_room = self.dispatch.left_open and not self._study.has_more
        waits = self._study.waits and not (self._is_over or self.dispatch.n_too_long or no_room)
        at_rest = not self.dispatch.slots or (self.dispatch.at_rest and not waits)
        late = self._stop_at is not None and time.monotonic() >= self._stop_at
        return not self._fresh and not self.is_behind and (self._study.n_open == 0 or at_rest or late)

    @property
    def _is_over(self) -> bool:
        """Whether nothing more is to begin, as the experiment has enough or no search waits for anything."""
        return bool(self.ended_by) or self._study.finished

    @property
    def is_behind(self) -> bool:
        """Whether results wait to be passed on, so that there is no time to sleep."""
        return bool(self._durable) or self._study.is_behind

    @property
    def _has_tried_all(self) -> bool:
        """Whether nothing is left to try, while there are slots to try it on and nobody has asked to stop."""
        at_rest = bool(self.dispatch.slots) and self.dispatch.at_rest
        return at_rest and self.stopped_by is None and not self._study.others_work

    @property
    def _nothing_works(self) -> bool:
        """Whether every trial has failed here on every slot, and the study is through, or other jobs have success."""
        if self._succeeded or not self._has_tried_all:
            return False
        if min(state.in_vain for state in self.dispatch.slots.values()) < IN_A_ROW:
            return False
        total = self._scheduling.n_trials
        through = total is not None and self._study.n_asked >= total
        return (through and self._study.sound is None) or self._study.others_succeed

    def why_over(self) -> str:
        """Why the study cannot go on, now that no slot is left."""
        if self._raised is not None and not self._succeeded:
            return why_none(*self._raised)
        place, _, cause = self.first_cause.partition(":\n")
        if self._first_raised:
            return f"the objective raised {own_lines(cause)}\nat {place}; no worker is left"
        return f"no worker is left; the first that ended:\n{self.first_cause}"

    def overview(self) -> Overview:
        """How the study stands, for people."""
        total = self._scheduling.n_trials
        return overview(self._study, self.dispatch, self._clock(), failed=self.n_failed, total=total)

    def handle(self, sender: int, message: ToCoordinator) -> None:
        match message:
            case Returned(slot, results, batches_done):
                self._returned((sender, slot), results, batches_done)
            case Died():
                self._died((sender, message.slot), message)
            case Drained(slot):
                self.dispatch.remove((sender, slot))
            case Stepped(steps):
                for number, step in steps.items():
                    if (state := self.dispatch.slots.get((sender, number))) is not None:
                        state.step = step
            case Interrupted(number):
                self._drain(number)

    def step(self) -> None:
        """Give idle slots work, then store the results that have arrived, and pass them on until there is new work.

        Raises:
            UsageError: a result must end the study. All other results are durable by then.
        """
        if self.stopped_by is None and not self.ended_by:
            for batch in self._study.arrived({trial.key for trial, _ in self._held}):
                self.dispatch.add(batch)
                self._moved = True
        self._assign()
        self.dispatch.leave_open()
        if self._held and self._nothing_works:
            for slot in list(self.dispatch.slots):
                self._give_up(slot)
        elif self._held and (self._succeeded or self._has_tried_all):
            for trial, result in self._held if self._succeeded else ():  # else the end says it
                self._say_once(trial, result.error, "failed")
            self._fresh, self._held = self._held + self._fresh, []
        if self._fresh:
            fresh, self._fresh = self._fresh, []
            self._durable.extend(self._journal.append(fresh))
        batches: list[Batch] = []
        while self.is_behind and not batches:  # new work does not wait while the strategy thinks on
            self._moved = True
            if self._durable:
                result = self._durable.popleft()
                self.n_failed += failure_of(result) is not None
                batches = self._study.record(result)
            else:
                batches = self._study.catch_up()
            for batch in batches:
                self.dispatch.add(batch)
        ended_by = self._study.port.on_results(self._study.news())
        self.ended_by = self.ended_by or ended_by
        if self._is_over:
            self.dispatch.stop()
        self._assign()
        if self._refused is not None:
            raise self._refused

    def _assign(self) -> None:
        """Give idle slots work. With what searches have just asked for goes what workers must know for it."""
        if self._moved:
            self.dispatch.news += self._study.port.news_for_workers()
        self._moved = False
        self.dispatch.assign()

    # -- messages

    def _returned(self, slot: SlotId, results: Sequence[Result | NoRoom], batches_done: int) -> None:
        state = self.dispatch.slots.get(slot)
        if state is None:
            return
        for returned in results:
            assigned = next((assigned for assigned in state.assigned if returned.key in assigned.open), None)
            if assigned is None:
                log.warning(
                    "%s: an answer for trial %s, which is not open there, is ignored", state.place, returned.key
                )
                continue
            trial = assigned.open.pop(returned.key)
            if isinstance(returned, NoRoom):
                if self.dispatch.no_room(slot, trial, assigned.waited, returned.reason):
                    self._settle(trial, assigned, succeeded=False)
                continue
            result = replace(returned, place=state.place, attempt=assigned.attempt)
            if result.raised and not self._succeeded:
                state.in_vain += 1
                self._raised = self._raised or Outcome(trial, result)
            assigned.since = self._clock()
            doubted = result.attempt < ATTEMPTS and result.doubt is not None and self.dispatch.has_elsewhere(slot)
            failed = result.error is not None
            again = doubted or (result.attempt < ATTEMPTS and failed)
            try:
                if result.messages and not again:
                    self._study.port.on_message(result.messages)
                    result = replace(result, messages=b"")
                if not doubted:
                    result = self._study.port.examine(trial, result, self._study.sound) or result
            except UsageError as error:
                self._refused = self._refused or error
                continue
            if again:
                self._try_again(slot, trial, result)
                continue
            assigned.seconds += result.seconds
            if failed:
                state.is_failing = True
                self._failed(trial, result, assigned)
            elif result.attempt == ATTEMPTS and result.doubt is not None:  # here too: that is its answer
                state.is_failing = True
                self._settle(trial, assigned, succeeded=False)
                self._fresh.append((trial, replace(result, doubt=None)))
            else:
                self._done(slot, trial, result, assigned)
        state.step = None
        if self._is_in_vain(state):
            state.failures = IN_A_ROW
        self.dispatch.done(slot, batches_done)
        self._part_with(slot)

    def _died(self, slot: SlotId, death: Died) -> None:
        state = self.dispatch.slots.get(slot)
        if state is None:
            return
        state.life += 1
        state.cause, state.is_failing = death.cause, True
        if not self.first_cause:
            self.first_cause, self._first_raised = f"{state.place}:\n{death.cause}", death.raised
        running = state.assigned[0] if state.assigned and not death.building else None
        group = tuple(running.open.values()) if running is not None and is_group(running.waited.batch) else ()
        # A time limit says nothing against the slot, nor does a group, in which one may be to blame for all.
        state.in_vain += not self._succeeded and not death.hung and len(group) < 2
        if running is not None and len(group) > 1:
            for part in halves(group):
                self.dispatch.add(part, running.attempt, halved=True)
            running.open.clear()
        elif running is not None and running.open:
            key = next(iter(running.open))
            trial = running.open.pop(key)
            result = Result(key, error=death.cause, place=state.place, attempt=running.attempt)
            if result.attempt < ATTEMPTS:
                self._try_again(slot, trial, result)
            else:
                self._failed(trial, result, running)
        else:
            state.failures += 1
        self.dispatch.died(slot)
        if death.lost or self._is_in_vain(state):
            self._give_up(slot)
        else:
            self.dispatch.free(slot)
            self._part_with(slot)

    # -- what becomes of a trial, and of its slot

    def _try_again(self, slot: SlotId, trial: Trial, result: Result) -> None:
        """Try a trial once more, by itself and elsewhere if possible. Until that has ended its failure is pending."""
        state = self.dispatch.slots[slot]
        state.pending.add(trial.key)
        state.cause, state.is_failing = result.error or result.doubt or "", True
        if result.failed:
            self._say_once(trial, state.cause, "failed and is tried once more")
        else:
            log.info("trial %s is tried on another node: %s", trial.key, last_line(state.cause))
        self.dispatch.add((trial,), result.attempt + 1, avoid=slot)

    def _say_once(self, trial: Trial, error: str | None, what: str) -> None:
        """Tell the first failure of its kind; the end has their number."""
        kind = kind_of(trial.params, error)
        level = logging.DEBUG if kind in self._kinds_shown else logging.WARNING
        self._kinds_shown.add(kind)
        log.log(level, "trial %s %s: %s", trial.key, what, last_line(error))

    def _done(self, slot: SlotId, trial: Trial, result: Result, assigned: Assigned) -> None:
        """A trial has succeeded: what failed on this slot before is forgiven."""
        state = self.dispatch.slots[slot]
        state.failures, state.has_succeeded, state.is_failing = 0, True, False
        state.pending.clear()
        self._succeeded, self._study.sound = True, result
        self._fresh.append((trial, result if result.doubt is None else replace(result, doubt=None)))
        self._settle(trial, assigned, succeeded=True)

    def _failed(self, trial: Trial, result: Result, assigned: Assigned) -> None:
        """A trial has failed for the last time, and no slot is to blame."""
        self._settle(trial, assigned, succeeded=False)
        self._held.append((trial, replace(result, values={}, arrays={})))

    def _settle(self, trial: Trial, assigned: Assigned, *, succeeded: bool) -> None:
        """The retry of a trial has ended: its first failure is pending no longer, and its slot's if it `succeeded`."""
        first = assigned.waited.avoid
        state = self.dispatch.slots.get(first) if first is not None else None
        if first is None or state is None or trial.key not in state.pending:
            return
        state.pending.remove(trial.key)
        if succeeded:
            state.failures += 1
            self._part_with(first)

    def _part_with(self, slot: SlotId) -> None:
        """Give a slot up if it is bad, unless it is at work, as its agent cannot take back what it has given it."""
        state = self.dispatch.slots.get(slot)
        if state is not None and state.is_bad and not state.assigned:
            self._give_up(slot)

    def _is_in_vain(self, state: SlotState) -> bool:
        return not self._succeeded and state.in_vain >= self._patience

    def _give_up(self, slot: SlotId) -> None:
        state = self.dispatch.slots[slot]
        level = logging.ERROR if self._succeeded or state.life else logging.DEBUG  # else the end of all says it
        log.log(level, "%s: given up after failures in a row, the last one: %s", state.place, last_line(state.cause))
        self.dispatch.remove(slot)

    def _drain(self, number: int) -> None:
        grace = self._resources.grace
        if self.stopped_by is not None:
            return
        name = signal.Signals(number).name
        log.warning("%s: running trials may finish within %g s; %s", name, grace, how_to_go_on())
        # Now, as Open MPI's mpirun kills its ranks a quarter of a second after SIGTERM. A later end takes its place.
        seconds = round(time.monotonic() - self._resources.started, 3)
        self._journal.note(end={"complete": False, "seconds": seconds, "draining": True})
        self.stopped_by = number
        self._stop_at = time.monotonic() + grace
        self.dispatch.stop()
        for rank in sorted({rank for rank, _ in self.dispatch.slots}):
            self._tell(rank, Drain())


def why_none(trial: Trial, result: Result) -> str:
    """Why no trial has succeeded, by one that has failed, as the author of the objective needs to know it."""
    params = ", ".join(f"{name} = {value!r}" for name, value in trial.params.items())
    where = f"trial {trial.key} at {result.place}" + (f" with {params}" if params else "")
    if not result.raised:
        return f"no trial has succeeded: {where} failed: {last_line(result.error)}"
    error, *calls = own_lines(result.error or "").split("\n")
    return "\n".join([f"the objective raised {error}", *calls, f"in {where}; no trial has succeeded"])
