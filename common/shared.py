"""Arrays that all processes of a node see, in one copy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory

import numpy as np

from common.errors import UsageError

SHM = "/dev/shm"


@dataclass(frozen=True)
class Spec:
    """Where an array lies: name of its shared memory ("" until there is one), shape, dtype."""

    shape: tuple[int, ...]
    dtype: str
    memory: str = ""


def specs_of(arrays: Mapping[str, np.ndarray]) -> dict[str, Spec]:
    return {name: Spec(array.shape, array.dtype.str) for name, array in arrays.items()}


class SharedArrays:
    """Arrays in shared memory of this node, allocated by its rank and attached by its workers.

    The rank that allocated them must `close` them; should it be killed, Python's resource tracker,
    which outlives it, removes them.
    """

    def __init__(self, specs: Mapping[str, Spec], blocks: Mapping[str, SharedMemory]):
        self._blocks = dict(blocks)
        self.specs = {name: Spec(spec.shape, spec.dtype, blocks[name].name) for name, spec in specs.items()}
        self.arrays = {
            name: np.ndarray(spec.shape, np.dtype(spec.dtype), buffer=blocks[name].buf) for name, spec in specs.items()
        }

    @classmethod
    def allocate(cls, specs: Mapping[str, Spec]) -> SharedArrays:
        """Raises UsageError where shared memory is too small, which would otherwise be a bus error later."""
        sizes = {name: max(1, int(np.prod(s.shape)) * np.dtype(s.dtype).itemsize) for name, s in specs.items()}
        if os.path.isdir(SHM):
            status = os.statvfs(SHM)
            free = status.f_bavail * status.f_frsize
            if sum(sizes.values()) > free:
                raise UsageError(
                    f"the data needs {sum(sizes.values()) >> 20} MiB of shared memory, {SHM} has {free >> 20} free: "
                    f"enlarge it (--shm-size, or an emptyDir with medium: Memory) or give a smaller --train-size"
                )
        return cls(specs, {name: SharedMemory(create=True, size=size) for name, size in sizes.items()})

    @classmethod
    def attach(cls, specs: Mapping[str, Spec]) -> SharedArrays:
        """Read-only views of what another process of this node allocated."""
        shared = cls(specs, {name: SharedMemory(spec.memory) for name, spec in specs.items()})
        for array in shared.arrays.values():
            array.flags.writeable = False
        return shared

    def close(self) -> None:
        """Remove the memory; processes that are attached keep it until they end."""
        self.arrays.clear()
        for block in self._blocks.values():
            block.close()
            block.unlink()
        self._blocks.clear()
