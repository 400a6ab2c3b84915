"""Values that processes of a node keep for each other: whole, never changed while seen, within their memory."""

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mpitune.memory.cache import BUFFER, INDEX, SharedCache, _Packed, _read, in_memory
from mpitune.memory.shared_arrays import SharedArrays, Spec
from tests.helpers import PATIENCE

SIZE = 4096


def allocated(size: int = SIZE) -> SharedArrays:
    return SharedArrays.allocate({BUFFER: Spec((INDEX + size,), "|u1")})


def key(number: int) -> bytes:
    return number.to_bytes(5, "little") + bytes(11)


def content(number: int, length: int) -> bytes:
    return np.random.default_rng(number).bytes(length)


@given(steps=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 2500), st.booleans()), max_size=40))
def test_values_are_whole_and_stay_as_they_are_while_they_are_seen(steps: list[tuple[int, int, bool]]) -> None:
    """Beside a model: a value that was found is the one that was put last; views that are held never change."""
    buffers = allocated()
    cache = SharedCache(buffers, BUFFER)
    lengths: dict[int, int] = {}
    held: list[tuple[int, int, memoryview]] = []
    for number, length, keep in steps:
        view = cache.get(key(number))
        if view is None:
            view = cache.put(key(number), length, lambda out, n=number, m=length: out.__setitem__(  # type: ignore[misc]
                slice(None), np.frombuffer(content(n, m), np.uint8)))  # fmt: skip
            lengths[number] = length
            assert view is not None or held, "a cache of which nothing is used has room for all that it can hold"
        if view is not None:
            assert bytes(view) == content(number, lengths[number]) and view.readonly
            if keep and len(held) < 3:
                held.append((number, lengths[number], view))
        del view
        assert all(bytes(view) == content(n, length) for n, length, view in held)
    held.clear()
    assert cache.put(key(99), SIZE, lambda out: out.fill(7)) is not None
    assert cache.put(key(98), SIZE + 1, lambda out: out.fill(7)) is None
    del cache


def test_the_longest_unused_gives_way() -> None:
    cache = SharedCache(allocated(), BUFFER)
    for number in range(4):
        assert cache.put(key(number), SIZE // 4, lambda out, n=number: out.fill(n)) is not None  # type: ignore[misc]
    assert cache.get(key(0)) is not None
    assert cache.put(key(4), SIZE // 4, lambda out: out.fill(4)) is not None
    assert [number for number in range(5) if cache.get(key(number)) is not None] == [0, 2, 3, 4]


def _worker(specs: dict[str, Spec], file: str, seconds: float, pipe: Connection) -> None:
    cache: Any = in_memory(SharedArrays(specs), 0)

    def compute() -> np.ndarray:
        with open(file, "a") as lines:
            lines.write(f"{os.getpid()}\n")
        pipe.send("begun")
        time.sleep(seconds)
        return np.arange(100.0)

    pipe.send(float(cache.value("a", compute).sum()))


def test_one_process_computes_and_if_it_is_killed_the_next_one_does(tmp_path: Path) -> None:
    buffers, file = allocated(), tmp_path / "computed"
    context = multiprocessing.get_context("spawn")

    def started(seconds: float) -> tuple[Any, Connection]:
        here, there = context.Pipe()
        process = context.Process(target=_worker, args=(buffers.specs, str(file), seconds, there))
        process.start()
        return process, here

    first, heard = started(600.0)
    assert heard.poll(PATIENCE) and heard.recv() == "begun"
    others = [started(0.2) for _ in range(2)]
    assert first.pid is not None and not others[0][1].poll(0.5)
    os.kill(first.pid, signal.SIGKILL)
    for process, pipe in others:
        said = ["begun"]
        while said[-1] == "begun":
            assert pipe.poll(PATIENCE)
            said.append(pipe.recv())
        assert said[-1] == 4950.0
        process.join()
    assert len(file.read_text().splitlines()) == 2
    first.join()
    buffers.close()


@given(
    arrays=st.lists(
        st.tuples(st.sampled_from(["f8", "u1", "c16"]), st.integers(0, 50), st.booleans(), st.sampled_from([1, -1, 2])),
        max_size=4,
    ),
    text=st.text(max_size=20),
)
def test_values_are_packed_whole_and_arrays_keep_their_order(
    arrays: list[tuple[str, int, bool, int]], text: str
) -> None:
    made = [
        np.arange(3 * n).reshape(3, n, order="F" if fortran else "C").astype(kind)[:, ::step]
        for kind, n, fortran, step in arrays
    ]
    value = {"text": text, "arrays": made, "function": lambda x: x + 1}
    packed = _Packed(value)
    assert packed.length == len(packed.whole()) and packed.length % 64 == 0
    found = _read(packed.whole().data)
    assert found["text"] == text and found["function"](1) == 2
    for array, other in zip(made, found["arrays"], strict=True):
        np.testing.assert_array_equal(array, other)
        assert array.dtype == other.dtype and other.flags.writeable
        if array.size and min(array.shape) > 1:  # else strides mean nothing
            assert np.sign(array.strides).tolist() == np.sign(other.strides).tolist()
            assert np.argsort(np.abs(array.strides)).tolist() == np.argsort(np.abs(other.strides)).tolist()
