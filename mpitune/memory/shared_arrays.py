"""Arrays that all processes of a node see, in one copy.

They lie in memory without a name (memfd). A worker inherits the descriptor from its rank. The kernel frees the memory
when the last process that has it ends, in any way. Nothing can stay behind in /dev/shm.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.context import assert_spawning
from typing import Any

import numpy as np

from mpitune.devices.choose import free_memory
from mpitune.errors import UsageError


class MemoryFile:
    """Memory without a name, zero at first; its pages are taken when first written.

    Processes that this one spawns inherit it with the arguments they are given.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def of_size(cls, n_bytes: int) -> MemoryFile:
        memory = cls(os.memfd_create("search"))
        os.truncate(memory.descriptor, max(1, n_bytes))
        return memory

    def reserve(self, n_bytes: int) -> bool:
        """Take its first pages now. False if there is too little memory: to write to them would kill a process."""
        free = free_memory()  # read first: another process may be taking the same pages
        if n_bytes - 512 * os.fstat(self.descriptor).st_blocks > free:
            return False
        try:
            os.posix_fallocate(self.descriptor, 0, n_bytes)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Give the memory up; processes that are attached keep it until they end."""
        os.close(self.descriptor)

    def __reduce__(self) -> tuple[Any, ...]:
        assert_spawning(self)
        return _inherited, (reduction.DupFd(self.descriptor),)


def _inherited(passed: Any) -> MemoryFile:
    descriptor = passed.detach()
    os.set_inheritable(descriptor, False)
    return MemoryFile(descriptor)


@dataclass(frozen=True)
class Spec:
    """An array's shape and dtype, and the memory that it lies in (None until there is some)."""

    shape: tuple[int, ...]
    dtype: str
    memory: MemoryFile | None = None

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


def specs_of(arrays: Mapping[str, np.ndarray]) -> dict[str, Spec]:
    """Shapes and dtypes of arrays, without memory."""
    return {name: Spec(array.shape, array.dtype.str) for name, array in arrays.items()}


class SharedArrays:
    """Arrays in shared memory of this node: in its rank that allocated them, and in workers that it has spawned.

    Args:
        specs: of the arrays, each with its memory.
    """

    def __init__(self, specs: Mapping[str, Spec], writeable: bool = True) -> None:
        self.specs = dict(specs)
        self.arrays = {name: _view(spec, writeable) for name, spec in specs.items()}

    @classmethod
    def allocate(cls, specs: Mapping[str, Spec]) -> SharedArrays:
        """Memory for these arrays. Raises UsageError if there is too little: later a process would be killed for it."""
        if (n_bytes := sum(spec.nbytes for spec in specs.values())) > (free := free_memory()):
            raise UsageError(
                f"the data needs {n_bytes >> 20} MiB of memory on each host, {max(0, free) >> 20} are free: ask the "
                f"scheduler for more, or take less data"
            )
        return cls(
            {name: Spec(spec.shape, spec.dtype, MemoryFile.of_size(spec.nbytes)) for name, spec in specs.items()}
        )

    def close(self) -> None:
        """Give the memory up; processes that are attached keep it until they end."""
        self.arrays.clear()
        for spec in self.specs.values():
            assert spec.memory is not None
            spec.memory.close()
        self.specs.clear()


def _view(spec: Spec, writeable: bool) -> np.ndarray:
    assert spec.memory is not None
    memory = mmap.mmap(spec.memory.descriptor, max(1, spec.nbytes))
    array = np.ndarray(spec.shape, np.dtype(spec.dtype), buffer=memory)
    array.flags.writeable = writeable
    return array
