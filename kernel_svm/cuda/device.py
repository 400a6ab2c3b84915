"""Where the paths are walked: a GPU, or whatever else can hold arrays and run ``path.cu``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np

SOURCE = Path(__file__).with_name("path.cu")
SCRATCH = 6144  # bytes of a block's shared memory that path.cu works with, before the state of its path
DEFINITIONS = (f"-DSCRATCH={SCRATCH}",)  # what a compiler of path.cu is told


class Device(Protocol):
    """Arrays and the kernel of one device.

    xp: numpy or a module like it, whose arrays lie in the device's memory. shared_memory: bytes that a thread
    block may have of its own.
    """

    xp: Any
    shared_memory: int

    def threads(self, lanes: int) -> int:
        """Threads of a block that walks a path of so many lanes; no result depends on it."""

    def free_memory(self) -> int:
        """Bytes that can be allocated now."""

    def launch(self, blocks: int, threads: int, shared_memory: int, arguments: tuple[Any, ...]) -> None:
        """Run the kernel on arrays, numpy.int64 and numpy.float64 in the order of its parameters."""

    def to_host(self, array: Any) -> np.ndarray:
        """A copy in this process's memory."""


class Gpu:
    """The GPU that this process can see, by cupy, which compiles the kernel (NVRTC) and caches it.

    Distances need every digit of float32: leave cupy's CUPY_TF32 unset.
    """

    def __init__(self) -> None:
        import cupy

        self.xp = cupy
        self.shared_memory = cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
        module = cupy.RawModule(code=SOURCE.read_text(), options=DEFINITIONS)
        self._kernel = module.get_function("walk_paths")
        self._kernel.max_dynamic_shared_size_bytes = self.shared_memory

    def threads(self, lanes: int) -> int:
        """Eight lanes for each thread; two blocks of 512 fit a processor's registers."""
        return min(512, max(64, 1 << (lanes // 8).bit_length()))

    def free_memory(self) -> int:
        self.xp.get_default_memory_pool().free_all_blocks()
        return self.xp.cuda.runtime.memGetInfo()[0]

    def launch(self, blocks: int, threads: int, shared_memory: int, arguments: tuple[Any, ...]) -> None:
        self._kernel((blocks,), (threads,), arguments, shared_mem=shared_memory)

    def to_host(self, array: Any) -> np.ndarray:
        return self.xp.asnumpy(array)
