"""What a transport promises, case by case, for one class as for the other.

    mpirun -n 3 python -m tests.mpitune.ranks.contract messages starts

Every rank plays its part and asserts what it sees; the job's status is 0 when all did, and all came to a proper end.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from mpitune.ranks.launch import connect, launched
from mpitune.ranks.transport import Transport

SILENCE = 4.0  # seconds; a rank that has to wait for a core is not silent for so long
LARGE = 1 << 20  # numbers in a large message: far more than any library sends before it is asked for


def collect(transport: Transport, n: int) -> list[tuple[int, Any]]:
    """Messages until there are n; they come while the transport is asked again and again, as the loop does."""
    messages: list[tuple[int, Any]] = []
    deadline = time.monotonic() + 300
    while len(messages) < n:
        assert time.monotonic() < deadline, messages
        messages += transport.receive()
        time.sleep(0 if transport.pending else min(transport.poll_seconds, 0.01))
    assert len(messages) == n
    return messages


def messages(transport: Transport) -> None:
    """Everybody sends to rank 0, rank 0 to everybody, itself included: all arrives once, of each sender in order."""
    n = 300
    for number in range(n):
        transport.send(0, (transport.rank, number))
    if transport.rank == 0:
        arrived = collect(transport, n * transport.size)
        for rank in range(transport.size):
            assert [message for sender, message in arrived if sender == rank] == [(rank, i) for i in range(n)]
        for rank in range(transport.size):
            for number in range(n):
                transport.send(rank, number)
    assert collect(transport, n) == [(0, number) for number in range(n)]
    assert transport.receive() == [] and not transport.pending


def large_messages(transport: Transport) -> None:
    """A small message does not overtake a large one, and sending one to a rank that does not look returns at once."""
    for number in range(3):
        transport.send(0, np.full(LARGE, transport.rank + number))
        transport.send(0, number)
    if transport.rank == 0:
        arrived = collect(transport, 6 * transport.size)
        for rank in range(transport.size):
            of_rank = [message for sender, message in arrived if sender == rank]
            assert of_rank[1::2] == [0, 1, 2]
            for number, array in enumerate(of_rank[::2]):
                assert array.shape == (LARGE,) and (array == rank + number).all()
        for rank in range(transport.size):
            transport.send(rank, "all is here")
    assert collect(transport, 1) == [(0, "all is here")]


def starts(transport: Transport) -> None:
    """What a start needs, each step taking what belongs to it and nothing of the next."""
    for attempt in range(3):
        things = transport.gather((transport.rank, attempt))
        expected = [(rank, attempt) for rank in range(transport.size)] if transport.rank == 0 else []
        assert things == expected
    for attempt in range(3):
        assert transport.broadcast(("said", attempt) if transport.rank == 0 else None) == ("said", attempt)
    array = np.arange(1_000_003, dtype=np.float64).reshape(-1, 1) * (transport.rank == 0)
    transport.broadcast_array(array)
    assert (array[:, 0] == np.arange(1_000_003)).all()
    transport.broadcast_array(np.zeros(0))
    if transport.rank == 0:
        for rank in range(transport.size):
            transport.send(rank, "first of the study")
    assert collect(transport, 1) == [(0, "first of the study")]


def messages_of_the_script(transport: Transport) -> None:
    """What a script sends by itself, whatever its tag, is not taken for a message of the transport, nor the reverse."""
    from mpi4py import MPI

    world, last = MPI.COMM_WORLD, transport.size - 1
    theirs = [world.isend(("mine", tag), dest=last - transport.rank, tag=tag) for tag in range(3)]
    awaited = world.irecv(tag=7)
    messages(transport)
    starts(transport)
    world.send("prefetched", dest=last - transport.rank, tag=7)
    assert [world.recv(tag=tag) for tag in range(3)] == [("mine", tag) for tag in range(3)]
    assert awaited.wait() == "prefetched"
    MPI.Request.waitall(theirs)


_CASES = (messages, large_messages, starts, messages_of_the_script)
CASES = {case.__name__: case for case in _CASES}

if __name__ == "__main__":
    transport = connect(launched(), heartbeat_timeout=SILENCE)
    try:
        for name in sys.argv[1:]:
            CASES[name](transport)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        transport.abort(1)
    time.sleep(0.3 * transport.rank)  # nobody leaves before the last has come
    transport.close()
    print(f"rank {transport.rank} ended", flush=True)
