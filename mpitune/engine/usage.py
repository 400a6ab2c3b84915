"""What a trial uses of its machine: processor time and memory, and a GPU's where NVIDIA's library is there.

A worker measures what is counted from one trial to the next. Its agent reads its peak of memory: a look takes as long
as a third of what a worker does between two trials of a second, and an agent has the time.
"""

from __future__ import annotations

import math
import os
import re
import resource
import threading
import time
from contextlib import suppress
from typing import Any

from mpitune.devices.driver import Driver
from mpitune.trial import Used

SAMPLE_S = 0.5  # between two looks at a GPU
MEMORY_S = 1.0  # between two looks at the peak of memory of a process


class Meter:
    """Measures this process, on "cpu" or "cuda", between two results."""

    def __init__(self, device: str) -> None:
        self._gpu = _Gpu.of_this_process() if device == "cuda" else None
        self._cpu_seconds = 0.0
        self.begin()

    def begin(self) -> None:
        """Begin to measure for the next result."""
        self._spent()
        if self._gpu is not None:
            self._gpu.read()

    def read(self) -> Used:
        """What was used since the last call."""
        spent = self._spent()
        gpu, gpu_bytes = (None, None) if self._gpu is None else self._gpu.read()
        return Used(round(spent, 6), None, gpu, gpu_bytes)

    def _spent(self) -> float:
        """Processor seconds since the last call."""
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        total = time.process_time() + children.ru_utime + children.ru_stime
        spent, self._cpu_seconds = total - self._cpu_seconds, total
        return spent


class Peak:
    """The most memory that the process `pid` has had, pages that it shares included.

    `getrusage` would count the process that it was forked from as well.
    """

    def __init__(self, pid: int) -> None:
        self._path, self._looked = f"/proc/{pid}/status", -math.inf
        self._bytes: int | None = None

    def read(self) -> int | None:
        """Bytes, at most MEMORY_S seconds old; of a process that has ended the last known ones, or None."""
        now = time.monotonic()
        if now - self._looked >= MEMORY_S:
            self._looked = now
            with suppress(OSError), open(self._path, "rb", buffering=0) as file:
                if peak := re.search(rb"VmHWM:\s*(\d+)", file.read()):
                    self._bytes = int(peak[1]) << 10
        return self._bytes


class _Gpu:
    """A thread that looks at one GPU, which the module `nvml` calls `handle`."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._looks: list[tuple[float | None, int]] = []  # how busy, and the bytes in use
        self._look()
        threading.Thread(target=self._look_on, name="gpu", daemon=True).start()

    @classmethod
    def of_this_process(cls) -> _Gpu | None:
        """For the first GPU that this process sees; None if the library is absent or does not know it."""
        try:
            import pynvml

            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
            name = visible if visible.startswith("MIG-") else f"GPU-{Driver().uuid()}"
            pynvml.nvmlInit()
            return cls(pynvml, pynvml.nvmlDeviceGetHandleByUUID(name))
        except Exception:  # each of the three has errors of its own, and no trial needs these figures
            return None

    def read(self) -> tuple[float | None, int | None]:
        """(mean share of time that it was busy, most bytes in use) since the last call, or at the last look."""
        looks, self._looks = self._looks, self._looks[-1:]
        looks = looks[1:] or looks  # the first was seen before
        busy = [share for share, _ in looks if share is not None]
        return round(sum(busy) / len(busy), 4) if busy else None, max((in_use for _, in_use in looks), default=None)

    def _look_on(self) -> None:
        wait = threading.Event().wait
        while not wait(SAMPLE_S):
            self._look()

    def _look(self) -> None:
        busy = None
        with suppress(self._nvml.NVMLError):  # if the GPU is lost, the trial fails
            in_use = int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)
            with suppress(self._nvml.NVMLError):  # a slice of a GPU has no such figure
                busy = self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
            self._looks.append((busy, in_use))
