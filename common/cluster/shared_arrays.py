"""Arrays that all processes of a node see, in one copy."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np

from common.cluster.devices import free_memory
from common.errors import UsageError

SHM = "/dev/shm"


@dataclass(frozen=True)
class Spec:
    """Where an array lies: name of its shared memory ("" until there is one), shape, dtype."""

    shape: tuple[int, ...]
    dtype: str
    memory: str = ""

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


def specs_of(arrays: Mapping[str, np.ndarray]) -> dict[str, Spec]:
    return {name: Spec(array.shape, array.dtype.str) for name, array in arrays.items()}


def free_shared() -> int:
    """Bytes of shared memory that are free."""
    status = os.statvfs(SHM)
    return status.f_bavail * status.f_frsize


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
        needed = sum(spec.nbytes for spec in specs.values())
        if os.path.isdir(SHM) and needed > (free := free_shared()):
            raise UsageError(
                f"the data needs {needed >> 20} MiB of shared memory, {SHM} has {free >> 20} free: "
                f"enlarge it (--shm-size, or an emptyDir with medium: Memory) or give a smaller --train-size"
            )
        return cls(specs, {name: SharedMemory(create=True, size=max(1, s.nbytes)) for name, s in specs.items()})

    @classmethod
    def allocate_what_fits(cls, specs: Mapping[str, Spec]) -> SharedArrays:
        """The first of these arrays, as many as fit together, all zero; their pages are taken when first written."""
        room = min(free_shared(), free_memory()) if os.path.isdir(SHM) else 0
        totals = itertools.accumulate(spec.nbytes for spec in specs.values())
        fitting = {name: specs[name] for name, total in zip(specs, totals, strict=True) if total <= room}
        return cls(fitting, {name: SharedMemory(create=True, size=spec.nbytes) for name, spec in fitting.items()})

    @classmethod
    def attach(cls, specs: Mapping[str, Spec], writeable: bool = False) -> SharedArrays:
        """Views of what another process of this node allocated."""
        shared = cls(specs, {name: SharedMemory(spec.memory) for name, spec in specs.items()})
        for array in shared.arrays.values():
            array.flags.writeable = writeable
        return shared

    def path(self, name: str) -> Path:
        """The file that an array's memory is: of use for locks, which end with the process that holds them."""
        return Path(SHM, self.specs[name].memory)

    def close(self) -> None:
        """Remove the memory; processes that are attached keep it until they end."""
        self.arrays.clear()
        for block in self._blocks.values():
            block.close()
            block.unlink()
        self._blocks.clear()


NOTHING = SharedArrays({}, {})
