"""The only file that imports mpi4py."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import deque
from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI

from common.cluster.heartbeat import Heartbeat
from common.cluster.transport import Lost, Parting, Transport
from common.errors import Exit

MESSAGE, BEAT = 0, 1  # tags
CHUNK = 1 << 30  # bytes per broadcast: counts of older MPI versions are 32-bit


class MpiTransport(Transport):
    """Messages over MPI_COMM_WORLD.

    A rank polls for them: the sleep in between costs about 2 % of a core, and no thread, no MPI
    thread level and no spinning are needed.

    On rank 0 the last message of a rank that died is `Lost`. It comes where `mpirun --with-ft ulfm` lets a job survive
    that (ULFM: W. Bland et al., 2013), and where a rank was silent for too long: a timer interrupts whatever this
    process does, be it a figure or a download, to say that it lives and to look who else does.

    One serves all studies of a process, one after the other: `watch` begins one, `settle` ends it.
    """

    poll_seconds = 0.01

    def __init__(self) -> None:
        self._comm = MPI.COMM_WORLD
        self.rank, self.size = self._comm.rank, self._comm.size
        self._own: deque[Any] = deque()
        self._sending: deque[MPI.Request] = deque()
        self._lost: set[int] = set()
        self._fallen: list[int] = []  # lost, and not yet said
        self._untested: list[MPI.Request] = []
        self._beats: list[MPI.Request] = []
        self._heartbeat = Heartbeat(self.rank, self.size, 0.0)

    def watch(self, silence: float) -> None:
        self._heartbeat = Heartbeat(self.rank, self.size, silence)
        while (matched := self._comm.improbe(tag=BEAT)) is not None:
            matched.recv()  # of the study before, whose ranks may be silent now
        if silence:
            signal.signal(signal.SIGALRM, lambda number, frame: self._beat())
            signal.siginterrupt(signal.SIGALRM, False)  # libraries that do not expect it need not know
            signal.setitimer(signal.ITIMER_REAL, self._heartbeat.interval, self._heartbeat.interval)

    def send(self, to: int, message: Any) -> None:
        if to == self.rank:
            self._own.append(message)
        else:
            self._post(to, message)

    def _post(self, to: int, message: Any) -> None:
        if to in self._lost:
            return
        try:
            self._sending.append(self._comm.isend(message, dest=to, tag=MESSAGE))
        except MPI.Exception as error:
            self._acknowledge(error)

    def receive(self) -> list[tuple[int, Any]]:
        arrived = [(self.rank, message) for message in self._own]
        self._own.clear()
        while (found := self._next())[0] >= 0:
            arrived.append(found)
        while self._fallen:
            arrived.append((self._fallen.pop(), Lost()))
        return arrived

    def _beat(self) -> None:
        """Say that this rank lives, hear who else does, and lose those that have been silent for too long."""
        try:
            self._beats = [request for request in self._beats if not request.Test()]
            for rank in self._heartbeat.others:
                self._beats.append(self._comm.isend(None, dest=rank, tag=BEAT))
            status = MPI.Status()
            while (matched := self._comm.improbe(tag=BEAT, status=status)) is not None:
                matched.recv()
                self._heartbeat.heard(status.source)
        except MPI.Exception as error:
            self._acknowledge(error)
        for rank in self._heartbeat.silent():
            self._lose(rank)

    def _acknowledge(self, error: MPI.Exception) -> None:
        """Lose the ranks that MPI says have died, so that later calls work with the others. Raises any other error."""
        if error.Get_error_class() not in (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING):
            raise error
        failed = self._comm.Get_failed()
        self._comm.Ack_failed(failed.size)
        for rank in MPI.Group.Translate_ranks(failed, list(range(failed.size)), self._comm.Get_group()):
            self._lose(rank)

    def _lose(self, rank: int) -> None:
        """That rank is dead: nothing is sent to it any more, and no end waits for it."""
        if rank in self._lost:
            return
        if rank == 0:
            print(f"rank {self.rank}: rank 0 is silent or dead, and the journal with it: ending", file=sys.stderr)
            self.abort(Exit.ERROR)
        self._lost.add(rank)
        self._fallen.append(rank)
        self._heartbeat.lost(rank)
        # One of these may be for it, and would raise or never be done; the buffers of all must live on.
        self._untested += [*self._sending, *self._beats]
        self._sending.clear()
        self._beats.clear()

    @property
    def pending(self) -> bool:
        return bool(self._own)

    def gather(self, thing: Any) -> list[Any]:
        self.send(0, thing)
        if self.rank != 0:
            return []
        things: dict[int, Any] = {}
        while len(things) < self.size:
            things.update(self.receive() or self._sleep())
            if self._lost:
                print(f"rank {min(self._lost)} died while the job started", file=sys.stderr)
                self.abort(Exit.ERROR)
        return [things[rank] for rank in range(self.size)]

    def broadcast(self, thing: Any) -> Any:
        if self.rank == 0:
            for rank in range(1, self.size):
                self.send(rank, thing)
            return thing
        # One message only: the next one may already be the first of the study.
        while (matched := self._comm.improbe(source=0, tag=MESSAGE)) is None:
            self._sleep()
        return matched.recv()

    def broadcast_array(self, array: np.ndarray) -> None:
        content = array.reshape(-1).view(np.uint8)
        for start in range(0, content.size, CHUNK):
            self._wait(self._comm.Ibcast(content[start : start + CHUNK], root=0))

    def settle(self) -> bool:
        try:
            whole = self._part()
        except MPI.Exception:  # rank 0 has gone already, having ended the study
            whole = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        return whole

    def close(self, status: int = 0) -> None:
        if self.settle():
            return
        # MPI_Finalize would wait for the dead for ever. Rank 0 goes last: the others can still hear what it sent.
        if self.rank == 0:
            time.sleep(1.0)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    def _part(self) -> bool:
        """Whether all ranks have come here. What was sent before is dropped, so that its sender can end.

        Messages between two ranks arrive in order, so nothing that follows a Parting is dropped.
        """
        self._own.clear()
        if self.rank != 0:
            self._post(0, Parting())
            while not isinstance(message := self._next()[1], Parting):
                self._sleep()
            return message.whole
        there = {0}
        while len(there | self._lost) < self.size:
            sender, message = self._next()
            if isinstance(message, Parting):
                there.add(sender)
            elif message is None:
                self._sleep()
        whole = not self._lost
        for rank in range(1, self.size):
            self._post(rank, Parting(whole))
        while whole and self._sending:
            self._forget_sent()
            self._sleep()
        return whole

    def _next(self) -> tuple[int, Any]:
        """The sender of one message that has arrived, and the message; (-1, None) if there is none."""
        status = MPI.Status()
        try:
            self._forget_sent()
            if (matched := self._comm.improbe(tag=MESSAGE, status=status)) is not None:
                return status.source, matched.recv()
        except MPI.Exception as error:
            self._acknowledge(error)
        return -1, None

    def _forget_sent(self) -> None:
        while self._sending and self._sending[0].Test():
            self._sending.popleft()

    def abort(self, status: int) -> NoReturn:
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(0.1)  # mpirun drops what it has not read of a rank when it ends the job
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, 2.0)  # where MPI's own end hangs, this is ours
        self._comm.Abort(status)
        os._exit(status)

    def _wait(self, request: MPI.Request) -> None:
        """MPI's own wait spins on a core; a start or an end may take minutes elsewhere."""
        while not request.Test():
            self._sleep()

    def _sleep(self) -> tuple[()]:
        time.sleep(self.poll_seconds)
        return ()


def library() -> str:
    """The MPI library that mpi4py found, such as "Open MPI v5.0.11"."""
    return MPI.Get_library_version().split(",")[0].split("\n")[0].strip("\0 ")


if __name__ == "__main__":
    print(library())
