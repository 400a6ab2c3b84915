"""Arrays in shared memory, and streams of random numbers from keys."""

import multiprocessing
import os
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from mpitune.errors import UsageError
from mpitune.memory.shared_arrays import MemoryFile, SharedArrays, Spec, specs_of
from mpitune.trial import Trial, seed_of
from tests.helpers import PATIENCE

ARRAYS = {"x": np.arange(12, dtype=np.uint8).reshape(3, 4), "empty": np.zeros((0, 5)), "scalar": np.float64(3.5)}


def _read(specs: dict[str, Spec], pipe: Connection) -> None:
    attached = SharedArrays(specs, writeable=False)
    try:
        attached.arrays["x"][0, 0] = 1
    except ValueError:
        pipe.send({name: array.copy() for name, array in attached.arrays.items()})


def test_a_worker_sees_what_the_rank_wrote_and_cannot_change_it() -> None:
    arrays = {name: np.asarray(array) for name, array in ARRAYS.items()}
    allocated = SharedArrays.allocate(specs_of(arrays))
    for name, array in arrays.items():
        allocated.arrays[name][...] = array
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_read, args=(allocated.specs, there))
    process.start()
    assert here.poll(PATIENCE)
    for name, array in here.recv().items():
        np.testing.assert_array_equal(array, arrays[name])
        assert array.dtype == arrays[name].dtype
    process.join()
    allocated.close()


def test_memory_that_is_not_there_is_said_beforehand() -> None:
    with pytest.raises(UsageError, match="MiB of memory on each host"):
        SharedArrays.allocate({"x": Spec((1 << 50,), "|u1")})


def test_a_memory_file_is_as_large_as_was_reserved_of_it() -> None:
    memory = MemoryFile.of_size(0)
    assert [memory.reserve(n) for n in (1 << 20, 1 << 50, 1 << 12)] == [True, False, True]
    assert os.fstat(memory.descriptor).st_size == os.fstat(memory.descriptor).st_blocks * 512 == 1 << 20
    memory.close()


def test_streams_depend_on_seed_and_key_alone() -> None:
    def drawn(seed: int, key: str) -> tuple[float, ...]:
        return tuple(np.random.default_rng(seed_of(seed, key)).random(4))

    keys = [(seed, key) for seed in (0, 1) for key in ("a", "b", "a/0", "ä")]
    assert len({drawn(*key) for key in keys}) == len(keys)
    assert drawn(0, "a") == drawn(0, "a")
    # The first number of one stream, kept so that no release changes published results unnoticed.
    assert drawn(0, "b0/t0")[0] == 0.214813637899269


@pytest.mark.parametrize(
    ("key", "params", "words"),
    [
        *(("t", {"x": value}, "parameter x") for value in (float("nan"), float("inf"), np.int64(3), [1], None)),
        *((key, {}, "1 to 200") for key in ("", "k" * 201)),
    ],
)
def test_trials_are_what_a_journal_gives_back(key: str, params: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Trial(key, params)
