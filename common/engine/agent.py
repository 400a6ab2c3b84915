r"""The agent of a rank: keeps the worker processes of its slots, carries batches in and results out.

    coordinator --Run--> agent --pipe--> worker of slot 0
                                \--pipe--> worker of slot 1 ...
    coordinator <--Returned, Died-- agent <--pipe, output, exit-- workers

It decides nothing about trials. A worker process is started when a slot has work and no process, so
a replacement is started in the same way as the first. Everything it waits for (results, output,
deaths, time-outs) is waited for in one place, `waitables`, by the loop that drives it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

from common.cluster.devices import Device, environment, joined
from common.cluster.gpu_watch import GpuWatch
from common.cluster.process import start_resource_tracker, without_main
from common.engine import worker
from common.engine.messages import (
    STARTING,
    STEP_SECONDS,
    WAITING,
    WORKING,
    Died,
    Drain,
    Drained,
    Headway,
    Lend,
    Returned,
    Run,
    Stepped,
    Stop,
    ToAgent,
    ToCoordinator,
)
from common.trial import Batch, NoRoom, Place, Result

log = logging.getLogger(__name__)

PIPE_BYTES = 1 << 16  # batches waiting inside a worker's pipe: less than any system's buffer, so no send blocks
BUILD_SECONDS = 900.0  # an objective that is not built by then hangs
REAP_SECONDS = 30.0  # for a worker that was killed to end: one whose GPU hangs may stay in the kernel for ever
LONGEST_STEP = 1.0  # seconds; what is longer was a suspension, its workers' too perhaps, or a stall: no trial is blamed
OUTPUT_TAIL = 20  # lines of output kept of each worker
OUTPUT_BYTES = 1 << 16  # output read per look: a flood must not starve the results


@dataclass
class Process:
    """A living worker, its wires, and what it is doing."""

    handle: Any
    pipe: Connection
    output: Connection
    started: float
    device: Device  # of its slot, or several where a gang has more
    sent: deque[tuple[Batch, int]] = field(default_factory=deque)  # batches it has, with their pickled sizes
    n_sent: int = 0  # batches since its start
    n_open: int = 0  # trials of the batch it works on that have not returned
    built: bool = False
    clock: float = 0.0  # since when it has been working on the current trial
    waits: bool = False  # for its device's memory, which others have
    output_tail: deque[str] = field(default_factory=lambda: deque(maxlen=OUTPUT_TAIL))
    partial: str = ""
    error: str = ""
    ending: bool = False  # told to end after its last batch, to be replaced by a fresh one
    killed: float | None = None  # when, for hanging
    news: Headway | None = Headway(STARTING)  # how far it is, until the coordinator is told


@dataclass
class Slot:
    """A device, the worker process on it, if there is one, and the batches that it has not been sent."""

    number: int
    device: Device
    place: Place
    waiting: deque[Run] = field(default_factory=deque)  # not yet sent
    process: Process | None = None
    draining: bool = False
    life: int = 0  # deaths that the coordinator was told of


class Agent:
    """Slots of one rank.

    Args:
        tell: delivers a message to the coordinator.
        setup: what every worker is told; the device is filled in for each slot.
        places: of the slots, for the log.
        threads: numerical threads per worker.
        trial_timeout: seconds that a trial may take.
        recycle: batches after which a worker is replaced by a fresh one; 0 for never.
    """

    def __init__(
        self,
        tell: Callable[[ToCoordinator], None],
        setup: worker.Setup,
        devices: Sequence[Device],
        places: Sequence[Place],
        *,
        threads: int = 1,
        trial_timeout: float | None = None,
        recycle: int = 0,
    ):
        self._tell, self._setup, self._threads = tell, setup, threads
        self._trial_timeout, self._recycle = trial_timeout, recycle
        self._context = multiprocessing.get_context("spawn")
        start_resource_tracker()
        self.slots = [
            Slot(number, device, place) for number, (device, place) in enumerate(zip(devices, places, strict=True))
        ]
        gpus = [entry for device in devices if device.kind == "cuda" for entry in device.visible.split(",")]
        self._gpus = GpuWatch(gpus) if gpus else None
        self._warned: set[str] = set()
        self._told = 0.0  # when the coordinator was last told how far workers are
        self.stopped = False
        self._stepped, self._time = time.monotonic(), 0.0  # seconds, without those that this rank was suspended for

    def handle(self, message: ToAgent) -> None:
        match message:
            case Run():
                slot = self.slots[message.slot]
                if message.life == slot.life:
                    slot.waiting.append(message)
                    self._feed(slot)
            case Lend(number):
                process = self.slots[number].process
                if process is not None and not process.sent:
                    self._end(process)
            case Drain():
                for slot in self.slots:
                    slot.waiting.clear()
                    slot.draining = True
                    if slot.process is None or not slot.process.sent:
                        self._drained(slot)
            case Stop():
                self.close()
                self.stopped = True

    def waitables(self) -> list[Any]:
        """Objects to wait for: each worker's results, its output, its end."""
        things: list[Any] = []
        for slot in self.slots:
            if slot.process is not None:
                things += (slot.process.pipe, slot.process.output, slot.process.handle.sentinel)
        return things

    def step(self, ready: list[Any]) -> None:
        """Take in what is ready and look at the clocks."""
        happened = set(map(id, ready))
        stepped, before = time.monotonic(), self._stepped
        self._stepped, self._time = stepped, self._time + min(stepped - before, LONGEST_STEP)
        now = self._time
        if self._gpus is not None:
            self._gpus.hear(now)
        for slot in self.slots:
            process = slot.process
            if process is None:
                continue
            if id(process.output) in happened:
                self._read_output(slot, process)
            if id(process.pipe) in happened or not process.handle.is_alive():
                self._read_results(slot, process)
            elif process.killed is not None:
                if now - process.killed > REAP_SECONDS:
                    self._died(slot, process)
            elif cause := self._hangs(slot, process, now):
                process.error = f"hung: {cause}, so the worker was killed"
                process.killed = now
                process.handle.kill()
        if now - self._told >= STEP_SECONDS:
            self._tell_news(now)

    def close(self) -> None:
        """End all workers now."""
        for slot in self.slots:
            if slot.process is not None:
                slot.process.handle.kill()
                self._reap(slot)
        if self._gpus is not None:
            self._gpus.close()
            self._gpus = None

    # -- towards the workers

    def _feed(self, slot: Slot) -> None:
        """Send what the worker's pipe can hold; start the worker if there is none."""
        if slot.waiting and slot.process is None:
            slot.process = self._start(slot, slot.waiting[0])
        process = slot.process
        while slot.waiting and process is not None and not process.ending:
            run = slot.waiting[0]
            worn_out = self._recycle and process.n_sent >= self._recycle
            if worn_out or process.device != self._device_of(slot, run):
                self._end(process)
                return
            packet = pickle.dumps((run.batch, run.hosts), protocol=pickle.HIGHEST_PROTOCOL)
            if process.sent and len(packet) + sum(size + 1024 for _, size in process.sent) > PIPE_BYTES:
                return
            slot.waiting.popleft()
            if not process.sent:
                process.n_open, process.clock = len(run.batch), self._time
            process.sent.append((run.batch, len(packet)))
            process.n_sent += 1
            try:
                process.pipe.send_bytes(packet)
            except OSError:
                return  # it has died; its end is in the waitables

    def _device_of(self, slot: Slot, run: Run) -> Device:
        return joined([slot.device, *(self.slots[number].device for number in run.beside)])

    def _end(self, process: Process) -> None:
        """Let the worker end after what it has."""
        if not process.ending:
            process.ending = True
            with suppress(OSError):  # it has died; its end is in the waitables
                process.pipe.send(None)

    def _start(self, slot: Slot, run: Run) -> Process:
        """A worker for what the slot has next."""
        device, n_slots = self._device_of(slot, run), 1 + len(run.beside)
        threads = self._threads * (n_slots if device.kind == "cpu" else 1)
        pipe, worker_pipe = self._context.Pipe()
        output, worker_output = self._context.Pipe(duplex=False)
        os.set_blocking(output.fileno(), False)
        setup = replace(self._setup, device=slot.device.kind)
        handle = self._context.Process(target=worker.main, args=(setup, worker_pipe, worker_output))
        with environment(device, threads, len(self.slots) // n_slots), without_main():
            handle.start()
        worker_pipe.close()
        worker_output.close()
        log.debug("%s: worker %s started", slot.place, handle.pid)
        return Process(handle, pipe, output, self._time, device)

    # -- from the workers

    def _read_results(self, slot: Slot, process: Process) -> None:
        """All messages that have arrived, and the worker's death after the last of them."""
        results: list[Result | NoRoom] = []
        batches_done = 0
        dead = not process.handle.is_alive()  # asked first: what it sent before is then in the pipe
        while True:
            try:
                if not process.pipe.poll():
                    break
                message = process.pipe.recv()
            except (EOFError, OSError):
                dead = True
                break
            if isinstance(message, worker.Logged):
                self._log(slot, process, message)
                continue
            if isinstance(message, Headway):  # which is no result, so the time-out goes on
                process.news = message
                continue
            process.clock = self._time
            match message:
                case worker.Built():
                    process.built, process.news = True, WORKING
                case worker.WaitsForMemory(waits):
                    process.waits, process.news = waits, Headway(WAITING) if waits else WORKING
                case worker.Error(traceback):
                    process.error = traceback
                case None:
                    process.sent.popleft()
                    batches_done += 1
                    process.n_open = len(process.sent[0][0]) if process.sent else 0
                case _:
                    results.append(worker.unpacked(message) if isinstance(message, tuple) else message)
                    process.news = None
                    process.n_open -= 1
                    if slot.draining:
                        break
        if results or batches_done:
            self._tell(Returned(slot.number, tuple(results), batches_done))
        if slot.draining and (results or batches_done):
            self._drained(slot)
        elif dead:
            self._died(slot, process)
        else:
            self._feed(slot)

    def _tell_news(self, now: float) -> None:
        working = [(slot.number, slot.process) for slot in self.slots if slot.process is not None]
        if steps := {number: process.news for number, process in working if process.news is not None}:
            self._told = now
            self._tell(Stepped(steps))
            for _, process in working:
                process.news = None

    def _died(self, slot: Slot, process: Process) -> None:
        # The pipe of a process that was killed closes a moment before it has ended.
        left = REAP_SECONDS if process.killed is None else max(0.0, process.killed + REAP_SECONDS - self._time)
        process.handle.join(min(5.0, left))
        self._read_output(slot, process)
        cause = _cause(process)
        if lost := not self._reap(slot, left):
            cause += f"\n{cause.splitlines()[-1]}; it did not end within {REAP_SECONDS:g} s, so its slot is given up"
        if process.ending and not process.sent:
            log.debug("%s: worker replaced after %d batches", slot.place, process.n_sent)
            self._feed(slot)
            return
        log.warning("%s: worker died: %s", slot.place, cause.splitlines()[-1])
        slot.waiting.clear()
        if slot.draining:
            self._tell(Drained(slot.number))
        else:
            slot.life += 1
            worked = self._time - process.clock if process.built and process.sent else 0.0
            self._tell(Died(slot.number, cause, building=not process.built, lost=lost, seconds=worked))

    def _drained(self, slot: Slot) -> None:
        if slot.process is not None:
            slot.process.handle.kill()
            self._reap(slot)
        self._tell(Drained(slot.number))

    def _reap(self, slot: Slot, seconds: float = REAP_SECONDS) -> bool:
        """Whether the worker, which has ended or is to end, did so within that time; it is forgotten in any case."""
        process, slot.process = slot.process, None
        assert process is not None
        process.handle.kill()
        process.handle.join(seconds)
        process.pipe.close()
        process.output.close()
        if ended := not process.handle.is_alive():
            process.handle.close()
        else:
            multiprocessing.process._children.discard(process.handle)  # type: ignore[attr-defined]  # joined at exit
            log.error(
                "%s: process %s cannot be killed: see dmesg for errors of its GPU", slot.place, process.handle.pid
            )
        return ended

    def _read_output(self, slot: Slot, process: Process) -> None:
        try:
            text = os.read(process.output.fileno(), OUTPUT_BYTES)
        except OSError:
            return
        *lines, process.partial = (process.partial + text.decode(errors="replace")).split("\n")
        process.partial = process.partial[-OUTPUT_BYTES:]
        for line in lines:
            process.output_tail.append(line[:1000])
            log.debug("%s: %s", slot.place, line)

    def _log(self, slot: Slot, process: Process, logged: worker.Logged) -> None:
        """A warning of a worker is one of the rank, once for all its workers; the rest is shown with --verbose."""
        process.output_tail.append(logged.text[:1000])
        shown = logged.level >= logging.WARNING and logged.text not in self._warned
        if shown:
            self._warned.add(logged.text)
        log.log(logged.level if shown else logging.DEBUG, "%s: %s", slot.place, logged.text)

    def _hangs(self, slot: Slot, process: Process, now: float) -> str:
        """Why no result is to be waited for any more; "" as long as one is."""
        if not process.sent:
            return ""
        since = process.clock if process.built else process.started
        if not process.waits and now - since > self._limit(process):
            return f"no result within {self._limit(process):g} s"
        return "" if self._gpus is None else self._gpus.fault(process.handle.pid, process.device.visible, since, now)

    def _limit(self, process: Process) -> float:
        if not process.built:
            return BUILD_SECONDS
        return float("inf") if self._trial_timeout is None else self._trial_timeout


def _cause(process: Process) -> str:
    """Why a worker ended, its last line the shortest form."""
    code = process.handle.exitcode
    words = "\n".join([*process.output_tail, process.partial]).strip()
    if process.error:
        return process.error.strip()
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        cause = f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    else:
        cause = f"ended with exit code {code}"
    return f"{words}\n{cause}".strip()
