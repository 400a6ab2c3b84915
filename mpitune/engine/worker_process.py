"""The process of one worker as its agent has it: its pipes, the batches that it was sent, and why it ended.

The agent's child is the worker's keeper, which ends as the worker did when all has ended that the worker has started.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import select
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from mpitune.devices.choose import Device, environment
from mpitune.engine import worker
from mpitune.engine.messages import STARTING, Run, WorkerProgress
from mpitune.engine.printed import MARK, STDERR
from mpitune.processes import keeper
from mpitune.processes.fork_server import server_for
from mpitune.processes.process import stops_wait, without_main
from mpitune.trial import Parameter

SOCKET_BYTES = 1 << 16  # batches waiting inside a worker's socket: less than any system's buffer, so no send blocks
OUTPUT_TAIL = 20  # lines of output kept of each worker
OUTPUT_BYTES = 1 << 16  # output read per look: a flood must not starve the results
READ_BYTES = 1 << 16  # of messages, at a time


@dataclass
class WorkerProcess:
    """A living worker, and what it is doing. Times are of the agent's clock, in seconds."""

    handle: Any  # its keeper, a process of multiprocessing
    batches: Connection  # a socket: pipes are smaller where a user has many
    results: Connection  # a pipe: to write to it takes a worker two thirds of the time that a socket takes
    output: Connection
    device: Device  # of its slot, or several where a gang has more
    sent: deque[tuple[Run, int]] = field(default_factory=deque)  # batches it has, with their pickled sizes
    n_sent: int = 0  # batches since its start
    sets: set[frozenset[tuple[str, Parameter]]] = field(default_factory=set)  # of these, where they are counted
    n_told: int = 0  # of what workers are told, how much it has
    n_open: int = 0  # trials of the batch it works on that have not returned
    built: bool = False
    clock: float = 0.0  # since when it has been working on the current trial
    output_tail: deque[str] = field(default_factory=lambda: deque(maxlen=OUTPUT_TAIL))
    partial: str = ""
    printing: str = ""  # key of the trial whose output comes
    arrived: bytearray = field(default_factory=bytearray)  # of a message whose rest has not come
    error: str = ""
    raised: bool = False  # whether that is an exception of the objective
    ending: bool = False  # told to end after its last batch, to be replaced by a fresh one
    hung: bool = False  # killed since it took too long
    killed: float | None = None  # when
    dismissed: bool = False  # killed because its work is wanted no longer
    ended: bool = False  # all that it had sent has been read
    silent: float | None = None  # since when it has, while its keeper lives
    news: WorkerProgress | None = WorkerProgress(STARTING)  # how far it is, until the coordinator is told

    def __post_init__(self) -> None:
        self.begun(0)
        self._arrivals = select.poll()  # `Connection.poll` makes a selector each time
        self._arrivals.register(self.results, select.POLLIN)

    @classmethod
    def start(
        cls, setup: worker.Setup, device: Device, *, threads: int, n_workers: int, preload: Sequence[str] = ()
    ) -> WorkerProcess:
        """A new process: a fork of a server that has imported some modules, or spawned.

        Args:
            setup: what the worker is told.
            device: on which it computes.
            threads: numerical threads.
            n_workers: of its node.
            preload: names of the modules; none: the worker is spawned.
        """
        context = multiprocessing.get_context("spawn")
        batches, worker_batches = context.Pipe()
        results, worker_results = context.Pipe(duplex=False)
        output, worker_output = context.Pipe(duplex=False)
        os.set_blocking(output.fileno(), False)
        work = keeper.Later(worker.main, setup)
        pipes = (worker_batches, worker_results, worker_output)
        handle: Any = None
        with environment(device, threads, n_workers):
            if preload and (server := server_for(preload, os.environ)):
                handle = server.fork(os.environ, work, pipes)
            if handle is None:
                handle = context.Process(target=keeper.begin, args=(setup.parent, work, *pipes))
                with without_main(), stops_wait():
                    handle.start()
        for pipe in pipes:
            pipe.close()
        return cls(handle, batches, results, output, device)

    def begun(self, pid: int) -> None:
        """Note the process of the worker itself, which is known once it runs, and 0 before."""
        self.pid, self.peak = pid, worker.Peak(pid)

    def send(self, run: Run, now: float, told: Sequence[bytes] = ()) -> bool:
        """Send a batch, unless it must wait until the socket has room for it. Returns whether it was sent.

        With it goes what the worker has not heard of all that workers are told.
        """
        trials = tuple([trial.plain for trial in run.batch])
        work: worker.Work = trials, run.hosts, tuple(told[self.n_told :])
        packet = pickle.dumps(work, protocol=pickle.HIGHEST_PROTOCOL)
        if self.sent and len(packet) + sum(size + 1024 for _, size in self.sent) > SOCKET_BYTES:
            return False
        if not self.sent:
            self.n_open, self.clock = len(run.batch), now
        self.n_told = len(told)
        self.sent.append((run, len(packet)))
        self.n_sent += 1
        with suppress(OSError):  # it has died; its end is waited for
            worker.write(self.batches.fileno(), packet)
        return True

    def one_done(self) -> bool:
        """Count a trial that has returned. Returns whether it was the last of the first batch."""
        self.n_open -= 1
        if ended := self.n_open == 0:
            self.sent.popleft()
            self.n_open = len(self.sent[0][0].batch) if self.sent else 0
        return ended

    def end(self) -> None:
        """Let it end after the batches that it has."""
        if not self.ending:
            self.ending = True
            with suppress(OSError):  # it has died; its end is waited for
                worker.write(self.batches.fileno(), pickle.dumps(None))

    def messages(self) -> Iterator[Any]:
        """All messages that have arrived whole; afterwards `ended` says whether there will be no more."""
        self.ended = not self.handle.is_alive()  # asked first: what it sent before is then in the pipe
        while self._arrivals.poll(0):
            try:
                content = os.read(self.results.fileno(), READ_BYTES)
            except OSError:
                content = b""
            if not content:
                self.ended = True
                return
            self.arrived += content
            while len(self.arrived) >= (end := worker.LENGTH + int.from_bytes(self.arrived[: worker.LENGTH], "big")):
                message = pickle.loads(memoryview(self.arrived)[worker.LENGTH : end])
                del self.arrived[:end]
                yield message

    @property
    def running(self) -> str:
        """The key of the trial that it works on, "" for none."""
        return self.sent[0][0].batch[-self.n_open].key if self.sent and self.built else ""

    def read_output(self) -> list[tuple[str, str]]:
        """The lines that it has printed since the last call, each after the key of its trial."""
        try:
            text = os.read(self.output.fileno(), OUTPUT_BYTES)
        except OSError:
            return []
        *lines, self.partial = (self.partial + text.decode(errors="replace")).split("\n")
        self.partial = self.partial[-OUTPUT_BYTES:]
        printed = []
        for line in lines:
            words, mark, key = line.partition(MARK)
            plain, *errors = words.split(STDERR)
            texts = [plain] * bool(plain or not (errors or mark)) + [STDERR + text for text in errors]
            printed += [(self.printing, _at_last(text)) for text in texts]
            if mark:
                self.printing = key
        self.output_tail.extend(line.replace(STDERR, "")[:1000] for _, line in printed)
        return printed

    def kill(self) -> None:
        """Have its keeper end it and all that it has started."""
        if self.handle.is_alive():
            with suppress(ProcessLookupError):  # it has just ended
                for number in (keeper.END, signal.SIGCONT):  # it may have been suspended
                    os.kill(self.handle.pid, number)

    def reap(self, seconds: float) -> bool:
        """Kill the process if it lives, and close its pipes. Returns whether it ended within that time."""
        self.kill()
        self.handle.join(seconds)
        for connection in (self.batches, self.results, self.output):
            connection.close()
        if ended := not self.handle.is_alive():
            self.handle.close()
        else:
            multiprocessing.process._children.discard(self.handle)  # type: ignore[attr-defined]  # joined at exit
        return ended

    def cause(self) -> str:
        """Why it ended. The last line says it in the shortest form."""
        if self.error:
            return self.error.strip()
        code = self.handle.exitcode
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            cause = f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
        else:
            cause = f"ended with exit code {code}"
        printed = "\n".join([*self.output_tail, self.partial.partition(MARK)[0].replace(STDERR, "")]).strip()
        return f"{printed}\n{cause}".strip()


def _at_last(line: str) -> str:
    """A line as a terminal shows it when it is complete: of a progress bar the last state."""
    begin = STDERR * line.startswith(STDERR)
    return begin + line.removeprefix(begin).rstrip("\r").rpartition("\r")[2]
