"""The transport between ranks by MPI: the only file that imports mpi4py."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any, NoReturn

import mpi4py
import numpy as np

from mpitune.errors import Exit, UsageError, how_to_go_on
from mpitune.processes.process import of_this_process
from mpitune.ranks.heartbeat import Pulse, Silence
from mpitune.ranks.transport import Parting, Transport

mpi4py.rc.finalize = False  # at exit, also of a fork, which would wait for ever
from mpi4py import MPI  # noqa: E402

MESSAGE, BEAT = 0, 1  # tags
BROADCAST = 1 << 30  # bytes per broadcast: counts of older MPI versions are 32-bit
FINALIZE_SECONDS = 60.0  # that a rank waits for all others to end with it: a link may be lost even then


class MpiTransport(Transport):
    """Messages over a duplicate of MPI_COMM_WORLD, so a script's own messages are apart from these.

    A rank polls for them and sleeps in between, which takes about 2 % of a core. No call waits for another rank, so the
    lock around every call is free again at once. The thread of the heartbeat takes that lock too. The beats change only
    what belongs to them: requests of beats, counts of silence, one flag. The main thread reads these when it looks for
    messages, and acts on them.

    A rank that was silent for too long counts as dead: rank 0 ends the job, and the same command continues. A rank that
    does not hear rank 0 ends itself and nobody else.

    One serves all studies of a process, one after the other: `watch` begins one, `settle` ends it.
    """

    poll_seconds = 0.01

    def __init__(self) -> None:
        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise UsageError(
                f"{library()} gives less than MPI_THREAD_SERIALIZED, which the heartbeat of the ranks needs: "
                "unset MPI4PY_RC_THREAD_LEVEL, or use Open MPI, MPICH or Intel MPI"
            )
        self._pulse: Pulse | None = None
        atexit.register(of_this_process(self._finalize))
        self._comm = _duplicate_of_world()
        self.rank, self.size = self._comm.rank, self._comm.size
        self._inbox: deque[tuple[int, Any]] = deque()
        self._arriving: dict[int, deque[MPI.Request]] = {}  # by sender, in the order sent
        self._sending: dict[int, deque[MPI.Request]] = {}  # by receiver
        self._parted: set[int] = set()  # on rank 0: those that have come to the end of the study
        self._lock = threading.Lock()  # held during each call of MPI
        self._study = 0
        # What the beats change:
        peers = range(1, self.size) if self.rank == 0 else [0]
        self._beats: dict[int, list[MPI.Request]] = {rank: [] for rank in peers}  # on their way
        self._silence = Silence()

    def watch(self, heartbeat_timeout: float) -> None:
        self._rest()
        self._study += heartbeat_timeout > 0  # the same on all ranks, of which one may look at its wires in between
        self._timeout, self._silence = heartbeat_timeout, Silence()
        if heartbeat_timeout and self._beats:
            self._beat()  # at once: who gets a later message of this rank has its first word, and counts its silence
            self._pulse = Pulse(self._beat, heartbeat_timeout)

    def _rest(self) -> None:
        if self._pulse is not None:
            self._pulse.stop()
            self._pulse = None

    # -- messages

    def send(self, to: int, message: Any) -> None:
        if to == self.rank:
            self._inbox.append((to, message))
        else:
            self._post(to, message)

    def _post(self, to: int, message: Any) -> None:
        with self._lock:
            request = self._comm.isend(message, dest=to, tag=MESSAGE)
        self._sending.setdefault(to, deque()).append(request)

    def receive(self) -> list[tuple[int, Any]]:
        self._collect()
        arrived = list(self._inbox)
        self._inbox.clear()
        return arrived

    @property
    def pending(self) -> bool:
        return bool(self._inbox)

    def _collect(self) -> None:
        """Move messages that have arrived to the inbox, and forget those sent. A rank that has died ends the job."""
        for rank in self._silence.silent():
            why = f"has given no sign of life for {self._timeout:g} s"
            if self.rank != 0:
                self._orphaned(why)
            print(f"rank {rank} {why}, so the job ends; {how_to_go_on()}", file=sys.stderr, flush=True)
            self.abort(Exit.STOPPED)
        with self._lock:
            self._take_in()
            for receiver, requests in list(self._sending.items()):
                while requests and requests[0].Test():
                    requests.popleft()
                if not requests:
                    del self._sending[receiver]

    def _take_in(self) -> None:
        """Begin to receive new messages and take in complete ones. None is waited for."""
        status = MPI.Status()
        while (matched := self._comm.improbe(tag=MESSAGE, status=status)) is not None:
            self._arriving.setdefault(status.source, deque()).append(matched.irecv())
        for sender, requests in list(self._arriving.items()):
            while requests:
                done, message = requests[0].test()
                if not done:
                    break
                requests.popleft()
                if self.rank == 0 and isinstance(message, Parting):
                    self._parted.add(sender)
                else:
                    self._inbox.append((sender, message))
            if not requests:
                del self._arriving[sender]

    def gather(self, thing: Any) -> list[Any]:
        self.send(0, thing)
        return [self._next_from(rank) for rank in range(self.size)] if self.rank == 0 else []

    def broadcast(self, thing: Any) -> Any:
        if self.rank != 0:
            return self._next_from(0)
        for rank in range(1, self.size):
            self.send(rank, thing)
        return thing

    def _next_from(self, rank: int) -> Any:
        """The next message of a rank. Others stay in the inbox until they are asked for."""
        while True:
            for place, (sender, message) in enumerate(self._inbox):
                if sender == rank:
                    del self._inbox[place]
                    return message
            time.sleep(self.poll_seconds)  # MPI's own waits keep a core busy, and a download may take minutes
            self._collect()

    def broadcast_array(self, array: np.ndarray) -> None:
        content = array.reshape(-1).view(np.uint8)
        for start in range(0, content.size, BROADCAST):
            with self._lock:
                request = self._comm.Ibcast(content[start : start + BROADCAST], root=0)
            while not self._done(request):
                time.sleep(self.poll_seconds)
                self._collect()
        self.gather(None)

    def _done(self, request: MPI.Request) -> bool:
        with self._lock:
            return bool(request.Test())

    # -- the death of others

    def _beat(self) -> None:
        """Say that this rank lives, and hear who else does. Runs beside the loop."""
        with self._lock:
            for rank, sent in self._beats.items():
                try:
                    self._exchange_beats(rank, sent)
                except MPI.Exception:
                    continue  # it has died: its silence counts
            self._silence.beat()
        if self.rank != 0 and self._silence.silent():
            self._orphaned(f"has heard nothing of rank 0 for {self._timeout:g} s")

    def _exchange_beats(self, rank: int, sent: list[MPI.Request]) -> None:
        """Hear the beats of a rank, and send it one: the study's number."""
        while (matched := self._comm.improbe(source=rank, tag=BEAT)) is not None:
            if matched.recv() == self._study:
                self._silence.heard(rank)
        sent[:] = [request for request in sent if not request.Test()]
        sent.append(self._comm.isend(self._study, dest=rank, tag=BEAT))

    def _drop_beats(self) -> None:
        """Take in all heartbeats that have come; what they say counts no more."""
        with self._lock:
            for rank in self._beats:
                while (matched := self._comm.improbe(source=rank, tag=BEAT)) is not None:
                    matched.recv()

    def _orphaned(self, why: str) -> NoReturn:
        """End this rank and its workers, and no other rank: rank 0 may live and be out of reach."""
        print(f"rank {self.rank} on {os.uname().nodename} {why}, and ends", file=sys.stderr, flush=True)
        os._exit(Exit.ERROR)

    # -- the end

    def settle(self) -> None:
        self._part()
        self._rest()

    def close(self) -> None:
        self.settle()
        _end_after(FINALIZE_SECONDS)
        self.broadcast(self.gather(None))  # no rank beats any more, and all beats have come before these messages
        self._drop_beats()  # MPICH calls a message that nobody took an error
        self._finalize()
        _end_after(0)

    def _finalize(self) -> None:
        self._rest()
        if not MPI.Is_finalized():
            MPI.Finalize()

    def _part(self) -> None:
        """Wait until all ranks have come here. Earlier messages are dropped, so that their senders can end.

        Messages between two ranks arrive in order, so nothing that follows a Parting is dropped.
        """
        self._inbox.clear()
        if self.rank != 0:
            self._post(0, Parting())
            while not isinstance(self._next_from(0), Parting):
                continue
            return
        while len(self._parted) < self.size - 1:
            time.sleep(self.poll_seconds)
            self._collect()
            self._inbox.clear()
        self._parted.clear()
        for rank in range(1, self.size):
            self._post(rank, Parting())
        while self._sending:
            time.sleep(self.poll_seconds)
            self._collect()  # of the next study, perhaps

    def abort(self, status: int) -> NoReturn:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # its disk is full, or it was closed
                stream.flush()
        time.sleep(0.1)  # mpirun drops unread output of a rank when it ends the job
        _end_after(2.0)
        self._lock.acquire(timeout=1.0)
        try:
            MPI.COMM_WORLD.Abort(status)
        finally:  # MPI may have ended before
            os._exit(status)


def _duplicate_of_world() -> MPI.Intracomm:
    """Wait asleep until all ranks have come here."""
    try:
        duplicate, made = MPI.COMM_WORLD.Idup()
        while not made.Test():
            time.sleep(MpiTransport.poll_seconds)
    except MPI.Exception as error:
        print(f"a rank died while the job started: {error}", file=sys.stderr, flush=True)
        MPI.COMM_WORLD.Abort(Exit.ERROR)
        raise
    return duplicate


def _end_after(seconds: float) -> None:
    """A signal ends the process if MPI hangs for so long as it ends; 0 takes that back."""
    if threading.current_thread() is threading.main_thread():  # else the signal's handler stays
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def library() -> str:
    """The MPI library that mpi4py found, such as "Open MPI v5.0.11"."""
    return MPI.Get_library_version().split(",")[0].split("\n")[0].strip("\0 ")


if __name__ == "__main__":
    print(library())
    MPI.Finalize()  # without it Intel MPI's launcher may kill the rank that ends later
