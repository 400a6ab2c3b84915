"""Processes, and shared memory for them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest

from mpitune.memory.shared_arrays import MemoryFile

Spawned = Callable[..., tuple[Any, Connection]]  # (function, *arguments)


@pytest.fixture
def node_memory() -> Iterator[MemoryFile]:
    memory = MemoryFile.of_size(0)
    yield memory
    memory.close()


@pytest.fixture
def forked(node_memory: MemoryFile) -> Iterator[Spawned]:
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
