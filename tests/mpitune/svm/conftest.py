"""Processes, and shared memory for them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest

from mpitune.memory.shared_arrays import SharedArrays, Spec
from mpitune.svm.matrices.pool import buffer_sizes

Scratch = Callable[..., SharedArrays]  # (width, *names)
Spawned = Callable[..., tuple[Any, Connection]]  # (function, *arguments)


def matrix_spec(width: int) -> Spec:
    """Of a buffer for one matrix of a width that is a multiple of LANES."""
    return Spec((buffer_sizes([width], 0)["distances"],), "|u1")


@pytest.fixture
def scratch() -> Iterator[Scratch]:
    """Allocates shared memory for matrices of a width, by name."""
    allocated: list[SharedArrays] = []

    def allocate(width: int, *names: str) -> SharedArrays:
        allocated.append(SharedArrays.allocate_what_fits(dict.fromkeys(names, matrix_spec(width))))
        assert list(allocated[-1].specs) == list(names)
        return allocated[-1]

    yield allocate
    for arrays in allocated:
        arrays.close()


@pytest.fixture
def forked(scratch: Scratch) -> Iterator[Spawned]:
    """Starts a process that runs ``function(pipe, *arguments)``; returns it with the other end of its pipe."""
    context: Any = multiprocessing.get_context("fork")
    started = []

    def start(function: Callable[..., None], *arguments: Any) -> tuple[Any, Connection]:
        here, there = context.Pipe()
        process = context.Process(target=function, args=(there, *arguments), daemon=True)
        process.start()
        there.close()
        started.append(process)
        return process, here

    yield start
    for process in started:
        process.kill()
        process.join()
