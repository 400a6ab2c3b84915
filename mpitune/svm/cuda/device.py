"""Devices that solve paths: a GPU, or anything else that can hold arrays and run ``path.cu``."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mpitune._jit import WIDE
from mpitune.svm.solver.smo import TAU
from mpitune.svm.solver.walk import FREE, GAP

SOURCE = Path(__file__).with_name("path.cu")
SCRATCH = 6144  # bytes of a block's shared memory that path.cu works with, before the state of its path
PART = 0.9  # of the free memory that is used
STATE = 9  # bytes of a lane while its path is solved: f in double, and flags
# What a compiler of path.cu is told: its sizes, and the constants that it has in common with the solver on the CPU.
DEFINITIONS = (
    f"-DSCRATCH={SCRATCH}", f"-DSTATE={STATE}", f"-DLANES={WIDE}", f"-DTAU={TAU!r}", f"-DFREE={FREE}", f"-DGAP={GAP!r}",
)  # fmt: skip


class ComputeDevice(Protocol):
    """Arrays and the kernel of one device.

    Attributes:
        xp: numpy or a module like it, whose arrays lie in the device's memory.
        shared_memory: bytes that a thread block may have of its own.
    """

    xp: Any
    shared_memory: int

    def threads(self, lanes: int) -> int:
        """Threads of a block that walks a path of so many lanes; no result depends on it."""

    def memory(self) -> int:
        """Bytes that a launch may plan with."""

    def reserved(self, n_bytes: int) -> AbstractContextManager[int]:
        """Reserve bytes for some launches: gives `n_bytes`, or the fewer bytes that there are."""

    def launch(self, blocks: int, threads: int, shared_memory: int, arguments: tuple[Any, ...]) -> None:
        """Run the kernel on arrays, numpy.int64 and numpy.float64 in the order of its parameters."""

    def to_host(self, array: Any) -> np.ndarray:
        """A copy in this process's memory."""


class Gpu:
    """The GPU that this process can see, by cupy, which compiles the kernel (NVRTC) and caches it.

    It is taken to be this process's alone; `mnist_svm.solvers.cuda` has one whose memory is shared.

    Raises:
        RuntimeError: the driver ends kernels that run for seconds, as paths do, because the GPU drives a display.
    """

    def __init__(self) -> None:
        os.environ.pop("CUPY_TF32", None)  # distances need every digit of float32
        import cupy

        attributes = cupy.cuda.Device().attributes
        if attributes["KernelExecTimeout"]:
            raise RuntimeError(
                "the driver ends long kernels on this GPU, which drives a display: give --gpu none, or --solver cuml"
            )
        self.xp = cupy
        self.shared_memory = attributes["MaxSharedMemoryPerBlockOptin"]
        module = cupy.RawModule(code=SOURCE.read_text(), options=DEFINITIONS)
        self._kernel = module.get_function("walk_paths")
        self._kernel.max_dynamic_shared_size_bytes = self.shared_memory

    def threads(self, lanes: int) -> int:
        """Eight lanes for each thread; two blocks of 512 fit a processor's registers."""
        return min(512, max(64, 1 << (lanes // 8).bit_length()))

    def memory(self) -> int:
        self.xp.get_default_memory_pool().free_all_blocks()
        return int(PART * self.xp.cuda.runtime.memGetInfo()[0])

    def reserved(self, n_bytes: int) -> AbstractContextManager[int]:
        return nullcontext(n_bytes)

    def launch(self, blocks: int, threads: int, shared_memory: int, arguments: tuple[Any, ...]) -> None:
        self._kernel((blocks,), (threads,), arguments, shared_mem=shared_memory)

    def to_host(self, array: Any) -> np.ndarray:
        return self.xp.asnumpy(array)
