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

from mpitune.errors import Exit, UsageError
from mpitune.processes.process import of_this_process
from mpitune.ranks.heartbeat import Pulse, Silence
from mpitune.ranks.transport import CHUNK_BYTES, GivenUp, Lost, Parting, Transport

mpi4py.rc.finalize = False  # at exit, also of a fork, which would wait for ever
from mpi4py import MPI  # noqa: E402

MESSAGE, BEAT = 0, 1  # tags
BROADCAST = 1 << 30  # bytes per broadcast: counts of older MPI versions are 32-bit
ABORT_SECONDS = 10.0  # in which rank 0 ends all ranks
FINALIZE_SECONDS = 60.0  # that a rank waits for all others to end with it: a link may be lost even then


class MpiTransport(Transport):
    """Messages over a duplicate of MPI_COMM_WORLD, so a script's own messages are apart from these.

    A rank polls for them and sleeps in between, which takes about 2 % of a core. No call waits for another rank, so the
    lock around every call is free again at once. The thread of the heartbeat takes that lock too. The beats change only
    what belongs to them: requests of beats, counts of silence, one flag. The main thread reads these when it looks for
    messages, and acts on them.

    On rank 0 the last message of a rank that died is `Lost`. It comes if `mpirun --with-ft ulfm` lets the job survive
    the death (ULFM: W. Bland et al., 2013), or if a rank was silent for too long. A rank that was only asleep then
    hears from rank 0 that it was given up. It stops its work and waits at the end for the others, because launchers end
    the whole job with the first process that ends. A rank that does not hear rank 0 ends itself and nobody else.

    One serves all studies of a process, one after the other: `watch` begins one, `settle` ends it.
    """

    poll_seconds = 0.01
    aborts = True  # where a rank was lost, as the launcher has the status of MPI_Abort

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
        self._dropped: list[MPI.Request] = []  # of lost ranks; they may never end, and MPI may still use their buffers
        self._lost: set[int] = set()
        self._parted: set[int] = set()  # on rank 0: those that have come to the end of the study
        self._lock = threading.Lock()  # held during each call of MPI
        self._study = 0
        # What the beats change:
        peers = range(1, self.size) if self.rank == 0 else [0]
        self._beats: dict[int, list[MPI.Request]] = {rank: [] for rank in peers}  # on their way
        self._silence = Silence()
        self._given_up = False

    def watch(self, heartbeat_timeout: float) -> None:
        self._rest()
        self._study += heartbeat_timeout > 0  # the same on all ranks, of which one may look at its wires in between
        self._given_up = False
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
        if to in self._lost:
            return
        try:
            with self._lock:
                request = self._comm.isend(message, dest=to, tag=MESSAGE)
        except MPI.Exception as error:
            self._acknowledge(error)
        else:
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
        """Move messages that have arrived to the inbox, forget those sent, and lose ranks that died."""
        for rank in self._silence.silent():
            self._lose(rank)
        if self._given_up:
            self._given_up = False
            self._inbox.append((0, GivenUp()))
        try:
            with self._lock:
                self._take_in()
                for receiver, requests in list(self._sending.items()):
                    while requests and requests[0].Test():
                        requests.popleft()
                    if not requests:
                        del self._sending[receiver]
        except MPI.Exception as error:
            self._acknowledge(error)

    def _take_in(self) -> None:
        """Begin to receive new messages and take in complete ones. None is waited for, as its sender may die."""
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
                elif sender not in self._lost:
                    self._inbox.append((sender, message))
            if not requests:
                del self._arriving[sender]

    def gather(self, thing: Any) -> list[Any]:
        self.send(0, thing)
        return [thing for rank in range(self.size) for thing in self._next_from(rank)] if self.rank == 0 else []

    def broadcast(self, thing: Any) -> Any:
        if self.rank != 0:
            return self._next_from(0)[0]
        for rank in range(1, self.size):
            self.send(rank, thing)
        return thing

    def _next_from(self, rank: int) -> list[Any]:
        """The next message of a rank, none of one that is lost. Others stay in the inbox until they are asked for."""
        while True:
            for place, (sender, message) in enumerate(self._inbox):
                if sender == rank and not isinstance(message, GivenUp | Lost):
                    del self._inbox[place]
                    return [message]
            if rank in self._lost:
                return []
            time.sleep(self.poll_seconds)  # MPI's own waits keep a core busy, and a download may take minutes
            self._collect()

    def broadcast_array(self, array: np.ndarray) -> None:
        content = array.reshape(-1).view(np.uint8)
        together = self.broadcast(not self._lost)  # MPI has no broadcast for those that are left
        for start in range(0, content.size, BROADCAST if together else CHUNK_BYTES):
            if not together:
                chunk = content[start : start + CHUNK_BYTES]
                chunk[:] = self.broadcast(chunk)
                self.gather(None)  # no more than one chunk is on its way
                continue
            with self._lock:
                request = self._comm.Ibcast(content[start : start + BROADCAST], root=0)
            while not self._done(request):
                self._wait_at_start()
        self.gather(None)
        if together and self._lost:  # a rank that died may have had to pass the array on
            self._wait_at_start()

    def _done(self, request: MPI.Request) -> bool:
        with self._lock:
            return bool(request.Test())

    def _wait_at_start(self) -> None:
        """Wait asleep, while all ranks are needed: a lost rank is an error."""
        time.sleep(self.poll_seconds)
        self._collect()
        if self._lost:
            print(f"rank {min(self._lost)} died while the job started", file=sys.stderr)
            self.abort(Exit.ERROR)

    # -- the death of others

    def _beat(self) -> None:
        """Say that this rank lives, and hear who else does. Runs beside the loop."""
        with self._lock:
            for rank, sent in self._beats.items():
                try:
                    self._exchange_beats(rank, sent)
                except MPI.Exception:
                    continue  # it has died, and the main thread is told so too
            self._silence.beat()
        if self.rank != 0 and self._silence.silent():
            self._orphaned(f"has heard nothing of rank 0 for {self._timeout:g} s")

    def _exchange_beats(self, rank: int, sent: list[MPI.Request]) -> None:
        """Hear the beats of a rank, and send it one: the study's number, and whether this rank has given it up."""
        heard = False
        while (matched := self._comm.improbe(source=rank, tag=BEAT)) is not None:
            study, given_up = matched.recv()
            if study == self._study:
                heard = True
                self._given_up |= given_up
        if heard:
            self._silence.heard(rank)
        lost = rank in self._lost
        if heard or not lost:
            sent[:] = [request for request in sent if not request.Test()]
            sent.append(self._comm.isend((self._study, lost), dest=rank, tag=BEAT))

    def _drop_beats(self) -> None:
        """Take in all heartbeats that have come; what they say counts no more."""
        with self._lock:
            for rank in self._beats:
                while (matched := self._comm.improbe(source=rank, tag=BEAT)) is not None:
                    matched.recv()

    def _acknowledge(self, error: MPI.Exception) -> None:
        """Lose the ranks that MPI says have died, so that later calls work with the others. Raises any other error."""
        if error.Get_error_class() not in (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING):
            raise error
        with self._lock:
            failed = self._comm.Get_failed()
            self._comm.Ack_failed(failed.size)
            ranks = MPI.Group.Translate_ranks(failed, list(range(failed.size)), self._comm.Get_group())
        for rank in ranks:
            self._lose(rank)

    def _lose(self, rank: int) -> None:
        """That rank is dead: nothing more is sent to it, and the end does not wait for it."""
        if rank in self._lost:
            return
        if rank == 0:
            self._orphaned("has lost rank 0")
        self._lost.add(rank)
        with self._lock:
            self._silence.forget(rank)
        self._inbox.append((rank, Lost()))
        self._dropped += [*self._sending.pop(rank, ()), *self._arriving.pop(rank, ())]

    def _orphaned(self, why: str) -> NoReturn:
        """End this rank and its workers, and no other rank: rank 0 may live and be out of reach."""
        print(f"rank {self.rank} on {os.uname().nodename} {why}, and ends", file=sys.stderr, flush=True)
        os._exit(Exit.ERROR)

    # -- the end

    def settle(self) -> bool:
        try:
            whole = self._part()
        except MPI.Exception:  # rank 0 has ended the study and gone
            whole = False
        self._rest()
        return whole

    def close(self, status: int = 0) -> None:
        if self.settle():
            _end_after(FINALIZE_SECONDS)
            self.broadcast(self.gather(None))  # no rank beats any more, and all beats have come before these messages
            self._drop_beats()  # MPICH calls a message that nobody took an error
            self._finalize()
            _end_after(0)
            return
        # MPI_Finalize would wait for the dead for ever. Rank 0 goes last: the others can still receive its messages.
        # Launchers take a rank that ends without it for a failure, whatever its status, but have that of MPI_Abort.
        if self.rank == 0:
            time.sleep(1.0)
        sys.stdout.flush()
        sys.stderr.flush()
        if self.aborts:
            self.abort(status or self.status) if self.rank == 0 else time.sleep(ABORT_SECONDS)
        os._exit(status or self.status)

    def _finalize(self) -> None:
        self._rest()
        if not MPI.Is_finalized():
            MPI.Finalize()

    def _part(self) -> bool:
        """Whether all ranks have come here. Earlier messages are dropped, so that their senders can end.

        Messages between two ranks arrive in order, so nothing that follows a Parting is dropped.
        """
        self._inbox.clear()
        if self.rank != 0:
            self._post(0, Parting())
            while True:
                self._collect()
                while self._inbox:
                    _, message = self._inbox.popleft()
                    if isinstance(message, Parting):
                        return message.whole
                time.sleep(self.poll_seconds)
        while any(rank not in self._parted and self._comes(rank) for rank in range(1, self.size)):
            time.sleep(self.poll_seconds)
            self._collect()
            self._inbox.clear()
        self._lost -= self._parted  # given up, but only asleep
        self._parted.clear()
        whole = not self._lost
        for rank in range(1, self.size):
            self._post(rank, Parting(whole))
        while whole and self._sending:
            time.sleep(self.poll_seconds)
            self._collect()  # of the next study, perhaps
            whole = not self._lost
        return whole

    def _comes(self, rank: int) -> bool:
        """Whether a rank will say that it is done. One that was given up does so if it has woken."""
        return rank not in self._lost or self._silence.lives(rank)

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
    except MPI.Exception as error:  # of ULFM
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
