"""Square matrices that the processes of a node fill together and then read, each of them in memory once.

A matrix is filled strip by strip: a process that needs it takes strips that nobody works on, and waits for the others
at the end. A pool has several matrices and gives out the one that holds what is wanted, or replaces what nobody uses.

Locks are byte ranges (POSIX record locks) of the file that the shared memory is, so they end with the process that
holds them: one that is killed in a strip leaves it to be done again, and those that wait for it go on. Nobody waits for
a strip while holding another, nor for a matrix while holding one, so there is no circle.
"""

from __future__ import annotations

import fcntl
import mmap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from mpitune.locks import lock_byte, locked_byte, unlock_byte

HEADER = 1 << 16  # bytes before a shared matrix: what it holds, when it was last taken, an agreement, a flag per strip
PAUSE = 0.05  # seconds between two looks at whether a matrix has become free
USE, CHOOSE, STRIPS = 0, 1, 2  # bytes that are locked: while a matrix is used, while one is chosen, from here on strips

Fill = Callable[[int, np.ndarray], object]  # writes strip s of the float32 (width, width) matrix


class NodeMemory(Protocol):
    """Memory of this node, zero at first, that several processes have attached."""

    @property
    def descriptor(self) -> int:
        """A file that all these processes have open, to map it and to lock bytes of it."""

    def reserve(self, n_bytes: int) -> bool:
        """Take so much from its start; False where there is not enough, which would end the process that writes it."""


def bytes_of(n: int, width: int) -> int:
    """Bytes of the first n matrices of a width, each with a HEADER, at places that can be mapped."""
    return n * (HEADER + -(-4 * width * width // HEADER) * HEADER)


def agree(memory: NodeMemory, number: int) -> int:
    """The number that the first process gave. The HEADER of the first matrix is reserved."""
    with locked_byte(memory.descriptor, CHOOSE):
        agreed = _mapped(memory, 0, HEADER)[16:24].view(np.int64)
        agreed[0] = agreed[0] or number
        return int(agreed[0])


def _mapped(memory: NodeMemory, start: int, n_bytes: int) -> np.ndarray:
    return np.frombuffer(mmap.mmap(memory.descriptor, n_bytes, offset=start), np.uint8)


class SharedMatrix:
    """A float32 (width, width) matrix in shared memory of this node.

    Args:
        memory: where it lies; the first `bytes_of(number + 1, width)` of it are reserved.
    """

    def __init__(self, memory: NodeMemory, number: int, width: int, n_strips: int) -> None:
        if 24 + n_strips > HEADER:
            raise ValueError(f"a matrix of {n_strips} strips: {HEADER - 24} at most are possible")
        self._file, self._start = memory.descriptor, bytes_of(number, width)
        content = _mapped(memory, self._start, HEADER + 4 * width * width)
        self.values = content[HEADER:].view(np.float32).reshape(width, width)
        self.holds = content[:8].view(np.float64)  # 0 for nothing
        self.taken = content[8:16].view(np.int64)  # the turn in which it was last chosen
        self.done = content[24 : 24 + n_strips]

    def lock(self, byte: int, kind: int) -> bool:
        return lock_byte(self._file, self._start + byte, kind)

    def unlock(self, byte: int) -> None:
        unlock_byte(self._file, self._start + byte)

    def fill(self, fill: Fill) -> np.ndarray:
        """The whole matrix, float32 (width, width), to be read. Strips that nobody has filled are filled here first."""
        left: list[int] = list(range(len(self.done)))
        for kind in (fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_EX):
            left = [strip for strip in left if not self._fill_strip(strip, fill, kind)]
        return self.values

    def _fill_strip(self, strip: int, fill: Fill, kind: int) -> bool:
        """Whether the strip is done; looked at under its lock, so that what is in it is seen as well."""
        if not self.lock(STRIPS + strip, kind):
            return False
        try:
            if not self.done[strip]:
                fill(strip, self.values)
                self.done[strip] = 1
        finally:
            self.unlock(STRIPS + strip)
        return True


class Pool:
    """Matrices that hold different things in turn: the first of this memory."""

    def __init__(self, memory: NodeMemory, matrices: Sequence[SharedMatrix]) -> None:
        self._file, self._matrices = memory.descriptor, matrices
        self._busy = False

    @contextmanager
    def holding(self, what: float, fill: Fill) -> Iterator[np.ndarray]:
        """A matrix that holds `what`, for as long as the context lasts.

        It waits while others use all matrices for something else.

        Args:
            what: a number that stands for the content, not 0.
            fill: writes a strip of it.

        Yields:
            The matrix, to be read.

        Raises:
            RuntimeError: this process is inside such a context already, and could wait for itself.
        """
        if self._busy:
            raise RuntimeError("a process can use one matrix of a pool at a time")
        self._busy = True
        try:
            matrix = self._taken(what)
            try:
                yield matrix.fill(fill)
            finally:
                matrix.unlock(USE)
        finally:
            self._busy = False

    def _taken(self, what: float) -> SharedMatrix:
        """A matrix that holds `what`, if only its name so far, locked against being replaced."""
        while True:
            with locked_byte(self._file, CHOOSE):
                matrix = self._chosen(what)
                if matrix is not None:
                    matrix.lock(USE, fcntl.LOCK_SH)
                    matrix.taken[0] = 1 + max(int(other.taken[0]) for other in self._matrices)
                    return matrix
            time.sleep(PAUSE)

    def _chosen(self, what: float) -> SharedMatrix | None:
        """The matrix that holds `what`; else, emptied for it, the one unused for longest; None if all are used."""
        for matrix in self._matrices:
            if matrix.holds[0] == what:
                return matrix
        for matrix in sorted(self._matrices, key=lambda matrix: int(matrix.taken[0])):
            if matrix.lock(USE, fcntl.LOCK_EX | fcntl.LOCK_NB):
                matrix.holds[0] = 0  # first: a process killed here leaves nothing that looks done
                matrix.done[:] = 0
                matrix.holds[0] = what
                return matrix
        return None
