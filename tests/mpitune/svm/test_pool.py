"""Matrices that processes fill together: who waits for whom, and what the killed leave behind."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection

import numpy as np
import pytest

from mpitune.memory.shared_arrays import SharedArrays, Spec
from mpitune.svm.matrices.pool import Pool, SharedMatrix
from tests.helpers import PATIENCE
from tests.mpitune.svm.conftest import Scratch, Spawned

WIDTH, N_STRIPS = 32, 4


def matrices_of(specs: dict[str, Spec]) -> list[SharedMatrix]:
    shared = SharedArrays(specs)
    return [SharedMatrix(shared, name, WIDTH, N_STRIPS) for name in specs]


def hold(pipe: Connection, specs: dict[str, Spec], what: float, stop_in: int) -> None:
    """Fill a matrix with `what` and the strip's number, but stop for ever in one strip; then say so and keep it."""

    def fill(strip: int, values: np.ndarray) -> None:
        rows = values[strip * WIDTH // N_STRIPS : (strip + 1) * WIDTH // N_STRIPS]
        rows[:1] = -1
        if strip == stop_in:
            pipe.send("in the strip")
            time.sleep(3600)
        rows[:] = what + strip

    with Pool(matrices_of(specs)).holding(what, fill) as values:
        pipe.send(values.copy())
        pipe.recv()


def expected(what: float) -> np.ndarray:
    return what + np.repeat(np.arange(N_STRIPS), WIDTH // N_STRIPS)[:, None] * np.ones(WIDTH)


def test_the_strip_of_a_killed_process_is_done_again(scratch: Scratch, forked: Spawned) -> None:
    specs = scratch(WIDTH, "kernel 0").specs
    victim, said = forked(hold, specs, 10.0, 2)
    assert said.poll(PATIENCE) and said.recv() == "in the strip"
    other, answer = forked(hold, specs, 10.0, -1)
    assert not answer.poll(0.5), "a strip that is being filled is waited for"
    os.kill(victim.pid, signal.SIGKILL)
    assert answer.poll(PATIENCE)
    np.testing.assert_array_equal(answer.recv(), expected(10.0))
    answer.send("end")
    other.join(PATIENCE)
    assert other.exitcode == 0


@pytest.mark.parametrize("killed", [True, False])
def test_a_matrix_in_use_is_replaced_when_its_user_ends_or_is_killed(
    scratch: Scratch, forked: Spawned, killed: bool
) -> None:
    specs = scratch(WIDTH, "kernel 0").specs
    user, used = forked(hold, specs, 10.0, -1)
    np.testing.assert_array_equal(used.recv(), expected(10.0))
    friend, shared = forked(hold, specs, 10.0, -1)
    np.testing.assert_array_equal(shared.recv(), expected(10.0))
    waiting, answer = forked(hold, specs, 50.0, -1)
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


def test_a_second_matrix_spares_the_wait_and_the_oldest_is_replaced(scratch: Scratch, forked: Spawned) -> None:
    shared = scratch(WIDTH, "kernel 0", "kernel 1")
    workers = [forked(hold, shared.specs, what, -1) for what in (10.0, 20.0)]
    for (process, pipe), what in zip(workers, (10.0, 20.0), strict=True):
        assert pipe.poll(PATIENCE)
        np.testing.assert_array_equal(pipe.recv(), expected(what))
        pipe.send("end")
        process.join(PATIENCE)
    matrices = matrices_of(shared.specs)
    before = {float(matrix.holds[0]): int(matrix.taken[0]) for matrix in matrices}
    assert set(before) == {10.0, 20.0}
    with Pool(matrices).holding(30.0, lambda strip, values: None):
        pass
    assert {float(matrix.holds[0]) for matrix in matrices} == {30.0, max(before, key=lambda what: before[what])}


def test_a_process_does_not_wait_for_itself(scratch: Scratch) -> None:
    pool = Pool(matrices_of(scratch(WIDTH, "kernel 0").specs))
    with (
        pool.holding(1.0, lambda strip, values: None),
        pytest.raises(RuntimeError, match="one matrix of a pool at a time"),
        pool.holding(2.0, lambda strip, values: None),
    ):
        pass
