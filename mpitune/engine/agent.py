r"""The agent of a rank: keeps the worker processes of its slots, carries batches in and results out.

    coordinator --Run--> agent --batches--> worker of slot 0
                              \--batches--> worker of slot 1 ...
    coordinator <--Returned, Died-- agent <--results, output, exit-- workers

It decides nothing about trials. A worker process is started when a slot has work and no process, so
a replacement is started in the same way as the first. Everything it waits for (results, output,
deaths, time-outs) is waited for in one place, `step`, which the loop calls.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from selectors import EVENT_READ, DefaultSelector

from mpitune.devices.choose import Device, joined
from mpitune.engine import worker
from mpitune.engine.messages import (
    AT_WORK,
    STEP_SECONDS,
    Died,
    Drain,
    Drained,
    Lend,
    Returned,
    Run,
    Stepped,
    Stop,
    ToAgent,
    ToCoordinator,
    WorkerProgress,
)
from mpitune.engine.printed import MARK, TrialOutput
from mpitune.engine.worker_process import WorkerProcess
from mpitune.errors import StudyError
from mpitune.options import RunOptions
from mpitune.processes.process import start_resource_tracker
from mpitune.trial import NoRoom, Place, Result

log = logging.getLogger(__name__)

BUILD_SECONDS = 900.0  # an objective that is not built by then hangs
REAP_SECONDS = 30.0  # a killed worker ends within that time, unless its GPU hangs: then it may stay in the kernel
CLOSED_SECONDS = 5.0  # a worker whose pipe is closed has ended by then, with all that it has started
LOOK_SECONDS = 0.25  # between two looks at clocks, and at workers whose end nothing else tells
LONGEST_STEP = 1.0  # seconds; in a longer step this rank, and perhaps its workers, slept: no trial is blamed for it


@dataclass
class Slot:
    """A device, the worker process on it, if there is one, and the batches that it has not been sent."""

    number: int
    device: Device
    place: Place
    waiting: deque[Run] = field(default_factory=deque)  # not yet sent
    process: WorkerProcess | None = None
    draining: bool = False
    life: int = 0  # deaths that the coordinator was told of


class Agent:
    """Slots of one rank.

    Args:
        tell: delivers a message to the coordinator.
        setup: what every worker is told, without its device.
        places: of the slots, for the log.
        options: of the study; `batch`, `threads`, `trial_timeout` and `worker_folders` count here.
        preload: modules that a server imports, from which workers are forked; none: they are spawned.
        plainly: whether what trials print is printed here as it is, not logged with the trial's key.
    """

    def __init__(
        self,
        tell: Callable[[ToCoordinator], None],
        setup: worker.Setup,
        devices: Sequence[Device],
        places: Sequence[Place],
        options: RunOptions,
        *,
        preload: Sequence[str] = (),
        plainly: bool = False,
    ):
        self._tell, self._setup, self._options = tell, setup, options
        self._folders = options.worker_folders and options.worker_folders.absolute()
        self._preload = tuple(preload)
        start_resource_tracker()
        self.slots = [
            Slot(number, device, place) for number, (device, place) in enumerate(zip(devices, places, strict=True))
        ]
        self._warned: set[str] = set()
        self._shown = TrialOutput(plainly)
        self._reported = 0.0  # when the coordinator was last told how far workers are
        self._looked = 0.0  # when it last looked at all workers
        self._selector = DefaultSelector()  # of each worker's results, output and end
        self._told: list[bytes] = []
        self.stopped = False
        self._stepped, self._time = time.monotonic(), 0.0  # seconds, without those that this rank was suspended for

    def handle(self, message: ToAgent) -> None:
        match message:
            case Run():
                self._told += message.news
                slot = self.slots[message.slot]
                if message.life == slot.life and not slot.draining:
                    slot.waiting.append(message)
                    self._feed(slot)
            case Lend(number):
                process = self.slots[number].process
                if process is not None and not process.sent:
                    process.end()
            case Drain():
                for slot in self.slots:
                    slot.waiting.clear()
                    slot.draining = True
                    if slot.process is None or not slot.process.sent:
                        self._drained(slot)
            case Stop():
                self.close()
                self.stopped = True

    def step(self, seconds: float) -> None:
        """Sleep so long at most, until a worker sends, prints or ends; take that in, and look at the clocks."""
        ready = self._selector.select(seconds)
        stepped, before = time.monotonic(), self._stepped
        self._stepped, self._time = stepped, self._time + min(stepped - before, LONGEST_STEP)
        for key, _ in ready:
            slot, process = key.data
            if slot.process is not process:
                continue  # its end was taken in just now
            if key.fileobj is process.output:
                self._show_output(slot, process)
            else:
                self._read_results(slot, process)
        if self._time - self._looked >= LOOK_SECONDS:
            self._looked = self._time
            self._look(self._time)

    def _look(self, now: float) -> None:
        """Look for workers that have ended or hang, and tell how far they are."""
        for slot in self.slots:
            process = slot.process
            if process is None:
                continue
            if not process.handle.is_alive():
                self._read_results(slot, process)
            elif process.killed is not None:
                if now - process.killed > REAP_SECONDS:
                    self._died(slot, process)
            elif process.silent is not None:
                if now - process.silent > CLOSED_SECONDS:
                    process.error = "it closed the pipe to its agent, so the worker was killed"
                    self._kill(process)
            elif cause := self._hangs(process, now):
                process.error, process.hung = f"hung: {cause}, so the worker was killed", True
                self._kill(process)
        if now - self._reported >= STEP_SECONDS:
            self._tell_news(now)

    def close(self) -> None:
        """End all workers now."""
        living = [slot for slot in self.slots if slot.process is not None]
        for slot in living:  # all at once: what they have started may take a moment to end
            if slot.process is not None:
                slot.process.kill()
        for slot in living:
            self._reap(slot)
        self._shown.say_rest()

    # -- towards the workers

    def _feed(self, slot: Slot) -> None:
        """Send what the worker's socket can hold; start the worker if there is none."""
        if slot.waiting and slot.process is None:
            slot.process = self._start(slot, slot.waiting[0])
        process = slot.process
        while slot.waiting and process is not None and not process.ending:
            if self._is_worn_out(process, slot.waiting[0]) or process.device != self._device_of(slot, slot.waiting[0]):
                process.end()
                return
            if not process.send(slot.waiting[0], self._time, self._told):
                return
            slot.waiting.popleft()

    def _is_worn_out(self, process: WorkerProcess, run: Run) -> bool:
        """Whether a fresh worker shall evaluate this batch."""
        if not self._options.batch:
            return False
        sets = process.sets | {frozenset(trial.params.items()) for trial in run.batch}
        if process.sets and len(sets) > max(len(process.sets), self._options.batch):
            return True
        process.sets = sets
        return False

    def _device_of(self, slot: Slot, run: Run) -> Device:
        others = [self.slots[number].device for number in run.beside]
        return joined([slot.device, *others]) if others else slot.device

    def _start(self, slot: Slot, run: Run) -> WorkerProcess:
        """A worker for the next batch of a slot."""
        device, n_slots = self._device_of(slot, run), 1 + len(run.beside)
        threads = self._options.threads * (n_slots if device.kind == "cpu" else 1)
        place = slot.place
        folder = self._folders / f"{place.host}-{place.rank}-{place.slot}" if self._folders else None
        setup = replace(self._setup, device=slot.device.kind, folder=folder)
        try:
            process = WorkerProcess.start(
                setup, device, threads=threads, n_workers=len(self.slots) // n_slots, preload=self._preload
            )
        except OSError as error:
            why = f"{error.strerror} (ulimit -u, ulimit -n): give fewer workers"
            raise StudyError(f"{place.host} can start no further worker: {why}") from None
        for thing in (process.results, process.output, process.handle.sentinel):
            self._selector.register(thing, EVENT_READ, (slot, process))
        return process

    # -- from the workers

    def _read_results(self, slot: Slot, process: WorkerProcess) -> None:
        """Act on all messages that have arrived, and then on the worker's death."""
        results: list[Result | NoRoom] = []
        batches_done = 0
        for message in process.messages():
            if isinstance(message, worker.Logged):
                self._log(slot, process, message)
                continue
            if isinstance(message, WorkerProgress):  # which is no result, so the time-out goes on
                process.news = message
                continue
            process.clock = self._time
            match message:
                case worker.Forked(pid):
                    process.begun(pid)
                    log.debug("%s: worker %s started", slot.place, pid)
                case worker.Built():
                    process.built, process.news = True, AT_WORK
                case worker.ObjectiveRaised(traceback):
                    process.error, process.raised = traceback, True
                case _:
                    results.append(worker.unpacked(message, process.peak.read()))
                    process.news = None
                    batches_done += process.one_done()
        if results:
            self._tell(Returned(slot.number, tuple(results), batches_done))
        if process.ended and not process.handle.is_alive():
            self._died(slot, process)
        elif process.ended:  # its keeper ends what it has started
            process.silent = self._time if process.silent is None else process.silent
            self._hear_no_more(process)
        elif slot.draining and results:
            self._drained(slot)
        else:
            self._feed(slot)

    def _tell_news(self, now: float) -> None:
        working = [(slot.number, slot.process) for slot in self.slots if slot.process is not None]
        if steps := {number: process.news for number, process in working if process.news is not None}:
            self._reported = now
            self._tell(Stepped(steps))
            for _, process in working:
                process.news = None

    def _died(self, slot: Slot, process: WorkerProcess) -> None:
        self._show_output(slot, process)  # first: it is part of the cause
        cause = process.cause()
        if lost := not self._reap(slot, 0.0):
            cause += f"\n{cause.splitlines()[-1]}; it did not end within {REAP_SECONDS:g} s, so its slot is given up"
        if process.dismissed and not lost:
            self._tell(Drained(slot.number))
            return
        if process.ending and not process.sent:
            log.debug("%s: worker replaced after %d batches", slot.place, process.n_sent)
            self._feed(slot)
            return
        what = f"the objective raised, so its worker ends: {cause.splitlines()[-1]}"
        if not process.raised:
            log.warning("%s: worker died: %s", slot.place, cause.splitlines()[-1])
        else:
            log.log(logging.DEBUG if what in self._warned else logging.WARNING, "%s: %s", slot.place, what)
            self._warned.add(what)
        slot.waiting.clear()
        if slot.draining:
            self._tell(Drained(slot.number))
        else:
            slot.life += 1
            hung, raised = process.hung and process.built, process.raised
            self._tell(Died(slot.number, cause, building=not process.built, lost=lost, hung=hung, raised=raised))

    def _drained(self, slot: Slot) -> None:
        if slot.process is None:
            self._tell(Drained(slot.number))
        elif slot.process.killed is None:
            slot.process.dismissed = True
            self._kill(slot.process)

    def _kill(self, process: WorkerProcess) -> None:
        """Begin to end a worker. The loop goes on meanwhile: what the worker has started may take a moment."""
        process.killed = self._time
        process.kill()
        self._hear_no_more(process)

    def _hear_no_more(self, process: WorkerProcess) -> None:
        """Wait for a worker's end alone: a pipe whose other end is closed is always readable."""
        for pipe in (process.results, process.output):
            if pipe in self._selector.get_map():
                self._selector.unregister(pipe)

    def _reap(self, slot: Slot, seconds: float = REAP_SECONDS) -> bool:
        """Forget the worker of a slot, and end it. Returns whether it ended within that time."""
        process, slot.process = slot.process, None
        assert process is not None
        self._show_output(slot, process)
        if rest := process.partial.partition(MARK)[0]:
            self._shown.show(process.printing, slot.place, rest)
        self._selector.unregister(process.handle.sentinel)
        self._hear_no_more(process)
        if not (ended := process.reap(seconds)):
            log.error("%s: process %s cannot be killed: see dmesg for errors of its GPU", slot.place, process.pid)
        return ended

    def _show_output(self, slot: Slot, process: WorkerProcess) -> None:
        for key, line in process.read_output():
            self._shown.show(key, slot.place, line)

    def _log(self, slot: Slot, process: WorkerProcess, logged: worker.Logged) -> None:
        """Show a warning once for all workers of the rank. --verbose shows all other lines."""
        process.output_tail.append(logged.text[:1000])
        shown = logged.level >= logging.WARNING and logged.text not in self._warned
        if shown:
            self._warned.add(logged.text)
        self._shown.show(process.running, slot.place, logged.text, logged.level if shown else logging.DEBUG)

    def _hangs(self, process: WorkerProcess, now: float) -> str:
        """Why the worker counts as hung; "" if it does not."""
        if not process.sent:
            return ""
        limit = self._options.trial_timeout if process.built else BUILD_SECONDS
        return "" if limit is None or now - process.clock <= limit else f"no result within {limit:g} s"
