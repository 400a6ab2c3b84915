"""Matrices that processes fill together: who waits for whom, and what the killed leave behind."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection

import numpy as np
import pytest

from mpitune.memory.shared_arrays import MemoryFile
from mpitune.svm.matrices.pool import Pool, SharedMatrix, bytes_of
from tests.helpers import PATIENCE
from tests.mpitune.svm.conftest import Spawned

WIDTH, N_STRIPS = 32, 4


def matrices_of(memory: MemoryFile, n: int) -> list[SharedMatrix]:
    assert memory.reserve(bytes_of(n, WIDTH))
    return [SharedMatrix(memory, number, WIDTH, N_STRIPS) for number in range(n)]


def hold(pipe: Connection, memory: MemoryFile, n: int, what: float, stop_in: int) -> None:
    """Fill a matrix with `what` and the strip's number, but stop for ever in one strip; then say so and keep it."""

    def fill(strip: int, values: np.ndarray) -> None:
        rows = values[strip * WIDTH // N_STRIPS : (strip + 1) * WIDTH // N_STRIPS]
        rows[:1] = -1
        if strip == stop_in:
            pipe.send("in the strip")
            time.sleep(3600)
        rows[:] = what + strip

    with Pool(memory, matrices_of(memory, n)).holding(what, fill) as values:
        pipe.send(values.copy())
        pipe.recv()


def expected(what: float) -> np.ndarray:
    return what + np.repeat(np.arange(N_STRIPS), WIDTH // N_STRIPS)[:, None] * np.ones(WIDTH)


def test_the_strip_of_a_killed_process_is_done_again(node_memory: MemoryFile, forked: Spawned) -> None:
    victim, said = forked(hold, node_memory, 1, 10.0, 2)
    assert said.poll(PATIENCE) and said.recv() == "in the strip"
    other, answer = forked(hold, node_memory, 1, 10.0, -1)
    assert not answer.poll(0.5), "a strip that is being filled is waited for"
    os.kill(victim.pid, signal.SIGKILL)
    assert answer.poll(PATIENCE)
    np.testing.assert_array_equal(answer.recv(), expected(10.0))
    answer.send("end")
    other.join(PATIENCE)
    assert other.exitcode == 0


@pytest.mark.parametrize("killed", [True, False])
def test_a_matrix_in_use_is_replaced_when_its_user_ends_or_is_killed(
    node_memory: MemoryFile, forked: Spawned, killed: bool
) -> None:
    user, used = forked(hold, node_memory, 1, 10.0, -1)
    np.testing.assert_array_equal(used.recv(), expected(10.0))
    friend, shared = forked(hold, node_memory, 1, 10.0, -1)
    np.testing.assert_array_equal(shared.recv(), expected(10.0))
    waiting, answer = forked(hold, node_memory, 1, 50.0, -1)
    assert not answer.poll(0.5), "two others use the only matrix"
    used.send("end")
    user.join(PATIENCE)
    assert not answer.poll(0.5), "one other still does"
    if killed:
        os.kill(friend.pid, signal.SIGKILL)
    else:
        shared.send("end")
    assert answer.poll(PATIENCE)
    np.testing.assert_array_equal(answer.recv(), expected(50.0))
    answer.send("end")
    waiting.join(PATIENCE)


def test_a_second_matrix_spares_the_wait_and_the_oldest_is_replaced(node_memory: MemoryFile, forked: Spawned) -> None:
    workers = [forked(hold, node_memory, 2, what, -1) for what in (10.0, 20.0)]
    for (_, pipe), what in zip(workers, (10.0, 20.0), strict=True):
        assert pipe.poll(PATIENCE)
        np.testing.assert_array_equal(pipe.recv(), expected(what))
    for process, pipe in workers:
        pipe.send("end")
        process.join(PATIENCE)
    matrices = matrices_of(node_memory, 2)
    before = {float(matrix.holds[0]): int(matrix.taken[0]) for matrix in matrices}
    assert set(before) == {10.0, 20.0}
    with Pool(node_memory, matrices).holding(30.0, lambda strip, values: None):
        pass
    assert {float(matrix.holds[0]) for matrix in matrices} == {30.0, max(before, key=lambda what: before[what])}


def test_a_process_does_not_wait_for_itself(node_memory: MemoryFile) -> None:
    pool = Pool(node_memory, matrices_of(node_memory, 1))
    with (
        pool.holding(1.0, lambda strip, values: None),
        pytest.raises(RuntimeError, match="one matrix of a pool at a time"),
        pool.holding(2.0, lambda strip, values: None),
    ):
        pass
